"""nsqd as a process: opens the data path, listens, serves, and exits cleanly.

Start:  lock and recover the data path, then listen, then run.
End:    stop accepting, close the clients, save all state, unlock, within seconds.  The exit code
        is 0 if everything was written, else 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import Clock
from penstock.core.malloc import keep_freed_memory
from penstock.core.ticket import Ticket
from penstock.engine.components import Components
from penstock.engine.context import Context, Supervisor
from penstock.engine.options import SETTINGS, Options
from penstock.engine.recovery import open_data_path
from penstock.engine.stats.memory import Memory
from penstock.errors import PenstockError
from penstock.net import live_options
from penstock.net.admission import Admission, tcp_and_http
from penstock.net.body_budget import BodyBudget
from penstock.net.descriptors import open_files_limit, share_out
from penstock.net.http_origins import Origins
from penstock.net.http_server import HttpServer
from penstock.net.listeners import (
    Listeners,
    listen_http,
    listen_tcp,
    run_daemon,
    stop_signals,
)
from penstock.net.lookout import Lookout
from penstock.net.poller import Poller
from penstock.nsqd.client import Client
from penstock.nsqd.clients import Clients
from penstock.nsqd.disk_threads import ThreadDisk
from penstock.nsqd.garbage import GarbageCollection
from penstock.nsqd.http_api import NsqdApi
from penstock.nsqd.http_dead import DeadApi
from penstock.nsqd.http_drain import DrainApi
from penstock.nsqd.http_log import LogApi
from penstock.nsqd.http_moves import MoveApi
from penstock.nsqd.http_patterns import PatternApi
from penstock.nsqd.http_peek import PeekApi
from penstock.nsqd.http_policy import PolicyApi
from penstock.nsqd.http_staging import StagingApi
from penstock.nsqd.monitoring import Monitoring
from penstock.nsqd.registration import Registration
from penstock.nsqd.security import Security
from penstock.nsqd.services import Services
from penstock.settings.daemon import hostname
from penstock.storage.datapath import DataPath
from penstock.storage.files import Files
from penstock.storage.native_threads import NativeThreads
from penstock.version import NSQ_VERSION

if TYPE_CHECKING:
    from penstock.wire.lookup import Identity

log = logging.getLogger(__name__)

# How long the shutdown may take before the process exits anyway; acknowledged messages are in the
# logs by then, only the last finishes could be missing.
EXIT_TIMEOUT_S = 10.0
CLIENT_TIMEOUT_S = 0.5
# How long unfinished publications may delay the start; after that they continue in the background.
START_TIMEOUT_S = 10.0

# Returns the options that a start would use now; called at SIGHUP.
Reader = Callable[[], Options] | None


class Daemon:
    """One nsqd."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop, read: Reader) -> None:
        self._options = options
        self._loop = loop
        self._read = read
        shares = share_out(open_files_limit(), _outgoing_count(options))
        self._native_threads = NativeThreads()
        self._files = Files(shares.files, native_threads=self._native_threads)
        self._disk = ThreadDisk(loop)
        self._supervisor = Supervisor()
        self._lookout = Lookout(loop.call_soon)
        self._poller = Poller(loop, self._lookout, self._supervisor, options.busy_poll)
        self._poller.watch(self._native_threads.fd, self._native_threads.drain)
        components = self._components = Components(
            Context(
                options,
                DataPath(self._files, options.data_path or "."),
                self._files,
                self._disk,
                self._poller,
                Clock(),
                self._supervisor,
            )
        )
        components.reads.slice_count_max = shares.reads
        self._clients = Clients()
        self._security = Security(options)
        self._admission = Admission(shares.connections)
        self._tcp_quota, http_quota = tcp_and_http(self._admission)
        self._memory = Memory()
        self._api = NsqdApi(components, self._clients, self._memory)
        StagingApi(components).add_routes(self._api.router)
        PatternApi(components).add_routes(self._api.router)
        self._bodies = BodyBudget(options.max_unfinished_body_bytes)
        admission = self._admission, http_quota
        self._http = HttpServer(self._api.router, admission=admission, bodies=self._bodies)
        self._http.gate = self._security.gate
        self._http.pressed = lambda: components.reads.pressed
        self._http.origins = Origins(
            "nsqd",
            (hostname(), options.broadcast_address),
            options.allowed_hosts,
            checked=self._security.tokens is not None,
        )
        self._http.lookout = self._lookout
        LogApi(components).add_routes(self._api.router)
        PolicyApi(components).add_routes(self._api.router)
        PeekApi(components).add_routes(self._api.router)
        DrainApi(components, self._security).add_routes(self._api.router)
        dead = DeadApi(components)
        dead.add_routes(self._api.router)
        MoveApi(components, dead).add_routes(self._api.router)
        current, tls = (lambda: self._api.options), (lambda: self._security.lookupd_tls)
        self._registration = Registration(components, current, self._identity, tls)
        self._monitoring = Monitoring(
            components,
            self._clients,
            self._memory,
            self._api,
            self._http,
            self._tcp_quota,
            self._registration,
        )
        self._garbage_collection = GarbageCollection(components.broker, self._clients, loop)
        self._services = Services(
            components,
            self._clients,
            loop,
            self._poller,
            self._security,
            self._admission,
            self._bodies,
        )
        self._tcp: Listeners | None = None

    async def serve(self) -> int:
        """Run until a signal; return the exit code."""
        # Before anything else: a signal must not interrupt the start halfway.
        stopped = stop_signals(self._loop)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._components.drain.on_drained = stopped.set
        self._components.shared.hooks.on_draining = self._clients.forget_topics
        open_data_path(self._components)
        await self._complete()
        self._registration.attach()
        await self._listen()
        self._registration.start()
        self._monitoring.start()
        self._garbage_collection.start()
        self._components.start()
        await stopped.wait()
        log.info("NSQ: stopping")
        return await self._end()

    async def _complete(self) -> None:
        """Wait, for a limited time, until interrupted publications are complete (R19)."""
        try:
            recovered = self._components.staging.recovered
            await asyncio.wait_for(self._settled(recovered), START_TIMEOUT_S)
        except TimeoutError:
            log.warning("NSQ: batches are still being published")

    async def _listen(self) -> None:
        options, api = self._options, self._api
        self._http.start_sweeping()
        self._tcp, api.tcp_port = await listen_tcp(
            partial(Client, self._services),
            options.tcp_address,
            self._admission,
            self._tcp_quota,
            Client.open,
        )
        tls, https_port = self._security.tls, 0
        if tls is not None and options.https_address:
            https_port = await listen_http(self._http, options.https_address, tls, "HTTPS")
        self._security.refuse_plain_http(https_port)
        if options.http_address:
            api.http_port = await listen_http(self._http, options.http_address)

    def _identity(self) -> Identity:
        """The identity of this node that nsqlookupd distributes."""
        from penstock.wire.lookup import Identity

        options, api = self._api.options, self._api
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
            live_options.reload(self._api, self._read, SETTINGS)
        policies = self._components.policies
        if policies.path:
            policies.reload()
        if self._security.reloads:
            self._disk.submit(self._security.read_again, self._security.renew)

    async def _end(self) -> int:
        """Shut down and save everything, whatever a client or component does meanwhile."""
        guard = self._supervisor.guard
        # First, so that consumers are sent elsewhere.
        guard("nsqlookupd", self._registration.close)
        guard("monitoring", self._monitoring.stop)
        guard("garbage collection", self._garbage_collection.stop)
        if self._tcp is not None:
            guard("TCP", self._tcp.close)
        self._http.stopping = True
        guard("stop", self._components.refuse_all)
        await self._close_clients()
        try:
            await self._http.close(grace_s=1.0)
        except Exception:
            self._supervisor.defect("HTTP")
        try:
            saved = await asyncio.wait_for(self._save(), EXIT_TIMEOUT_S)
        except TimeoutError:
            log.error("NSQ: the disk did not respond in %g s, exiting", EXIT_TIMEOUT_S)
            log.info("NSQ: bye")
            # A disk thread is blocked, and the interpreter would wait for it.
            os._exit(1)
        if saved:
            guard("drain", self._components.drain.forget)
        self._poller.close()
        self._native_threads.close()
        self._files.close()
        log.info("NSQ: bye")
        return 0 if saved else 1

    async def _save(self) -> bool:
        """Write everything and end the disk threads; whether everything is written."""
        saved = await self._settled(self._components.broker.save_all())
        await self._loop.run_in_executor(None, self._disk.close)
        return saved

    async def _close_clients(self) -> None:
        """Send pending replies, then disconnect clients that have not closed."""
        for client in list(self._clients.connected):
            self._supervisor.guard("client", client.close)
        deadline_s = self._loop.time() + CLIENT_TIMEOUT_S
        while self._clients.connected and self._loop.time() < deadline_s:
            await asyncio.sleep(0.01)
        for client in list(self._clients.connected):
            self._supervisor.guard("client", client.abort)

    async def _settled(self, ticket: Ticket) -> bool:
        """Wait for ``ticket``; whether it succeeded."""
        done = asyncio.Event()
        ticket.add(lambda _: done.set())
        await done.wait()
        if ticket.error is not None:
            log.error("NSQ: not everything could be written: %s", ticket.error)
        return ticket.error is None


def _outgoing_count(options: Options) -> int:
    """The connections that nsqd itself may open: to nsqlookupds and auth servers."""
    count = 0
    if options.nsqlookupd_tcp_addresses:
        from penstock.nsqd import lookupds

        count += len(options.nsqlookupd_tcp_addresses) + lookupds.REQUEST_COUNT_MAX
    if options.auth_http_addresses:
        from penstock.nsqd import auth

        count += auth.REQUEST_COUNT_MAX
    return count


def run(options: Options, read: Reader = None) -> int:
    """Serve until a signal; return the exit code."""
    # A disk thread that runs Python code yields to the loop after this, not after 5 ms.
    sys.setswitchinterval(0.0005)
    keep_freed_memory()
    return run_daemon("nsqd", _serve(options, read))


async def _serve(options: Options, read: Reader) -> int:
    log.info("ID: %d", options.node_id)
    path = options.data_path or "."
    if not Path(path).is_dir():
        raise PenstockError(f"--data-path {path} is not a folder")
    return await Daemon(options, asyncio.get_running_loop(), read).serve()
