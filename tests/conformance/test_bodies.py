"""Bodies that are announced and half sent: they take a bounded share of memory, and nobody's turn.

With 16 MiB for all of them, and bodies of 4 MiB.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.support.client import Client
from tests.support.daemon import RESPONSE, Nsqd

BUDGET = 16 << 20
BODY = 4 << 20
MESSAGE = BODY // 2
COUNT = 50
OPTIONS = (f"--max-unfinished-body-bytes={BUDGET}", f"--max-msg-size={BODY}")
MAGIC = commands.MAGIC_V2
CHUNK = b"%x\r\n" % (1 << 16) + bytes(1 << 16) + b"\r\n"

MPUB_BODY = struct.pack(">i", 2) + 2 * (struct.pack(">i", MESSAGE - 8) + bytes(MESSAGE - 8))
IDENTIFY_OFF = commands.identify({"heartbeat_interval": -1})
HALF = {
    "PUB": MAGIC + b"PUB half\n" + struct.pack(">i", BODY) + bytes(BODY - 100),
    "MPUB": MAGIC + b"MPUB half\n" + struct.pack(">i", len(MPUB_BODY)) + MPUB_BODY[:-100],
    "DPUB": MAGIC + IDENTIFY_OFF + b"DPUB half 5\n" + struct.pack(">i", BODY) + bytes(BODY - 100),
    "HTTP": b"POST /mpub?topic=half HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % BODY
    + bytes(BODY - 100),
    "chunked": b"POST /mpub?topic=half HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    + CHUNK * 63,
}


def rss(nsqd: Nsqd) -> int:
    """Bytes of memory the daemon has."""
    fields = Path(f"/proc/{nsqd.pid}/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1]) * 1024


@contextmanager
def half_sent(nsqd: Nsqd, kind: str, count: int = COUNT) -> Iterator[list[socket.socket]]:
    """Peers that send all but the end of a body, as far as they are read."""
    port = nsqd.http_port if kind in ("HTTP", "chunked") else nsqd.tcp_port
    stopped = threading.Event()

    def push(sock: socket.socket) -> None:
        left = memoryview(HALF[kind])
        sock.settimeout(0.2)
        while left and not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                try:
                    left = left[sock.send(left[: 1 << 16]) :]
                except ConnectionError:
                    return

    with ExitStack() as stack:
        socks = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            for _ in range(count)
        ]
        threads = [threading.Thread(target=push, args=(sock,)) for sock in socks]
        for thread in threads:
            thread.start()
        try:
            yield socks
        finally:
            stopped.set()
            for thread in threads:
                thread.join(10)


@pytest.mark.parametrize("kind", HALF)
def test_halves_of_bodies_take_little_memory(tmp_path: Path, kind: str) -> None:
    """200 MiB are announced, and nearly all of it would be sent."""
    with Nsqd(tmp_path, *OPTIONS) as nsqd:
        nsqd.post("/pub?topic=whole", bytes(BODY))
        before = rss(nsqd)
        with half_sent(nsqd, kind):
            deadline_s = time.monotonic() + 3
            while time.monotonic() < deadline_s:
                grown = rss(nsqd) - before
                assert grown < 6 * BUDGET, grown
                # Small ones are not concerned.
                begin_s = time.monotonic()
                assert nsqd.post("/pub?topic=whole", b"m").text == "OK"
                with Client.of(nsqd) as producer:
                    producer.pub("whole", b"m")
                assert time.monotonic() - begin_s < 2
        assert nsqd.get("/ping").text == "OK"
        assert "Traceback" not in nsqd.log, nsqd.log


@pytest.mark.parametrize("kind", ["MPUB", "HTTP"])
def test_whole_bodies_get_their_turn_among_halves(tmp_path: Path, kind: str) -> None:
    with Nsqd(tmp_path, *OPTIONS) as nsqd, half_sent(nsqd, kind, 10), Client.of(nsqd) as producer:
        assert nsqd.post("/pub?topic=whole", bytes(BODY)).text == "OK"
        producer.pub("whole", bytes(BODY))


def test_a_body_larger_than_the_budget_gets_here(tmp_path: Path) -> None:
    """Several of them, over both ports, each in its turn."""
    with Nsqd(tmp_path, "--max-unfinished-body-bytes=1000") as nsqd:
        threads = []
        results: list[object] = []

        def over_http() -> None:
            results.append(nsqd.post("/mpub?topic=t", bytes(1 << 20)).text)

        def over_tcp() -> None:
            with Client.of(nsqd) as producer:
                producer.mpub("t", [bytes(1 << 20)] * 3)
            results.append("OK")

        for work in (over_http, over_tcp) * 4:
            threads.append(threading.Thread(target=work))
            threads[-1].start()
        for thread in threads:
            thread.join(60)
        assert results == ["OK"] * 8


def test_a_slow_body_arrives_though_heartbeats_are_quick(tmp_path: Path) -> None:
    """As long as it comes at all; nobody else waits for it."""
    with Nsqd(tmp_path) as nsqd, nsqd.connect() as raw:
        assert raw.command(commands.identify({"heartbeat_interval": 1000})) == (RESPONSE, b"OK")
        body = bytes(60_000)
        raw.send(b"PUB slow\n" + struct.pack(">i", len(body)))
        for at in range(0, len(body), 10_000):
            raw.send(body[at : at + 10_000])
            time.sleep(0.5)
        frame = raw.frame()
        while frame == (RESPONSE, b"_heartbeat_"):
            frame = raw.frame()
        assert frame == (RESPONSE, b"OK")
