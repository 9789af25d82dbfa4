"""An HTTP/1.1 server on asyncio, for all daemons.

    bytes -> unread -> reader -> waiting -> begun -> bytes      in order of arrival throughout
                                            handler

A handler is a plain function and returns a Response, or a Pending whose ticket is settled later:
publishing costs no task and no future.  Pipelined requests run in order, side by side, and are
answered in order.

Rule 1: everything is bounded: what the reader keeps, exchanges that wait or run, time in every
        phase, connections.
Rule 2: a peer that does not read its answers stops being served, then being connected.
Rule 3: whatever is not HTTP is answered with 400 and closed; an NSQ client that took the wrong
        port finds out at once.
Rule 4: one peer's requests hold the loop for a slice of time; a thousand of them in one packet
        take turns with everybody else's.
Rule 5: when a request is answered before it is read to its end, the connection is closed slowly:
        closing at once would reset it, and the peer might never see the answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import field
from ssl import SSLContext

from penstock.net.acceptor import Listener, Refusal, bind, bind_unix
from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S, Door, Doors
from penstock.net.body_budget import RATE_MIN, TIMEOUT_S, Bodies
from penstock.net.http_connection import HttpConnection
from penstock.net.http_heads import KnownHeads
from penstock.net.http_message import Request, encode_response
from penstock.net.http_origins import Origins
from penstock.net.http_reader import ReadLimits, plain
from penstock.net.http_router import Gate, Router
from penstock.net.lookout import Lookout
from penstock.record import record


def _full() -> bytes:
    """What a connection is told for which there is no place."""
    return encode_response(plain(503), Request("", "", b""), keep_alive=False)


@record
class HttpLimits:
    """Rule 1 in numbers."""

    read: ReadLimits = field(default_factory=ReadLimits)
    begun_count_max: int = 64
    # Bodies of requests that are begun but not answered; one is always allowed.
    begun_size_max: int = 8 * 1024 * 1024
    connection_count_max: int = 4096
    head_timeout_s: float = FIRST_COMMAND_TIMEOUT_S
    body_timeout_s: float = TIMEOUT_S
    body_rate_min: int = RATE_MIN  # that many bytes earn the sender a second more
    # Of all connections; nsqd has a flag.
    unfinished_size_max: int = 64 * 1024 * 1024
    idle_timeout_s: float = 75.0
    write_timeout_s: float = 60.0
    # For answers that hold memory or descriptors of others until they are taken.
    stall_timeout_s: float = 5.0
    pressed_stall_timeout_s: float = 2.0  # while others wait for that
    linger_timeout_s: float = 2.0


class HttpServer:
    """Serves one router on any number of listeners."""

    def __init__(
        self,
        router: Router,
        limits: HttpLimits | None = None,
        places: tuple[Doors, Door] | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        """``places``, ``bodies``: where connections find a place and note bodies, if shared."""
        self.router = router
        self.limits = limits or HttpLimits()
        if places is None:
            doors = Doors(self.limits.connection_count_max)
            places = doors, doors.open("HTTP")
        self.doors, self.door = places
        self.bodies = Bodies(self.limits.unfinished_size_max) if bodies is None else bodies
        self.connections: set[HttpConnection] = set()
        self.known_heads = KnownHeads()
        self.request_counts: dict[int, int] = {}  # by status of the answer
        # Gives the gate of a connection, by whether it has TLS.
        self.gate: Callable[[bool], Gate | None] | None = None
        self.origins: Origins | None = None
        # Whether others wait for what answers hold.
        self.pressed: Callable[[], bool] | None = None
        self.stall_timeout_s = self.limits.stall_timeout_s
        self.lookout: Lookout | None = None
        self.closing = False
        self.stopping = False  # what changes something is refused from now on
        # Deadlines need no more precision than the sweep's, so its clock is the only one read.
        self.now_s = 0.0
        self._listeners: list[Listener] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None

    async def listen(self, host: str, port: int, ssl: SSLContext | None = None) -> tuple[str, int]:
        """Accept on a TCP address; return the real one."""
        self.start_sweeping()
        first = len(self._listeners)
        for sock in await bind(host, port):
            # In the midst of a TLS handshake nobody could read a refusal.
            self._listen(sock, ssl, _full if ssl is None else bytes)
        address: tuple[str, int] = self._listeners[first].address[:2]
        return address

    async def listen_unix(self, path: str) -> None:
        """Accept on a unix socket."""
        self.start_sweeping()
        self._listen(bind_unix(path), None, _full)

    def _listen(self, sock: socket.socket, tls: SSLContext | None, refusal: Refusal) -> None:
        places = self.doors, self.door
        listener = Listener(sock, self._connection, *places, tls=tls, refusal=refusal)
        self._listeners.append(listener)

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop accepting, answer what has begun for ``grace_s``, then close all connections."""
        self.closing = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            self._empty = asyncio.Event()
            try:
                async with asyncio.timeout(grace_s):
                    await self._empty.wait()
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    def forget(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        self.doors.leave(connection)
        if not self.connections and self._empty is not None:
            self._empty.set()

    def _connection(self) -> HttpConnection:
        return HttpConnection(self)

    def start_sweeping(self) -> None:
        """Look at deadlines from now on."""
        if self._sweep_timer is None:
            self._sweep(asyncio.get_running_loop())

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at every connection's deadline, instead of a timer for each request."""
        self.now_s = loop.time()
        pressed = self.pressed is not None and self.pressed()
        limits = self.limits
        self.stall_timeout_s = limits.pressed_stall_timeout_s if pressed else limits.stall_timeout_s
        for connection in list(self.connections):
            connection.expire(self.now_s)
        self.bodies.sweep(self.now_s)
        shortest_s = min(limits.head_timeout_s, limits.idle_timeout_s, limits.linger_timeout_s)
        self._sweep_timer = loop.call_later(min(1.0, shortest_s / 4), self._sweep, loop)
