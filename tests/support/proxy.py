"""A TCP proxy that simulates faults of the network.

    with Proxy(nsqd.tcp_port) as proxy:
        connect to proxy.address
        proxy.cut()                 # every connection is reset
        proxy.stall()               # bytes stop, connections stay; proxy.resume()
        proxy.hold_answer(b"POST /x")   # a request that begins so passes, but no response after it
        proxy.cut_after(5000)       # each connection is reset after about that many bytes
        proxy.refuse()              # new connections are reset; proxy.accept()
    Proxy(port, piece=3)            # bytes pass three at a time

Each direction of a connection has its own thread.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from types import TracebackType
from typing import Self

RECEIVE_SIZE = 1 << 16


class Proxy:
    """Forwards bytes between its own port and ``port`` on loopback."""

    def __init__(self, port: int, *, piece: int = 0, seed: int = 0) -> None:
        self.port = port
        self.piece = piece
        self.accepted = 0
        self._choose = random.Random(seed)
        self.holding = threading.Event()
        self._hold_answer = b""
        self._cut_size = 0
        self._refusing = False
        self._passing = threading.Event()
        self._passing.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._refusing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._passing.set()
        self.cut()

    def cut(self) -> None:
        """Reset all connections; bytes in transit are lost."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for sock in sockets:
            reset(sock)

    def cut_after(self, size: int) -> None:
        """Reset every later connection after up to ``size`` bytes; 0: never."""
        self._cut_size = size

    def hold_answer(self, beginning: bytes) -> None:
        """Forward a request with this beginning, and after it nothing in the other direction.

        ``holding`` is set when it has arrived.
        """
        self._hold_answer = beginning

    def stall(self) -> None:
        self._passing.clear()

    def resume(self) -> None:
        self._passing.set()

    def refuse(self) -> None:
        self._refusing = True
        self.cut()

    def accept(self) -> None:
        self._refusing = False

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                if self._refusing:
                    reset(near)
                    continue
                far = socket.create_connection(("127.0.0.1", self.port), 5)
            except ConnectionRefusedError:
                reset(near)
                continue
            except OSError:
                return
            self.accepted += 1
            for sock in (near, far):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {near, far}
            size = self._choose.randint(1, self._cut_size) if self._cut_size else 0
            for source, target in ((near, far), (far, near)):
                threading.Thread(
                    target=self._pass, args=(source, target, size, source is near), daemon=True
                ).start()

    def _pass(
        self, source: socket.socket, target: socket.socket, size_max: int, is_request: bool
    ) -> None:
        passed = 0
        try:
            while data := source.recv(RECEIVE_SIZE):
                if is_request and self._hold_answer and data.startswith(self._hold_answer):
                    self.holding.set()
                if not is_request and self.holding.is_set():
                    continue
                self._passing.wait()
                if size_max and passed + len(data) >= size_max:
                    target.sendall(data[: size_max - passed])
                    reset(source)
                    reset(target)
                    return
                passed += len(data)
                step = self.piece or len(data)
                for at in range(0, len(data), step):
                    target.sendall(data[at : at + step])
            target.shutdown(socket.SHUT_WR)
        except OSError:
            reset(source)
            reset(target)


def reset(sock: socket.socket) -> None:
    """Close with RST, so that the peer is notified immediately."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # A thread may be blocked in recv: shutdown wakes it, close alone does not.
        sock.shutdown(socket.SHUT_RD)
    sock.close()
