"""An HTTP/1.1 server on asyncio, for all daemons.

    bytes -> unread -> reader -> waiting -> begun -> bytes      always in order of arrival
                                            handler

A handler is a plain function and returns a Response, or a Pending whose ticket is settled later:
publishing costs no task and no future.  Pipelined requests begin in order, run concurrently, and
are answered in order.

Rule 1: everything is bounded: what the reader buffers, requests that wait or run, time in every
        state, connections.
Rule 2: a peer that does not read its answers is no longer served, and then disconnected.
Rule 3: whatever is not HTTP is answered with 400 and closed; an NSQ client on the wrong port fails
        at once.
Rule 4: one peer's requests block the loop for at most a slice of time; a thousand of them in one
        packet are interleaved with those of other peers.
Rule 5: when a request is answered before it is read to its end, only our side is closed at first:
        closing the socket would reset the connection, and the peer might lose the answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import field
from functools import partial
from ssl import SSLContext

from penstock.net.acceptor import Listener, Refusal, bind, bind_unix
from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S, Admission, Quota
from penstock.net.body_budget import RATE_MIN, TIMEOUT_S, BodyBudget
from penstock.net.http_connection import HttpConnection
from penstock.net.http_heads import KnownHeads
from penstock.net.http_message import Request, encode_response
from penstock.net.http_origins import Origins
from penstock.net.http_reader import ReadLimits, plain
from penstock.net.http_router import Gate, Router
from penstock.net.lookout import Lookout
from penstock.record import record


def _full() -> bytes:
    """The answer to a connection for which there is no slot."""
    return encode_response(plain(503), Request("", "", b""), keep_alive=False)


@record
class HttpLimits:
    """Rule 1 in numbers."""

    read: ReadLimits = field(default_factory=ReadLimits)
    begun_count_max: int = 64
    # Bytes of bodies whose requests have begun and are not answered; one is always allowed.
    begun_size_max: int = 8 * 1024 * 1024
    connection_count_max: int = 4096
    head_timeout_s: float = FIRST_COMMAND_TIMEOUT_S
    body_timeout_s: float = TIMEOUT_S
    body_rate_min: int = RATE_MIN  # bytes that extend the timeout by a second
    # Of all connections together; nsqd has a flag for it.
    unfinished_size_max: int = 64 * 1024 * 1024
    idle_timeout_s: float = 75.0
    write_timeout_s: float = 60.0
    # For answers that hold shared memory or descriptors until they are sent.
    stall_timeout_s: float = 5.0
    pressed_stall_timeout_s: float = 2.0  # while others wait for those
    linger_timeout_s: float = 2.0


class HttpServer:
    """Serves one router on any number of listeners."""

    def __init__(
        self,
        router: Router,
        limits: HttpLimits | None = None,
        admission: tuple[Admission, Quota] | None = None,
        bodies: BodyBudget | None = None,
    ) -> None:
        """``admission``, ``bodies``: limits that are shared with other servers."""
        self.router = router
        self.limits = limits or HttpLimits()
        if admission is None:
            own = Admission(self.limits.connection_count_max)
            admission = own, own.add_quota("HTTP")
        self.admission, self.quota = admission
        self.bodies = BodyBudget(self.limits.unfinished_size_max) if bodies is None else bodies
        self.connections: set[HttpConnection] = set()
        self.known_heads = KnownHeads()
        self.request_counts: dict[int, int] = {}  # by status of the answer
        # Makes the gate of a connection; the argument is whether it uses TLS.
        self.gate: Callable[[bool], Gate | None] | None = None
        self.origins: Origins | None = None
        # Returns whether others wait for the memory or descriptors that answers hold.
        self.pressed: Callable[[], bool] | None = None
        self.stall_timeout_s = self.limits.stall_timeout_s
        self.lookout: Lookout | None = None
        self.closing = False
        self.stopping = False  # requests that change something are refused
        # The time of the last sweep, which is precise enough for deadlines.
        self.now_s = 0.0
        self._listeners: list[Listener] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None

    async def listen(self, host: str, port: int, ssl: SSLContext | None = None) -> tuple[str, int]:
        """Accept on a TCP address; return the real one."""
        self.start_sweeping()
        first = len(self._listeners)
        for sock in await bind(host, port):
            # During a TLS handshake a peer could not read a refusal.
            self._listen(sock, ssl, _full if ssl is None else bytes)
        address: tuple[str, int] = self._listeners[first].address[:2]
        return address

    async def listen_unix(self, path: str) -> None:
        """Accept on a unix socket."""
        self.start_sweeping()
        self._listen(bind_unix(path), None, _full)

    def _listen(self, sock: socket.socket, tls: SSLContext | None, refusal: Refusal) -> None:
        limits = self.admission, self.quota
        make = partial(HttpConnection, self)
        self._listeners.append(Listener(sock, make, *limits, tls=tls, refusal=refusal))

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop accepting, answer what was received, and close everything after ``grace_s``."""
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
        self.admission.remove(connection)
        if not self.connections and self._empty is not None:
            self._empty.set()

    def start_sweeping(self) -> None:
        """Check deadlines from now on."""
        if self._sweep_timer is None:
            self._sweep(asyncio.get_running_loop())

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check the deadlines of all connections, instead of a timer for each request."""
        self.now_s = loop.time()
        pressed = self.pressed is not None and self.pressed()
        limits = self.limits
        self.stall_timeout_s = limits.pressed_stall_timeout_s if pressed else limits.stall_timeout_s
        for connection in list(self.connections):
            connection.expire(self.now_s)
        self.bodies.sweep(self.now_s)
        shortest_s = min(limits.head_timeout_s, limits.idle_timeout_s, limits.linger_timeout_s)
        self._sweep_timer = loop.call_later(min(1.0, shortest_s / 4), self._sweep, loop)
