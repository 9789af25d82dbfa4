"""The HTTP port against peers that do not know HTTP, or know it too well.

Whatever they send, they get well-formed answers or none; none of it crashes the daemon, holds its
loop, or stays in its memory.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from penstock.net.http_server import HttpLimits
from penstock.wire import commands
from tests.conformance.fuzzing import (
    FUZZ_SECONDS,
    conversations,
    converse,
    mutated,
    pick,
    undisturbed,
)
from tests.support.daemon import Nsqd
from tests.support.limits import PAGE, status

DOCS = PAGE.parent

# What is never answered to bytes: 500 would be a mistake of ours, 502 to 504 of nobody's here.
STATUSES = {200, 301, 307, 400, 403, 404, 405, 408, 413, 414, 417, 431, 501, 505, 100}

HEAD_TIMEOUT_S = HttpLimits().head_timeout_s

TARGETS = [
    *("/ping", "/info", "/stats", "/stats?format=json", "/metrics", "/stats?topic=t&channel=c"),
    *("/pub?topic=t", "/pub?topic=t&defer=5", "/pub?topic=e%23ephemeral", "/pub?topic=%ff&x=;"),
    *("/mpub?topic=t", "/mpub?topic=t&binary=true", "/mpub?topic=u&binary=x"),
    *("/topic/create?topic=t", "/topic/delete?topic=t", "/topic/empty?topic=t"),
    *("/topic/pause?topic=t", "/topic/unpause?topic=t", "/TOPIC/create?topic=t", "//ping/.."),
    *("/channel/create?topic=t&channel=c", "/channel/delete?topic=t&channel=c"),
    *("/channel/empty?topic=t&channel=c", "/channel/pause?topic=t&channel=c", "/channel/"),
    *("/config/log_level", "/config/nsqlookupd_tcp_addresses", "/config/x", "/config/id"),
    *("/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine", "*", "http://h/ping"),
    *("/%", "/%zz", "/ping?", "/nothing", "/a" * 3000, "/ping?" + "a=b&" * 2000),
]
METHODS = ["GET"] * 8 + ["POST"] * 12 + ["PUT", "PUT", "OPTIONS", "DELETE", "CONNECT", "PRI", "get"]
HEADERS = [
    *("Connection: close", "Connection: keep-alive", "Connection: Upgrade, HTTP2-Settings"),
    *("Upgrade: h2c", "Upgrade: websocket", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
    *("Expect: 100-continue", "Expect: the unexpected", "Content-Encoding: gzip"),
    *("Authorization: Bearer " + "x" * 600, "Cookie: " + "c=1; " * 400, "X-Huge: " + "h" * 70_000),
    *("Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity", "TE: trailers"),
    *("Content-Length: -1", "Content-Length: 1e3", "Content-Length: 99999999999999999999"),
    *("Content-Length: 5, 5", "Content-Length: +5", "Content-Length:", "Host: two", ": no name"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: chunked, chunked", "Transfer-Encoding:"),
    *(
        "Content-Length: 5",
        "Content-Length: 0",
        "Host: h g",
        "Host:",
        "Transfer-Encoding : chunked",
    ),
    *("X-Folded: a\r\n b", "No colon", "Nul: \0", "Name : space", "Proxy-Connection: close"),
]
JUNK = [
    commands.MAGIC_V2,
    commands.MAGIC_V2 + commands.identify({"client_id": "lost"}) + commands.sub("t", "c"),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(range(160)),
    b"\r\n" * 2000,
    b"GET " + b"/" * 200_000,
    b"\0" * 100_000,
]

heads = st.builds(
    lambda method, target, version, headers, count: "\r\n".join(
        [f"{method} {target} {version}", "Host: f", *headers, *("X: y" for _ in range(count))]
    ).encode("latin-1"),
    st.sampled_from(METHODS),
    pick(TARGETS),
    st.sampled_from(["HTTP/1.1"] * 20 + ["HTTP/1.0", "HTTP/0.9", "HTTP/2", "HTTP/11.1", ""]),
    st.one_of(st.just([]), st.just([]), st.lists(pick(HEADERS), max_size=2)),
    st.sampled_from([0] * 20 + [99, 120, 5000]),
)
bodies = st.one_of(
    st.just(b""),
    st.binary(max_size=200),
    st.sampled_from([b"\0\0\0\1\0\0\0\1x", b"\0\0\0\2\0\0\0\1x\x7f\xff\xff\xff", b"a\nb\n\nc"]),
    st.integers(1, 3_000).map(lambda count: b"line\n" * count),
)


def whole(head: bytes, body: bytes, claimed: int) -> bytes:
    """A request with a Content-Length that is wrong by ``claimed``."""
    size = b"\r\nContent-Length: %d\r\n\r\n" % (len(body) + claimed)
    return head + size + body


def chunked(head: bytes, chunks: list[tuple[bytes, bytes]], end: bytes) -> bytes:
    """A chunked request; each chunk comes with the size that is claimed for it."""
    parts = [head, b"\r\nTransfer-Encoding: chunked\r\n\r\n"]
    parts += [size + b"\r\n" + chunk + b"\r\n" for size, chunk in chunks]
    return b"".join([*parts, end])


def chunk_sizes(chunk: bytes) -> st.SearchStrategy[tuple[bytes, bytes]]:
    true = b"%x" % len(chunk)
    wrong = [true] * 6 + [b"", b"-1", b"zz", b"0", b"f" * 17, true + b";ext=1", b"%x" % (1 << 33)]
    return st.tuples(st.sampled_from(wrong), st.just(chunk))


wholes = st.builds(whole, heads, bodies, st.sampled_from([0] * 15 + [-1, 1, -100, 1000, 1 << 40]))
chunkeds = st.builds(
    chunked,
    heads,
    st.lists(st.binary(min_size=1, max_size=100).flatmap(chunk_sizes), max_size=4),
    st.sampled_from([b"0\r\n\r\n", b"0\r\nTrailer: t\r\n\r\n", b"0\r\n", b"", b"\r\n\r\n"]),
)
bare = heads.map(lambda head: head + b"\r\n\r\n")
requests = st.one_of(wholes, wholes, chunkeds, bare)
pipelined = st.lists(requests, min_size=2, max_size=8).map(b"".join)
junk = st.one_of(st.binary(max_size=3000), pick(JUNK))
parts = st.one_of(requests, mutated(requests), mutated(requests), mutated(pipelined), junk)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("http-fuzz"), "--max-body-size=1000000") as daemon:
        yield daemon
        assert daemon.terminate() == 0
        assert "Traceback" not in daemon.log, daemon.log


def test_any_bytes_are_answered_properly_or_not_at_all(nsqd: Nsqd) -> None:
    with undisturbed(nsqd) as watch:
        watch.fuzz(
            conversations(parts), lambda steps: judge(converse(nsqd.http_port, steps).received)
        )
    assert watch.count > FUZZ_SECONDS * 5


def judge(received: bytes) -> None:
    """Every answer begins like one; nothing is answered with our mistake."""
    if not received:
        return
    assert re.match(rb"HTTP/1\.[01] ", received), received[:200]
    statuses = {int(status) for status in re.findall(rb"(?m)^HTTP/1\.[01] (\d+) ", received)}
    assert statuses <= STATUSES, received


# JSON

DEEP = 200_000
DEEP_LIST, DEEP_OBJECT = b"[" * DEEP, b'{"a":' * DEEP
NASTY = [
    *(b"", b"[", b"{", b"nul", b"null", b"true", b"1", b'""', b"[]", b"{}", b"\xff\xfe", b"NaN"),
    *(DEEP_LIST, DEEP_LIST + b"]" * DEEP, DEEP_OBJECT, DEEP_OBJECT + b"1" + b"}" * DEEP),
    *(b"[" * 900 + b"]" * 900, b"9" * 5000, b"-" * 100, b'"' + b"\\" * 999),
    b'{"topics":' + DEEP_LIST,
]
VALUES = [
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"Infinity", b"1" * 4400, b"18446744073709551617"),
    *(b'""', b'"t"', b'"\\ud800"', b'"\\u0000"', b'"' + b"x" * 70_000 + b'"'),
    *(b"[]", b"{}", b"[[]]", b"[{}]", b"[" * 900 + b"]" * 900, DEEP_LIST),
    *(b'{"t":{}}', b'{"a":' * 900 + b"1" + b"}" * 900, b'{"t":null}', b'{"\\ud800":{}}'),
    *(b'{"t":{"index":1,"instance":"0"}}', b'{"t":{"after":-1}}'),
]
FIELDS = {
    "POST /log/ends": ["topics", "channel", "wait_ms"],
    "POST /channel/commit": ["topics", "channel", "progress"],
    "POST /staging/seal": ["query", "batch", "partition", "attempt", "parts", "count", "crc"],
    "POST /staging/decide": ["query", "batch", "winners"],
    "POST /staging/publish": ["query", "batch", "winners", "stagings"],
    "POST /staging/abort": ["query", "batch", "stagings"],
    "POST /staging/coordinator": ["query", "node", "address"],
    "POST /staging/give-up": ["query", "batch", "stagings"],
    "POST /staging/reset": ["query", "published"],
    "PUT /config/nsqlookupd_tcp_addresses": [],
    "PUT /config/log_level": [],
}


def put(port: int, line: str, body: bytes) -> int:
    """The status of one request."""
    head = f"{line} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return status(port, head.encode() + body)


@pytest.mark.parametrize("line", FIELDS)
def test_nasty_json_is_refused(nsqd: Nsqd, line: str) -> None:
    fields = FIELDS[line]
    bodies = list(NASTY)
    for name in fields:
        others = b"".join(b',"%s":"t"' % other.encode() for other in fields if other != name)
        bodies += [b'{"%s":%s%s}' % (name.encode(), value, others) for value in VALUES]
    for body in bodies:
        answered = put(nsqd.http_port, line, body)
        assert answered in (400, 404, 409, 413) or (answered == 200 and line[:3] == "PUT"), body[
            :99
        ]


def test_every_route_that_takes_json_is_tried(nsqd: Nsqd) -> None:
    paths = re.findall(r"`((?:POST|PUT) /[a-z/-]+)", (DOCS / "http.md").read_text())
    assert {path for path in paths if "/staging/" in path} <= {*FIELDS, "PUT /staging/part"}


# Slow ones


class Slow:
    """Many peers who take their time, driven by one thread until told to stop."""

    def __init__(self, port: int, data: bytes, count: int, *, interval_s: float) -> None:
        self.socks = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(count)]
        self._data = data
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        """One byte for each of them at a time, over and over."""
        at = 0
        while not self._stopped.wait(self._interval_s):
            for sock in self.socks:
                try:
                    sock.sendall(self._data[at : at + 1])
                except OSError:
                    continue  # the daemon has given it up
            at = (at + 1) % len(self._data)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10)
        for sock in self.socks:
            sock.close()


def test_slow_senders_hold_nobody_up(nsqd: Nsqd) -> None:
    """A byte at a time, stalled in the head, stalled in the body, and some that never read."""
    with undisturbed(nsqd, max(FUZZ_SECONDS, HEAD_TIMEOUT_S + 2)) as watch:
        pub = b"POST /pub?topic=slow HTTP/1.1\r\nHost: s\r\nContent-Length: 10\r\n\r\n0123456789"
        byte_wise = Slow(nsqd.http_port, pub, 80, interval_s=0.01)
        stalled_heads = silent_after(nsqd, 60, b"GET /ping HTTP/1.1\r\nHost: ")
        stalled_bodies = silent_after(nsqd, 60, pub[:-5])
        strangers = silent_after(nsqd, 60, b"")
        deaf = silent_after(nsqd, 10, b"GET /stats HTTP/1.1\r\nHost: d\r\n\r\n" * 5000)
        time.sleep(max(0.0, watch.deadline_s - time.monotonic()))
        # Those that stopped in a head have been told so by now; the others may still finish.
        assert {answer_of(sock) for sock in stalled_heads} == {b"HTTP/1.1 408"}
        for sock in stalled_bodies:
            sock.sendall(pub[-5:])
        assert {answer_of(sock) for sock in stalled_bodies} == {b"HTTP/1.1 200"}
        byte_wise.stop()
        for sock in (*stalled_heads, *stalled_bodies, *strangers, *deaf):
            sock.close()


def silent_after(nsqd: Nsqd, count: int, data: bytes) -> list[socket.socket]:
    """Peers that send ``data``, as much of it as is taken, and then nothing."""
    socks = []
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", nsqd.http_port), 5)
        sock.settimeout(0.05)
        # The daemon does not read on before its answers are read.
        with contextlib.suppress(TimeoutError):
            sock.sendall(data)
        socks.append(sock)
    return socks


def answer_of(sock: socket.socket) -> bytes:
    """The beginning of what was answered."""
    sock.settimeout(5)
    return sock.recv(12)
