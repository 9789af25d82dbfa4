"""R29: clients that send without a pause, and never read, do not stop the others."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from pathlib import Path

from tests.support.client import Client
from tests.support.daemon import Nsqd

COUNT = 200
SECONDS = 4.0
# Of commands that are answered: what a client does not read fills up.
PACKET = b"PUB flooded\n\0\0\0\x64" + b"x" * 100
FLOOD = PACKET * 600


def test_two_hundred_that_never_read(tmp_path: Path) -> None:
    with Nsqd(tmp_path, "--client-write-timeout=2s") as nsqd, contextlib.ExitStack() as stack:
        paced = stack.enter_context(Client.of(nsqd))
        paced.pub("paced", b"x")
        socks = [_flooder(stack, nsqd) for _ in range(COUNT)]
        latencies_s = _flood_beside(socks, paced)
        # Counted rather than timed: on a busy machine all is slow.
        assert len(latencies_s) > 20
        assert max(latencies_s) < 1.5, sorted(latencies_s)[-5:]
        assert nsqd.get("/ping").text == "OK"
        published = nsqd.stats("&topic=flooded")["topics"][0]["message_count"]
        assert published > COUNT
        rss = int((Path("/proc") / str(nsqd.pid) / "statm").read_text().split()[1]) * 4096
        assert rss < 600 << 20
    assert "unexpected" not in nsqd.log


def _flooder(stack: contextlib.ExitStack, nsqd: Nsqd) -> socket.socket:
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", nsqd.tcp_port), 10))
    # Little room, so that replies soon have none.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(b"  V2")
    sock.setblocking(False)
    return sock


def _flood_beside(socks: list[socket.socket], paced: Client) -> list[float]:
    """Send what the sockets take; return how long each publish of ``paced`` took."""
    latencies_s: list[float] = []
    end_s = time.monotonic() + SECONDS
    while time.monotonic() < end_s:
        _, writable, _ = select.select([], socks, [], 0)
        for sock in writable:
            try:
                sock.send(FLOOD)
            except OSError as error:
                # nsqd disconnects who does not read.
                assert error.errno in (errno.EAGAIN, errno.EPIPE, errno.ECONNRESET), error
                if error.errno != errno.EAGAIN:
                    socks.remove(sock)
        started_s = time.monotonic()
        paced.pub("paced", b"x")
        latencies_s.append(time.monotonic() - started_s)
    return latencies_s
