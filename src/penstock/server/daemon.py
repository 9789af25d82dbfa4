"""nsqd as a process: opens the data path, listens, serves, and ends cleanly.

Start:  lock and recover the data path, then listen, then run.
End:    stop accepting, close the clients, write down all there is, unlock; exit 0 in seconds.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.core.heap import keep_freed_memory
from penstock.core.ticket import Ticket
from penstock.engine.broker import Broker
from penstock.engine.clock import Clock
from penstock.engine.memory import Memory
from penstock.engine.opening import open_broker
from penstock.engine.options import Options, hostname
from penstock.errors import PenstockError
from penstock.server import live
from penstock.server.collecting import Collecting
from penstock.server.http import HttpServer
from penstock.server.http_api import NsqdApi
from penstock.server.http_log import LogApi
from penstock.server.http_origins import Origins
from penstock.server.http_peek import PeekApi
from penstock.server.http_staging import StagingApi
from penstock.server.listening import listen_http, listen_tcp, run_daemon, stop_signals
from penstock.server.lookout import Lookout
from penstock.server.lookups import Lookups
from penstock.server.loop import LoopTurns, ThreadDisk
from penstock.server.security import Security
from penstock.server.tcp import Connection
from penstock.server.watching import Watching
from penstock.storage.datapath import DataPath
from penstock.storage.files import Files
from penstock.version import NSQ_VERSION
from penstock.wire.lookup import Identity

log = logging.getLogger(__name__)

# How long the end may take before the process leaves anyway; what was answered OK is in the
# logs by then in any case, only finishes of the last moment could be missing.
EXIT_TIMEOUT_S = 10.0
CLIENT_TIMEOUT_S = 0.5
# How long what was being published may hold up the start; after that it goes on beside the rest.
START_TIMEOUT_S = 10.0

# Gives the options as they would be at a start now; SIGHUP asks it.
Reader = Callable[[], Options] | None


class Daemon:
    """One nsqd."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop, read: Reader) -> None:
        self._options = options
        self._loop = loop
        self._read = read
        self._files = Files()
        self._disk = ThreadDisk(loop)
        self.broker = Broker(
            options,
            DataPath(self._files, options.data_path or "."),
            self._files,
            self._disk,
            LoopTurns(loop),
            Clock(),
        )
        self._security = Security(options)
        self._lookout = Lookout(loop.call_soon)
        self._memory = Memory()
        self._api = NsqdApi(self.broker, self._memory)
        StagingApi(self.broker).add_routes(self._api.router)
        self._http = HttpServer(self._api.router)
        self._http.gate = self._security.gate
        self._http.origins = Origins(
            "nsqd",
            (hostname(), options.broadcast_address),
            options.allowed_hosts,
            checked=self._security.tokens is not None,
        )
        self._http.lookout = self._lookout
        LogApi(self.broker).add_routes(self._api.router)
        PeekApi(self.broker).add_routes(self._api.router)
        self._watching = Watching(self.broker, self._memory, self._api, self._http)
        self._lookups = Lookups(self.broker, self._identity, lambda: self._security.lookupd_tls)
        self._collecting = Collecting(self.broker, loop)
        self._tcp: asyncio.Server | None = None

    async def serve(self) -> None:
        """Run until a signal says otherwise."""
        open_broker(self.broker)
        await self._complete()
        stopped = stop_signals(self._loop)
        if self._read is not None or self._security.reloads:
            self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._lookups.attach()
        await self._listen()
        self._lookups.start()
        self._watching.start()
        self._collecting.start()
        self.broker.start()
        await stopped.wait()
        log.info("NSQ: stopping")
        await self._end()

    async def _complete(self) -> None:
        """Batches that were being published are so before anybody looks, if that is soon (R19)."""
        try:
            await asyncio.wait_for(self._settled(self.broker.staging.recovered), START_TIMEOUT_S)
        except TimeoutError:
            log.warning("NSQ: batches are still being published")

    async def _listen(self) -> None:
        options, api = self._options, self._api
        self._tcp, api.tcp_port = await listen_tcp(
            self._loop, self._connection, options.tcp_address
        )
        tls, https_port = self._security.tls, 0
        if tls is not None and options.https_address:
            https_port = await listen_http(self._http, options.https_address, tls, "HTTPS")
        self._security.refuse_plain_http(https_port)
        if options.http_address:
            api.http_port = await listen_http(self._http, options.http_address)

    def _identity(self) -> Identity:
        """What nsqlookupd tells others of this node."""
        options, api = self.broker.options, self._api
        return Identity(
            broadcast_address=options.broadcast_address,
            hostname=hostname(),
            tcp_port=options.broadcast_tcp_port or max(0, api.tcp_port),
            http_port=options.broadcast_http_port or max(0, api.http_port),
            version=NSQ_VERSION,
            topology_zone=options.topology_zone,
            topology_region=options.topology_region,
        )

    def _reload(self) -> None:
        if self._read is not None:
            live.reload(self.broker, self._read)
        if self._security.reloads:
            self._disk.submit(self._security.read_again, self._security.renew)

    def _connection(self) -> Connection:
        self._watching.tcp_connection_count += 1
        return Connection(self.broker, self._loop, self._security, self._lookout)

    async def _end(self) -> None:
        # First of all, so that consumers look elsewhere.
        self._lookups.close()
        self._watching.stop()
        self._collecting.stop()
        if self._tcp is not None:
            self._tcp.close()
        self.broker.refuse_all()
        await self._close_clients()
        await self._http.close(grace_s=1.0)
        try:
            await asyncio.wait_for(self._settled(self.broker.save_all()), EXIT_TIMEOUT_S)
        except TimeoutError:
            log.warning("NSQ: the disk did not answer in %g s, leaving", EXIT_TIMEOUT_S)
        else:
            self._disk.close()
            self._files.close()
        log.info("NSQ: bye")

    async def _close_clients(self) -> None:
        """Let replies go out, then cut off whoever does not leave."""
        for client in list(self.broker.clients):
            client.close()
        deadline_s = self._loop.time() + CLIENT_TIMEOUT_S
        while self.broker.clients and self._loop.time() < deadline_s:
            await asyncio.sleep(0.01)
        for client in list(self.broker.clients):
            client.abort()

    async def _settled(self, ticket: Ticket) -> None:
        done = asyncio.Event()
        ticket.add(lambda _: done.set())
        await done.wait()
        if ticket.error is not None:
            log.error("NSQ: not everything could be written: %s", ticket.error)


def run(options: Options, read: Reader = None) -> int:
    """Serve until told to stop; return the exit code."""
    # A disk thread in the middle of Python code gives way to the loop after this, not after 5 ms.
    sys.setswitchinterval(0.0005)
    keep_freed_memory()
    return run_daemon("nsqd", _serve(options, read))


async def _serve(options: Options, read: Reader) -> None:
    log.info("ID: %d", options.node_id)
    path = options.data_path or "."
    if not Path(path).is_dir():
        raise PenstockError(f"--data-path {path} is not a folder")
    await Daemon(options, asyncio.get_running_loop(), read).serve()
