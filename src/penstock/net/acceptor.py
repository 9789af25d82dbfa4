"""Accepts connections on a socket, within the limits of admission.py.

    accept -> a slot? -> connection_made               plain
                      -> handshake -> connection_made  TLS
           -> no: refused and closed

Rule 1: a connection has its slot from accept() on.  asyncio's own servers accept everything in the
        backlog before they call the first protocol, and behind TLS they call a protocol only when
        the handshake is over.
Rule 2: one turn accepts a bounded number: that many may be evicted and not closed yet.
Rule 3: when the process has no descriptor left, accepting pauses: the socket stays readable, and
        accept() would fail in a busy loop.
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

from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S, Admission, Quota
from penstock.net.descriptors import accept_count_max

log = logging.getLogger(__name__)

BACKLOG = 1024
# TCP, HTTP and HTTPS may all accept in the same turn.
LISTENER_COUNT = 3
PAUSE_S = 0.1
# Failures to accept are logged no more often than this.
LOG_SPACING_S = 10.0

# What is sent to a peer for which there is no slot.
Refusal = Callable[[], bytes]
# Gives a connection its socket.  Raises OSError if that is gone already.
Serve = Callable[[Any, socket.socket], None]

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Accepted:
    """What a listener and admission need of a connection; its protocol inherits it.

    A protocol adds the properties of ``admission.Evictable``.
    """

    # While the TLS handshake runs.
    handshake: asyncio.Task[None] | None = None
    # Maybe before connection_made is called, which then has to abort.
    evicted = False

    def abort(self) -> None:
        """Close at once, without sending what is written."""
        raise NotImplementedError

    def evict(self) -> None:
        """Close at once, to make room for another."""
        self.evicted = True
        if self.handshake is not None:
            self.handshake.cancel()
        else:
            self.abort()


class Listener:
    """One listening socket.

    ``connection`` makes asyncio protocols that are ``Accepted`` too; with ``serve``, connections
    that have a socket instead of a transport.
    """

    def __init__(
        self,
        sock: socket.socket,
        connection: Callable[[], Any],
        admission: Admission,
        quota: Quota,
        *,
        tls: SSLContext | None = None,
        refusal: Refusal = bytes,
        serve: Serve | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._connection = connection
        self._admission = admission
        self._quota = quota
        self._tls = tls
        self._refusal = refusal
        self._serve = serve
        self._accept_count_max = max(1, accept_count_max(admission.count_max) // LISTENER_COUNT)
        self._timer: asyncio.TimerHandle | None = None
        self._log_after_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._start()

    @property
    def address(self) -> Any:
        """The address the socket is bound to."""
        return self._sock.getsockname()

    def close(self) -> None:
        """Accept no more; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _start(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(self._accept_count_max):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                # Any other error is about this one connection, which is gone.
                if error.errno in _EXHAUSTED:
                    self._pause(error)
                    break
                continue
            self._admit(sock)
        report = self._quota.report(self._loop.time())
        if report is not None:
            log.warning("%s", report)

    def _admit(self, sock: socket.socket) -> None:
        connection = self._connection()
        if not self._admission.admit(self._quota, connection, self._loop.time()):
            _refuse(sock, self._refusal())
            return
        if self._serve is not None:
            try:
                self._serve(connection, sock)
            except OSError as error:
                self._admission.remove(connection)
                sock.close()
                self._log_lost(error)
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
            self._admission.remove(connection)
            self._log_lost(error)
        finally:
            connection.handshake = None

    def _log_lost(self, error: OSError) -> None:
        log.debug("%s: a connection was lost before it was set up: %s", self._quota.name, error)

    def _pause(self, error: OSError) -> None:
        now_s = self._loop.time()
        if now_s >= self._log_after_s:
            self._log_after_s = now_s + LOG_SPACING_S
            log.warning("%s: cannot accept connections: %s", self._quota.name, error)
        self._admission.evict_any(now_s)
        self._loop.remove_reader(self._sock)
        self._timer = self._loop.call_later(PAUSE_S, self._start)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to all addresses of ``host``, "" for those of the machine.  Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    socks: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError:
                continue  # the resolver returns a family that the kernel does not support
            socks.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if not port and len(socks) > 1:
                # All addresses share the port that the kernel chose for the first.
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


def _refuse(sock: socket.socket, refusal: bytes) -> None:
    with suppress(OSError):
        if refusal:
            sock.setblocking(False)
            sock.send(refusal)
            sock.shutdown(socket.SHUT_WR)
            # Closing a socket with unread data resets the connection, and the refusal is lost.
            sock.recv(64 * 1024)
    sock.close()
