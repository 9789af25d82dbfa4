"""Servers that take a message and say that they have it: ours, Go's nsqd, Redis, and a floor.

Redis is Debian's, with a stream and its append-only file, synced every second as ours is by
default, or before every answer.  The floor makes the same system calls and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.broker import Broker, Make

START_SECONDS_MAX = 10.0
REDIS = "redis-server"


class Exchange(NamedTuple):
    """What a client sends, and how it knows that a reply is whole."""

    greeting: bytes
    request: bytes
    reply_size: int = 0
    reply_lines: int = 0


class Peer(Protocol):
    """A server under load."""

    name: str

    @property
    def pid(self) -> int: ...
    @property
    def port(self) -> int: ...
    def publish(self, body: bytes) -> Exchange: ...


class NsqPeer:
    """nsqd, ours or Go's."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.name = broker.make.name

    @property
    def pid(self) -> int:
        return self.broker.pid

    @property
    def port(self) -> int:
        return self.broker.tcp_port

    def publish(self, body: bytes) -> Exchange:
        return Exchange(b"  V2", pub(body), reply_size=10)


def mpub(body: bytes, count: int) -> bytes:
    bodies = count.to_bytes(4, "big") + (len(body).to_bytes(4, "big") + body) * count
    return b"MPUB bench\n" + len(bodies).to_bytes(4, "big") + bodies


def pub(body: bytes) -> bytes:
    return b"PUB bench\n" + len(body).to_bytes(4, "big") + body


class Process:
    """A server that is not an nsqd, on a port that is free."""

    def __init__(self, name: str, port: int, child: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.port = port
        self._child = child

    @property
    def pid(self) -> int:
        return self._child.pid

    def publish(self, body: bytes) -> Exchange:
        if self.name == "floor":
            return Exchange(b"  V2", pub(body), reply_size=10)
        return Exchange(b"", resp(b"XADD", b"bench", b"*", b"b", body), reply_lines=2)

    def stop(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()


def resp(*parts: bytes) -> bytes:
    """A command in Redis' protocol."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


@contextlib.contextmanager
def nsqd(make: Make, folder: Path, *flags: str) -> Iterator[NsqPeer]:
    """An nsqd with the topic ``bench`` and its channel ``bench``."""
    with Broker(make, folder, *flags) as broker:
        broker.create("bench", "bench")
        yield NsqPeer(broker)


@contextlib.contextmanager
def redis(folder: Path, *, synced: bool) -> Iterator[Process]:
    port = free_port()
    program = shutil.which(REDIS)
    assert program is not None
    flags = {
        "--port": str(port),
        "--bind": "127.0.0.1",
        "--dir": str(folder),
        "--save": "",
        "--appendonly": "yes",
        "--appendfsync": "always" if synced else "everysec",
        # Rewriting the file in the middle of a run would count for messages of before.
        "--auto-aof-rewrite-percentage": "0",
        "--loglevel": "warning",
    }
    command = [program, *(word for pair in flags.items() for word in pair)]
    with running("redis", port, command) as peer:
        yield peer


@contextlib.contextmanager
def floor(folder: Path, *, synced: bool) -> Iterator[Process]:
    port = free_port()
    arguments = [str(port), str(folder / "log"), "synced" if synced else "plain"]
    with running("floor", port, [sys.executable, "-m", "bench.peers", *arguments]) as peer:
        yield peer


@contextlib.contextmanager
def running(name: str, port: int, command: list[str]) -> Iterator[Process]:
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peer = Process(name, port, child)
    try:
        await_port(port, child)
        yield peer
    finally:
        peer.stop()


def await_port(port: int, child: subprocess.Popen[bytes]) -> None:
    give_up_s = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if child.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError(f"{child.args!r} did not start") from None
            time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_floor(port: int, path: str, *, synced: bool) -> None:
    from bench.compiled import native

    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    native().serve_floor(listener.fileno(), file, synced)


if __name__ == "__main__":
    serve_floor(int(sys.argv[1]), sys.argv[2], synced=sys.argv[3] == "synced")
