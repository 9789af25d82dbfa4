"""The compiled turn of nsqd without an event loop: the test says what is received, and when it is.

    engine = TurnEngine(seed=7)
    peer = engine.connect()
    peer.send(b"  V2PUB t\\n\\0\\0\\0\\1x")
    engine.settle()                       # turns of the poller, disk work, timers, in any order
    assert peer.take() == [(0, b"OK")]

Client, poller, writer and channels are nsqd's own; sockets are pairs of which the test has the
other end, and clock and disk are those of ``Engine``.
"""

from __future__ import annotations

import random
import select
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.net.admission import Admission
from penstock.net.body_budget import BodyBudget
from penstock.net.lookout import Lookout
from penstock.net.poller import Poller
from penstock.nsqd.client import Client
from penstock.nsqd.clients import Clients
from penstock.nsqd.security import Security
from penstock.nsqd.services import Services
from tests.support.engine import TURN_COUNT_MAX, Engine, ManualTurns, StrictSupervisor

HEARTBEAT = b"_heartbeat_"


class Handle:
    """A call that can be cancelled until it is made."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._cancelled = False

    def run(self) -> None:
        if not self._cancelled:
            self._call()

    def cancel(self) -> None:
        self._cancelled = True


class ManualLoop:
    """What clients and the poller use of an event loop."""

    def __init__(self, engine: Engine, turns: ManualTurns) -> None:
        self._clock = engine.clock
        self._turns = turns
        self._readers: dict[int, Callable[[], None]] = {}

    def time(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> Handle:
        handle = Handle(partial(call, *arguments))
        self._turns.soon(handle.run)
        return handle

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> Handle:
        handle = Handle(partial(call, *arguments))
        self._turns.after(round(delay_s * 1e9), handle.run)
        return handle

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        self._readers[fd] = call

    def remove_reader(self, fd: int) -> None:
        del self._readers[fd]

    def readable(self) -> list[Callable[[], None]]:
        ready, _, _ = select.select(list(self._readers), [], [], 0)
        return [self._readers[fd] for fd in ready]


class TurnEngine(Engine):
    """An engine whose clients are nsqd's, with sockets."""

    def __init__(self, files: Any = None, seed: int = 0, **options: Any) -> None:
        self._order = random.Random(seed)
        self.peers: list[Peer] = []
        self._served: list[socket.socket] = []
        super().__init__(files, seed, **options)

    def seam(self) -> Any:
        self._loop = loop = ManualLoop(self, self.turns)
        self._poller = Poller(loop, Lookout(loop.call_soon), StrictSupervisor())
        return self._poller

    def start(self) -> None:
        super().start()
        self.services = Services(
            self.components,
            Clients(),
            self._loop,
            self._poller,
            Security(self.options),
            Admission(100),
            BodyBudget(1 << 20),
        )

    def connect(self) -> Peer:
        ours, theirs = socket.socketpair()
        client = Client(self.services)
        client.open(theirs)
        self._served.append(theirs)
        peer = Peer(ours)
        self.peers.append(peer)
        return peer

    def stop(self) -> None:
        """The process is killed: its sockets are closed by the kernel."""
        for peer in self.peers:
            peer.close()
        for sock in self._served:
            sock.close()
        self.peers.clear()
        self._served.clear()
        self._poller.close()

    def readable(self) -> list[Callable[[], None]]:
        """What the loop would call for descriptors that are readable."""
        return self._loop.readable()

    def settle(self) -> None:
        for _ in range(TURN_COUNT_MAX):
            steps: list[Callable[[], object]] = [*self.readable()]
            if self.turns.calls:
                steps.append(self.turns.calls.popleft)
            if self.disk.works:
                steps.append(self.disk.step)
            if steps:
                call = self._order.choice(steps)()
                if callable(call):
                    call()
            elif not self.turns.fire():
                return
        raise AssertionError("the engine never becomes idle")


class Peer:
    """The other end of a client's socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(False)
        self._received = b""
        self.closed = False

    def send_some(self, data: bytes) -> int:
        """What the kernel has room for; how many bytes that were."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def send(self, data: bytes) -> None:
        """All of it: the kernel has room for what a test sends."""
        while data:
            data = data[self._socket.send(data) :]

    def take(self) -> list[tuple[int, bytes]]:
        """The frames that have arrived: type and contents.  Heartbeats are answered."""
        try:
            while piece := self._socket.recv(1 << 16):
                self._received += piece
            self.closed = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.closed = True
        frames = []
        while len(self._received) >= 4:
            size, kind = struct.unpack_from(">iI", self._received.ljust(8, b"\0"))
            if len(self._received) < 4 + size:
                break
            contents = self._received[8 : 4 + size]
            self._received = self._received[4 + size :]
            if contents == HEARTBEAT and kind == 0:
                self.send(b"NOP\n")
            else:
                frames.append((kind, contents))
        return frames

    def close(self) -> None:
        self._socket.close()
        self.closed = True
