"""Real nsqd and nsqlookupd processes, and raw connections to them.

    with Nsqd(tmp_path) as nsqd:                    # port 0s; the real ports are read from stderr
        with nsqd.connect() as raw:
            raw.send(b"PUB t\\n" + ...)
            assert raw.frame() == (RESPONSE, b"OK")
        nsqd.kill()                                 # SIGKILL
        nsqd.start()                                # same data path, same ports, same options

Every wait is bounded: a daemon that hangs fails the test with its log.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Long enough for a busy machine.
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
REPLY_SECONDS_MAX = 30.0
LOG_LINES_MAX = 100_000

RESPONSE, ERROR, MESSAGE = 0, 1, 2


@dataclass(frozen=True)
class Message:
    """A message of a frame of type 2."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


@dataclass(frozen=True)
class Reply:
    """An HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Daemon:
    """A process with a TCP and an HTTP port; not started until ``start()`` or ``with``."""

    program = ""
    magic = b""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.tcp_port = 0
        self.http_port = 0
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._changed = threading.Condition()
        self._stderr_open = False

    # Lifecycle

    def start(self, *options: str) -> Self:
        """Start and return when both ports are listening.

        ``options`` are added to those given at construction, for this run only.
        """
        assert self._process is None, "already running"
        self.lines = []
        self._stderr_open = True
        self._process = subprocess.Popen(
            [*self.command(), *self.options, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
        )
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()
        try:
            self.tcp_port = self._listening_port("TCP")
            self.http_port = self._listening_port("HTTP")
        except BaseException:
            self.kill()
            raise
        return self

    def command(self) -> list[str]:
        """The command line.  The ports are 0 at the first start and do not change after it."""
        return [
            str(Path(sys.executable).parent / self.program),
            f"--tcp-address=127.0.0.1:{self.tcp_port}",
            f"--http-address=127.0.0.1:{self.http_port}",
        ]

    def terminate(self, timeout_s: float = STOP_SECONDS_MAX) -> int:
        """Send SIGTERM, wait for the end and return the exit status."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> int:
        """Send SIGKILL, wait for the end and return the exit status."""
        return self._end(signal.SIGKILL, STOP_SECONDS_MAX)

    def restart(self, *options: str) -> Self:
        """Stop cleanly and start on the same data path and ports."""
        status = self.terminate()
        assert status == 0, f"exit status {status}\n{self.log}"
        return self.start(*options)

    def wait(self, timeout_s: float = STOP_SECONDS_MAX) -> int:
        """Wait for a process that ends by itself and return the exit status."""
        return self._end(None, timeout_s)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def https_port(self) -> int:
        """The HTTPS port, if the options name a certificate."""
        return self._listening_port("HTTPS")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process in any state; for clean-up."""
        if self._process is None:
            return
        try:
            self.terminate()
        except subprocess.TimeoutExpired:
            self.kill()

    def _end(self, number: int | None, timeout_s: float) -> int:
        process, reader = self._process, self._reader
        assert process is not None and reader is not None, "not running"
        if number is not None:
            process.send_signal(number)
        status = process.wait(timeout_s)
        reader.join(timeout_s)
        self._process = self._reader = None
        return status

    # Standard error

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for_log(self, pattern: str, timeout_s: float = REPLY_SECONDS_MAX) -> re.Match[str]:
        """Return the first match of ``pattern`` in a line logged since the start."""
        deadline_s = time.monotonic() + timeout_s
        seen = 0
        with self._changed:
            while True:
                for line in self.lines[seen:]:
                    if match := re.search(pattern, line):
                        return match
                seen = len(self.lines)
                left_s = deadline_s - time.monotonic()
                if not self._stderr_open or left_s <= 0:
                    raise AssertionError(f"{pattern!r} was not logged:\n{self.log}")
                self._changed.wait(left_s)

    def _listening_port(self, kind: str) -> int:
        match = self.wait_for_log(rf"\b{kind}: listening on \S+:(\d+)", START_SECONDS_MAX)
        return int(match[1])

    def _read_stderr(self) -> None:
        process = self._process
        assert process is not None and process.stderr is not None
        for line in process.stderr:
            with self._changed:
                if len(self.lines) < LOG_LINES_MAX:
                    self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._stderr_open = False
            self._changed.notify_all()
        process.stderr.close()

    # Requests

    @contextmanager
    def connect(self, magic: bytes | None = None) -> Iterator[Raw]:
        with socket.create_connection(("127.0.0.1", self.tcp_port), REPLY_SECONDS_MAX) as sock:
            raw = Raw(sock)
            raw.send(self.magic if magic is None else magic)
            yield raw

    def http(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Reply:
        """Make one HTTP request on a new connection, over HTTPS if ``tls`` is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, REPLY_SECONDS_MAX)
        if tls is not None:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.https_port, timeout=REPLY_SECONDS_MAX, context=tls
            )
        try:
            connection.request(method, target, body, headers or {})
            response = connection.getresponse()
            return Reply(response.status, response.msg, response.read())
        finally:
            connection.close()

    def get(self, target: str) -> Reply:
        return self.http("GET", target)

    def post(self, target: str, body: bytes = b"") -> Reply:
        return self.http("POST", target, body)

    def metric(self, name: str) -> float:
        """The value of ``name``, with its labels, in /metrics."""
        lines = self.get("/metrics").text.splitlines()
        (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
        return float(value)


class Nsqd(Daemon):
    """One nsqd on ``data_path``."""

    program = "nsqd"
    magic = b"  V2"

    def __init__(self, data_path: Path, *options: str) -> None:
        super().__init__(*options)
        self.data_path = data_path

    def start(self, *options: str) -> Self:
        self.data_path.mkdir(parents=True, exist_ok=True)
        return super().start(*options)

    def command(self) -> list[str]:
        program, *flags = super().command()
        return [program, f"--data-path={self.data_path}", *flags]

    def stats(self, query: str = "") -> Any:
        """The JSON of /stats."""
        reply = self.get(f"/stats?format=json{query}")
        assert reply.status == 200, reply
        return reply.json

    def channel(self, topic: str, channel: str) -> Any:
        """The statistics of one channel."""
        return self.stats(f"&topic={topic}&channel={channel}")["topics"][0]["channels"][0]


class LimitedNsqd(Nsqd):
    """An nsqd with a soft and a hard limit of open files."""

    def __init__(self, data_path: Path, soft: int, hard: int, *options: str) -> None:
        super().__init__(data_path, *options)
        self.limits = f"ulimit -Sn {soft} && ulimit -Hn {hard}"

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", f'{self.limits} && exec "$@"', "sh", *super().command()]


class Nsqlookupd(Daemon):
    """One nsqlookupd."""

    program = "nsqlookupd"
    magic = b"  V1"

    def __init__(self, *options: str, open_files: int = 0) -> None:
        """``open_files``: the limit of open files; 0: inherited."""
        super().__init__(*options)
        self.open_files = open_files

    def command(self) -> list[str]:
        words = [*super().command(), "--broadcast-address=127.0.0.1"]
        if not self.open_files:
            return words
        return ["/bin/sh", "-c", f'ulimit -n {self.open_files} && exec "$@"', "sh", *words]

    @property
    def tcp_address(self) -> str:
        return f"127.0.0.1:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self.http_port}"


class Raw:
    """A client that knows only frames, on a blocking socket with a timeout."""

    def __init__(self, sock: socket.socket, timeout_s: float = REPLY_SECONDS_MAX) -> None:
        self.sock = sock
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(timeout_s)

    def send(self, *parts: bytes) -> None:
        self.sock.sendall(b"".join(parts))

    def send_bytewise(self, data: bytes) -> None:
        """Send one packet for each byte (no Nagle), to test every split point.

        The peer may close before the end, after an error: the remainder is then not sent.
        """
        for at in range(len(data)):
            try:
                self.sock.sendall(data[at : at + 1])
            except (BrokenPipeError, ConnectionResetError):
                return

    def exactly(self, size: int) -> bytes:
        chunks = []
        while size:
            chunk = self.sock.recv(size)
            if not chunk:
                raise EOFError(f"closed with {size} bytes missing")
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def frame(self) -> tuple[int, bytes]:
        """The next frame's type and data, heartbeats included."""
        size, kind = struct.unpack(">iI", self.exactly(8))
        return kind, self.exactly(size - 4)

    def message(self) -> Message:
        """The next frame, which must be a message."""
        kind, data = self.frame()
        assert kind == MESSAGE, (kind, data)
        return _message(data)

    def receive(self) -> Message:
        """The next message; heartbeats before it are answered."""
        while True:
            kind, data = self.frame()
            if kind == MESSAGE:
                return _message(data)
            self.send(b"NOP\n")

    def command(self, *parts: bytes) -> tuple[int, bytes]:
        """Send a command and return the frame of its reply."""
        self.send(*parts)
        return self.frame()

    def subscribe(self, topic: str, channel: str = "c", ready_count: int = 100) -> None:
        assert self.command(f"SUB {topic} {channel}\n".encode()) == (RESPONSE, b"OK")
        self.send(b"RDY %d\n" % ready_count)

    def silent(self, seconds: float) -> bool:
        """Whether nothing arrives for ``seconds``."""
        before = self.sock.gettimeout()
        self.sock.settimeout(seconds)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
            return False
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(before)

    def closed(self) -> bool:
        """Whether the peer closes without sending anything more."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


def _message(data: bytes) -> Message:
    timestamp_ns, attempts, id = struct.unpack_from(">qH16s", data)
    return Message(timestamp_ns, attempts, id, data[26:])
