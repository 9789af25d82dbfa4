"""The nsqadmin process: samples, listens and responds until a signal stops it.

It stores nothing on disk: the history starts empty with the process.
"""

from __future__ import annotations

import asyncio
import gc
import logging

from penstock.admin.api import Api
from penstock.admin.app import Admin
from penstock.admin.config_api import ConfigApi
from penstock.admin.graphite import Graphite
from penstock.admin.hosts import Hosts
from penstock.admin.options import AdminOptions
from penstock.admin.pages import Pages
from penstock.errors import OptionError
from penstock.net.http_message import TEXT, Response
from penstock.net.http_router import Route, Router
from penstock.net.http_server import HttpServer
from penstock.net.listeners import listen_http, run_daemon, stop_signals
from penstock.wire.address import split_address

log = logging.getLogger(__name__)

_PING_OK = Response(200, b"OK", (TEXT,))
NOTIFY_SECONDS_MAX = 2.0
# A sample creates and drops 100,000 objects, none of them in a cycle: with Python's default
# thresholds garbage collection takes a fifth of the CPU time.
COLLECT_COUNTS = (100_000, 50, 100)


class AdminDaemon:
    """One nsqadmin."""

    def __init__(self, options: AdminOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self.admin = Admin(options)
        self.router = router_of(self.admin)
        self._http = HttpServer(self.router)
        hosts = Hosts(options)
        self._http.gate = lambda secure: hosts.gate

    async def serve(self) -> None:
        """Run until a signal stops the process."""
        stopped = stop_signals(self._loop)
        gc.set_threshold(*COLLECT_COUNTS)
        options = self._options
        await resolve(self._loop, options.nsqlookupd_http_addresses, "--lookupd-http-address")
        await resolve(self._loop, options.nsqd_http_addresses, "--nsqd-http-address")
        work = [
            asyncio.create_task(self.admin.sampler.run()),
            asyncio.create_task(self.admin.notifier.run()),
        ]
        await listen_http(self._http, options.http_address)
        await stopped.wait()
        log.info("NSQADMIN: stopping")
        for task in work:
            task.cancel()
        await self._http.close(grace_s=1.0)
        await self.admin.tasks.close()
        await self.admin.upstream.close()
        await self.admin.notifier.drain(NOTIFY_SECONDS_MAX)
        log.info("NSQADMIN: bye")


def router_of(admin: Admin) -> Router:
    """All routes of an nsqadmin."""
    router = Router()
    router.add("GET", admin.url("/ping"), Route(lambda request: _PING_OK))
    for part in (Api(admin), Graphite(admin), ConfigApi(admin), Pages(admin)):
        part.add_routes(router)
    return router


async def resolve(loop: asyncio.AbstractEventLoop, addresses: tuple[str, ...], flag: str) -> None:
    """Raise OptionError if an address is invalid or cannot be resolved."""
    for address in addresses:
        host, port = split_address(address)
        if port is None or not host:
            raise OptionError(f'{flag} "{address}" must be host:port')
        try:
            await loop.getaddrinfo(host, port)
        except OSError as error:
            raise OptionError(f"failed to resolve {flag} ({address}) - {error.strerror}") from None


def run(options: AdminOptions) -> int:
    """Serve until a signal; return the exit code."""
    return run_daemon("nsqadmin", _serve(options))


async def _serve(options: AdminOptions) -> None:
    await AdminDaemon(options, asyncio.get_running_loop()).serve()
