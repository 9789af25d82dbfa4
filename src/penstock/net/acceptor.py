"""Accepts connections on a socket, as far as the doors let them in.

    accept -> a place? -> connection_made              plain
                       -> handshake -> connection_made  TLS
           -> no: refused and closed

Rule 1: a connection has its place from accept() on.  asyncio's own servers accept whatever is
        there, up to the backlog, before a protocol hears of the first one, and a protocol behind
        TLS hears nothing before the handshake is over.
Rule 2: one turn accepts a bounded number: that many may be evicted and not closed yet.
Rule 3: when the process has no descriptor left, accepting pauses: accept() would fail at once,
        again and again, because the socket stays readable.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext
from typing import Any

from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S, Door, Doors
from penstock.net.descriptors import accept_count_max

log = logging.getLogger(__name__)

BACKLOG = 1024
# TCP, HTTP and HTTPS may all accept in the same turn.
LISTENER_COUNT = 3
PAUSE_S = 0.1
# How often it is logged that no connection can be accepted.
LOG_SPACING_S = 10.0

# What to tell a peer for which there is no place.
Refusal = Callable[[], bytes]

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Visitor:
    """The side of a connection that its listener and the doors see; its protocol inherits it."""

    # While TLS is being agreed upon.
    handshake: asyncio.Task[None] | None = None
    # Evicted, maybe before connection_made was called; that aborts then.
    unwanted = False

    @property
    def spoke(self) -> bool:
        """Whether a whole command or request has come."""
        raise NotImplementedError

    @property
    def idle_since_s(self) -> float:
        """Since when it could be closed without harm; ``inf``: it cannot."""
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def evict(self) -> None:
        """Close at once, to make room for another."""
        self.unwanted = True
        if self.handshake is not None:
            self.handshake.cancel()
        else:
            self.abort()


class Listener:
    """One listening socket.  ``connection`` makes a Visitor that is an asyncio protocol too."""

    def __init__(
        self,
        sock: socket.socket,
        connection: Callable[[], Any],
        doors: Doors,
        door: Door,
        *,
        tls: SSLContext | None = None,
        refusal: Refusal = bytes,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._connection = connection
        self._doors = doors
        self._door = door
        self._tls = tls
        self._refusal = refusal
        self._accept_count_max = max(1, accept_count_max(doors.count_max) // LISTENER_COUNT)
        self._timer: asyncio.TimerHandle | None = None
        self._log_after_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._watch()

    @property
    def address(self) -> Any:
        """What the socket is bound to."""
        return self._sock.getsockname()

    def close(self) -> None:
        """Accept no more; a second time changes nothing."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(self._accept_count_max):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                # Everything else concerns the one connection, which is gone.
                if error.errno in _EXHAUSTED:
                    self._pause(error)
                    break
                continue
            self._admit(sock)
        report = self._door.report(self._loop.time())
        if report is not None:
            log.warning("%s", report)

    def _admit(self, sock: socket.socket) -> None:
        connection = self._connection()
        if not self._doors.enter(self._door, connection, self._loop.time()):
            _turn_away(sock, self._refusal())
            return
        sock.setblocking(False)
        task = self._loop.create_task(self._begin(sock, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._tls is not None:
            connection.handshake = task

    async def _begin(self, sock: socket.socket, connection: Any) -> None:
        timeout_s = None if self._tls is None else FIRST_COMMAND_TIMEOUT_S
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:
            self._doors.leave(connection)
            log.debug("%s: a connection ended before it began: %s", self._door.name, error)
        finally:
            connection.handshake = None

    def _pause(self, error: OSError) -> None:
        now_s = self._loop.time()
        if now_s >= self._log_after_s:
            self._log_after_s = now_s + LOG_SPACING_S
            log.warning("%s: cannot accept connections: %s", self._door.name, error)
        self._doors.relieve(now_s)
        self._loop.remove_reader(self._sock)
        self._timer = self._loop.call_later(PAUSE_S, self._watch)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to all addresses of ``host``, "" for all there are.  Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    socks: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError:
                continue  # the machine has addresses of a kind that its kernel does not know
            socks.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if not port and len(socks) > 1:
                # All addresses have the port that the first was given.
                address = (address[0], socks[0].getsockname()[1], *address[2:])
            sock.bind(address)
    except OSError:
        for sock in socks:
            sock.close()
        raise
    if not socks:
        raise OSError(errno.EADDRNOTAVAIL, "no address to listen on")
    return socks


def bind_unix(path: str) -> socket.socket:
    """A socket bound to ``path``.  Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    return sock


def _turn_away(sock: socket.socket, refusal: bytes) -> None:
    with suppress(OSError):
        if refusal:
            sock.setblocking(False)
            sock.send(refusal)
            sock.shutdown(socket.SHUT_WR)
            # What is left unread when a socket is closed resets it, and the refusal is lost.
            sock.recv(64 * 1024)
    sock.close()
