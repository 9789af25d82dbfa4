"""nsqlookupd as a process: listens, answers, and ends when it is told to.

It keeps nothing on disk: after a start the nsqds connect and tell everything again.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.engine.clock import Clock
from penstock.engine.options import hostname
from penstock.lookupd.http import LookupdApi
from penstock.lookupd.options import LookupdOptions
from penstock.lookupd.registry import Registry
from penstock.lookupd.tcp import LookupdConnection
from penstock.server.debug import Debug
from penstock.server.http import HttpServer
from penstock.server.listening import listen_http, listen_tcp, run_daemon, stop_signals
from penstock.version import NSQ_VERSION
from penstock.wire.lookup import Identity

log = logging.getLogger(__name__)


class LookupdDaemon:
    """One nsqlookupd."""

    def __init__(self, options: LookupdOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self._clock = Clock()
        self._registry = Registry(
            options.inactive_producer_timeout_ns, options.tombstone_lifetime_ns
        )
        api = LookupdApi(self._registry, self._clock)
        Debug().add_pages(api.router)
        self._http = HttpServer(api.router)
        self._connections: set[LookupdConnection] = set()
        self._tcp_port = -1
        self._http_port = -1

    async def serve(self) -> None:
        """Run until a signal says otherwise."""
        stopped = stop_signals(self._loop)
        tcp, self._tcp_port = await listen_tcp(
            self._loop, self._connection, self._options.tcp_address
        )
        self._http_port = await listen_http(self._http, self._options.http_address)
        await stopped.wait()
        log.info("NSQLOOKUPD: stopping")
        tcp.close()
        for connection in list(self._connections):
            connection.close()
        await self._http.close(grace_s=1.0)
        log.info("NSQLOOKUPD: bye")

    def _connection(self) -> LookupdConnection:
        return LookupdConnection(
            self._registry,
            self._identity,
            self._clock.monotonic_ns,
            self._connections,
            self._loop,
        )

    def _identity(self) -> Identity:
        return Identity(
            broadcast_address=self._options.broadcast_address,
            hostname=hostname(),
            tcp_port=self._tcp_port,
            http_port=self._http_port,
            version=NSQ_VERSION,
        )


def run(options: LookupdOptions) -> int:
    """Serve until told to stop; return the exit code."""
    return run_daemon("nsqlookupd", _serve(options))


async def _serve(options: LookupdOptions) -> None:
    await LookupdDaemon(options, asyncio.get_running_loop()).serve()
