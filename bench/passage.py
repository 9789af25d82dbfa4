"""Latency from a publisher to a consumer at a steady rate, through a channel or a Redis stream.

Publisher and consumer are processes of their own.  A body begins with the time at which it is due,
and its latency counts from there: a publisher that falls behind makes it worse.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any, BinaryIO

from bench.peers import pub, resp

TIME = struct.Struct(">q")
BODY_SIZE = 200
# Of an NSQ frame: size, type, timestamp, attempts, id.
MESSAGE_HEADER = 34
FIRST_COUNT = 500  # not counted


def publish_paced(port: int, redis: bool, rate: int, seconds: float) -> None:
    """Publish ``rate`` messages a second, each awaiting its answer."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not redis:
            sock.sendall(b"  V2")
        start_ns = time.monotonic_ns() + 200_000_000
        for number in range(int(rate * seconds)):
            due_ns = start_ns + number * 1_000_000_000 // rate
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                if left_ns > 100_000:
                    time.sleep((left_ns - 60_000) / 1e9)
            body = TIME.pack(due_ns) + bytes(BODY_SIZE - TIME.size)
            sock.sendall(resp(b"XADD", b"bench", b"*", b"b", body) if redis else pub(body))
            sock.recv(1000)


def consume_timed(port: int, redis: bool, count: int) -> list[float]:
    """Receive ``count`` messages; return the latencies in microseconds."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(30)
        return (_read_stream if redis else _read_channel)(sock, count)[FIRST_COUNT:]


def _read_channel(sock: socket.socket, count: int) -> list[float]:
    sock.sendall(b"  V2SUB bench bench\nRDY 200\n")
    times_us: list[float] = []
    data = b""
    while len(times_us) < count:
        data += sock.recv(1 << 16)
        now_ns = time.monotonic_ns()
        finished = []
        while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
            frame, data = data[:size], data[size:]
            if frame[7] == 2:
                finished.append(b"FIN %b\n" % frame[18:34])
                (due_ns,) = TIME.unpack_from(frame, MESSAGE_HEADER)
                times_us.append((now_ns - due_ns) / 1e3)
        if finished:
            sock.sendall(b"".join(finished))
    return times_us


def _read_stream(sock: socket.socket, count: int) -> list[float]:
    last = b"$"
    times_us: list[float] = []
    reader = sock.makefile("rb")
    while len(times_us) < count:
        sock.sendall(resp(b"XREAD", b"COUNT", b"200", b"BLOCK", b"0", b"STREAMS", b"bench", last))
        found = _read_reply(reader)
        now_ns = time.monotonic_ns()
        for identity, (_, body) in found[0][1]:
            last = identity
            (due_ns,) = TIME.unpack_from(body)
            times_us.append((now_ns - due_ns) / 1e3)
    return times_us


def _read_reply(reader: BinaryIO) -> Any:
    """A reply in Redis' protocol: arrays and strings."""
    line = reader.readline()
    length = int(line[1:])
    if line[:1] == b"*":
        return [_read_reply(reader) for _ in range(length)]
    return reader.read(length + 2)[:-2]
