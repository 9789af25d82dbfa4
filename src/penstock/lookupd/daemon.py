"""nsqlookupd as a process: starts the listeners, serves, and stops on a signal.

It keeps nothing on disk: after a start the nsqds connect and register again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from penstock.clock import Clock
from penstock.lookupd.http import LookupdApi
from penstock.lookupd.metrics import Metrics
from penstock.lookupd.options import SETTINGS, LookupdOptions
from penstock.lookupd.registry import Limits, Registry
from penstock.lookupd.security import Security
from penstock.lookupd.tcp import LookupdConnection
from penstock.net import live_options
from penstock.net.admission import Admission, tcp_and_http
from penstock.net.debug import Debug
from penstock.net.descriptors import connection_count_max, open_files_limit
from penstock.net.http_origins import Origins
from penstock.net.http_router import Route
from penstock.net.http_server import HttpServer
from penstock.net.listeners import listen_http, listen_tcp, run_daemon, stop_signals
from penstock.settings.daemon import hostname
from penstock.version import NSQ_VERSION
from penstock.wire.lookup import Identity

log = logging.getLogger(__name__)

# Registrations allowed for all nsqds of an address, as a multiple of one nsqd's limit.
ADDRESS_SHARE = 5
# How often orphaned names are checked, and how many are forgotten in one turn of the loop: about
# 2 ms.
FORGET_INTERVAL_S = 1.0
FORGET_COUNT_MAX = 1000

# Reads the options again, on SIGHUP.
Reader = Callable[[], LookupdOptions]


class LookupdDaemon:
    """One nsqlookupd."""

    def __init__(
        self, options: LookupdOptions, loop: asyncio.AbstractEventLoop, read: Reader
    ) -> None:
        self.options = options
        self._loop = loop
        self._read = read
        self._security = Security(options)
        self._clock = Clock()
        self._registry = Registry(
            options.inactive_producer_timeout_ns,
            options.tombstone_lifetime_ns,
            options.forget_after_ns,
            Limits(
                registrations=options.max_registrations,
                registrations_of_address=ADDRESS_SHARE * options.max_registrations,
                nodes=options.max_nodes_per_address,
            ),
        )
        api = LookupdApi(self._registry, self._clock)
        Debug().add_pages(api.router)
        self._admission = Admission(connection_count_max(open_files_limit()))
        self._tcp_quota, http_quota = tcp_and_http(self._admission)
        metrics = Metrics(self._registry, self._clock, self._admission)
        api.router.add("GET", "/metrics", Route(metrics.serve))
        self._http = HttpServer(api.router, admission=(self._admission, http_quota))
        self._http.gate = self._security.gate
        own = (hostname(), options.broadcast_address)
        self._http.origins = Origins("nsqlookupd", own, options.allowed_hosts)
        self._connections: set[LookupdConnection] = set()
        self._tcp_port = -1
        self._http_port = -1
        self._forgotten_count = 0

    async def serve(self) -> None:
        """Run until a signal stops it."""
        stopped = stop_signals(self._loop)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        options, security = self.options, self._security
        tcp, self._tcp_port = await listen_tcp(
            self._connection, options.tcp_address, self._admission, self._tcp_quota
        )
        if security.tls is not None and options.https_address:
            security.https_port = await listen_http(
                self._http, options.https_address, security.tls, "HTTPS"
            )
        self._http_port = await listen_http(self._http, options.http_address)
        self._forget()
        await stopped.wait()
        log.info("NSQLOOKUPD: stopping")
        tcp.close()
        for connection in list(self._connections):
            connection.close()
        await self._http.close(grace_s=1.0)
        log.info("NSQLOOKUPD: bye")

    def _forget(self) -> None:
        """Forget orphaned names, in slices so that requests are served in between."""
        count = self._registry.forget(self._clock.monotonic_ns(), FORGET_COUNT_MAX)
        self._forgotten_count += count
        if count == FORGET_COUNT_MAX:
            self._loop.call_soon(self._forget)
            return
        if self._forgotten_count:
            log.info("DB: forgot %d names that no nsqd has", self._forgotten_count)
            self._forgotten_count = 0
        self._loop.call_later(FORGET_INTERVAL_S, self._forget)

    def _reload(self) -> None:
        live_options.reload(self, self._read, SETTINGS)
        self._security.renew()

    def _connection(self) -> LookupdConnection:
        return LookupdConnection(
            self._registry,
            self._security,
            self._identity,
            self._clock.monotonic_ns,
            self._connections,
            self._admission,
            self._loop,
        )

    def _identity(self) -> Identity:
        return Identity(
            broadcast_address=self.options.broadcast_address,
            hostname=hostname(),
            tcp_port=self._tcp_port,
            http_port=self._http_port,
            https_port=self._security.https_port,
            version=NSQ_VERSION,
        )


def run(options: LookupdOptions, read: Reader) -> int:
    """Serve until stopped; return the exit code."""
    return run_daemon("nsqlookupd", _serve(options, read))


async def _serve(options: LookupdOptions, read: Reader) -> None:
    await LookupdDaemon(options, asyncio.get_running_loop(), read).serve()
