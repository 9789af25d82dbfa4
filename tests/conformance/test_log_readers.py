"""Readers by index that take nothing, and crowds that wait: others are served all the same."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.client import Client
from tests.support.daemon import Nsqd, Reply
from tests.support.waits import eventually

SIZE = 24 << 20
READ_SIZE = 16 << 20
STALLED = 40


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("readers")) as daemon:
        with Client.of(daemon) as producer:
            for _ in range(SIZE // (4 << 20)):
                producer.mpub("t", [bytes(1 << 20)] * 4)
        assert eventually(lambda: synced(daemon))
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def synced(nsqd: Nsqd) -> bool:
    place = nsqd.get("/log?topic=t").json
    return bool(place["synced_end"] == place["end"])


def target(nsqd: Nsqd, raw: bool) -> str:
    place = nsqd.get("/log?topic=t").json
    return (
        f"/log/read?topic=t&instance={place['instance']}&start={place['first']}"
        f"&end={place['synced_end']}&size_max={READ_SIZE}&raw={'true' if raw else 'false'}"
    )


@contextmanager
def stalled(nsqd: Nsqd, asked: str) -> Iterator[list[socket.socket]]:
    """Readers that ask and take nothing of the answer."""
    with ExitStack() as stack:
        socks = []
        for _ in range(STALLED):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(20)
            sock.connect(("127.0.0.1", nsqd.http_port))
            sock.sendall(f"GET {asked} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            socks.append(sock)
        yield socks


@pytest.mark.parametrize("raw", [False, True])
def test_readers_that_take_nothing_stop_nobody_and_are_cut(nsqd: Nsqd, raw: bool) -> None:
    asked = target(nsqd, raw)
    with stalled(nsqd, asked) as socks:
        begin_s = time.monotonic()
        for way in (raw, not raw):
            read = nsqd.get(target(nsqd, way))
            assert read.status == 200 and len(read.body) >= 1 << 20
        # Two of them and a sweep, at most; they took a minute.
        assert time.monotonic() - begin_s < 7
        # Who takes nothing is cut; the last of them have not had their turn yet.
        time.sleep(max(0.0, begin_s + 8 - time.monotonic()))
        for sock in socks[:5]:
            assert not whole(sock)
    assert nsqd.get(asked).status == 200


def whole(sock: socket.socket) -> bool:
    """Whether all of an answer comes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(1 << 20):
            received += chunk
    size = int(received.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or 1)
    return len(received) >= size


def test_a_slow_reader_that_takes_something_is_not_cut(nsqd: Nsqd) -> None:
    with socket.create_connection(("127.0.0.1", nsqd.http_port), 20) as sock:
        sock.sendall(f"GET {target(nsqd, False)} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        received = sock.recv(65536)
        size = int(received.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        begin_s = time.monotonic()
        total = len(received)
        while total < size:
            total += len(sock.recv(1 << 20))
            if time.monotonic() - begin_s < 8:
                time.sleep(0.5)
        assert total >= size


def test_a_crowd_that_waits_refuses_nobody(nsqd: Nsqd) -> None:
    place = nsqd.get("/log?topic=t").json
    known = {"t": {"instance": place["instance"], "after": place["end"]}}
    body = json.dumps({"topics": known, "wait_ms": 30000}).encode()
    poll = b"POST /log/ends HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with ExitStack() as stack:
        for _ in range(20):
            sock = socket.create_connection(("127.0.0.1", nsqd.http_port), 10)
            stack.enter_context(sock).sendall(poll * 60)

        def ends(wait_ms: int) -> Reply:
            return nsqd.post(
                "/log/ends", json.dumps({"topics": known, "wait_ms": wait_ms}).encode()
            )

        begin_s = time.monotonic()
        answer = ends(1000)
        assert (answer.status, answer.json["topics"]["t"]["end"]) == (200, place["end"])
        assert time.monotonic() - begin_s < 5
        assert nsqd.get(target(nsqd, False)).status == 200
