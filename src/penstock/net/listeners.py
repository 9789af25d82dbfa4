"""What every daemon does: listen, log the addresses, wait for a signal, exit.

TCP: listening on 127.0.0.1:4150        programs that start a daemon on port 0 read this line
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from ssl import SSLContext
from typing import Any

import uvloop

from penstock.errors import OptionError, PenstockError
from penstock.net.acceptor import Listener, Serve, bind, bind_unix
from penstock.net.admission import Admission, Quota
from penstock.net.http_server import HttpServer
from penstock.version import version_line
from penstock.wire.address import join_address, split_address

log = logging.getLogger(__name__)


def run_daemon(program: str, serve: Coroutine[Any, Any, int | None]) -> int:
    """Run ``serve`` on a loop of its own until it ends; return the process's exit code."""
    log.info("%s", version_line(program))
    # Requests and messages make no reference cycles, so a full garbage collection would only walk
    # all topics and channels.
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(serve) or 0
        except (PenstockError, OSError) as error:
            log.critical("failed to instantiate %s - %s", program, error)
            return 1


def stop_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


class Listeners:
    """All sockets of one address."""

    def __init__(self, listeners: list[Listener]) -> None:
        self._listeners = listeners

    def close(self) -> None:
        """Accept no more."""
        for listener in self._listeners:
            listener.close()


async def listen_tcp(
    make: Callable[[], Any],
    given: str,
    admission: Admission,
    quota: Quota,
    serve: Serve | None = None,
) -> tuple[Listeners, int]:
    """Accept connections on an address or a unix socket; return the port, -1 for a unix socket."""
    try:
        host, port = split_address(given)
        if port is None:
            remove_stale_socket(host)
            listeners = [Listener(bind_unix(host), make, admission, quota, serve=serve)]
            log.info("TCP: listening on %s", host)
            return Listeners(listeners), -1
        socks = await bind(host, port)
        listeners = [Listener(sock, make, admission, quota, serve=serve) for sock in socks]
    except (OSError, OptionError) as error:
        raise listen_error(given, error) from error
    address = listeners[0].address[:2]
    log.info("TCP: listening on %s", join_address(*address))
    return Listeners(listeners), address[1]


async def listen_http(
    http: HttpServer, given: str, ssl: SSLContext | None = None, name: str = "HTTP"
) -> int:
    """Serve ``http`` on an address or a unix socket; return the port, -1 for a unix socket."""
    try:
        host, port = split_address(given)
        if port is None:
            remove_stale_socket(host)
            await http.listen_unix(host)
            log.info("%s: listening on %s", name, host)
            return -1
        address = await http.listen(host, port, ssl)
    except (OSError, OptionError) as error:
        raise listen_error(given, error) from error
    log.info("%s: listening on %s", name, join_address(*address))
    return address[1]


def listen_error(address: str, error: OSError | OptionError) -> PenstockError:
    text = isinstance(error, OSError) and error.strerror
    return PenstockError(f"listen ({address}) failed - {text or error}")


def remove_stale_socket(path: str) -> None:
    """Remove the socket file of a process that was killed: it would make bind fail."""
    file = Path(path)
    if file.exists() and stat.S_ISSOCK(file.stat().st_mode):
        file.unlink()
