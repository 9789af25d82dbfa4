"""nsqd as a process: opens the data path, listens, serves, and ends cleanly.

Start:  lock and recover the data path, then listen, then run.
End:    stop accepting, close the clients, write down all there is, unlock; exit 0 in seconds.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import stat
import sys
from pathlib import Path

import uvloop

from penstock.engine.broker import Broker
from penstock.engine.clock import Clock
from penstock.engine.memory import Memory
from penstock.engine.opening import open_broker
from penstock.engine.options import Options
from penstock.engine.ticket import Ticket
from penstock.errors import PenstockError
from penstock.server.http import HttpServer
from penstock.server.http_api import NsqdApi
from penstock.server.loop import LoopTurns, ThreadDisk
from penstock.server.tcp import Connection
from penstock.storage.datapath import DataPath
from penstock.storage.files import Files
from penstock.version import version_line

log = logging.getLogger(__name__)

# How long the end may take before the process leaves anyway; what was answered OK is in the
# logs by then in any case, only finishes of the last moment could be missing.
EXIT_TIMEOUT_S = 10.0
CLIENT_TIMEOUT_S = 0.5
BACKLOG = 1024


class Daemon:
    """One nsqd."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
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
        self._memory = Memory()
        self._api = NsqdApi(self.broker, self._memory)
        self._http = HttpServer(self._api.router)
        self._tcp: asyncio.Server | None = None
        self._stopped = asyncio.Event()

    async def serve(self) -> None:
        """Run until a signal says otherwise."""
        open_broker(self.broker)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        await self._listen()
        self._memory.start()
        self.broker.start()
        await self._stopped.wait()
        log.info("NSQ: stopping")
        await self._end()

    async def _listen(self) -> None:
        options = self._options
        self._tcp, self._api.tcp_port = await self._listen_tcp(options.tcp_address)
        if options.http_address:
            host, port = split_address(options.http_address)
            try:
                if port is None:
                    remove_stale_socket(host)
                    await self._http.listen_unix(host)
                    log.info("HTTP: listening on %s", host)
                else:
                    address = await self._http.listen(host, port)
                    self._api.http_port = address[1]
                    log.info("HTTP: listening on %s", join_address(*address))
            except OSError as error:
                raise listen_error(options.http_address, error) from error

    async def _listen_tcp(self, given: str) -> tuple[asyncio.Server, int]:
        host, port = split_address(given)
        try:
            if port is None:
                remove_stale_socket(host)
                server: asyncio.Server = await self._loop.create_unix_server(
                    self._connection, host, backlog=BACKLOG
                )
                log.info("TCP: listening on %s", host)
                return server, -1
            server = await self._loop.create_server(
                self._connection, host or None, port, reuse_address=True, backlog=BACKLOG
            )
        except OSError as error:
            raise listen_error(given, error) from error
        address = server.sockets[0].getsockname()[:2]
        log.info("TCP: listening on %s", join_address(*address))
        return server, address[1]

    def _connection(self) -> Connection:
        return Connection(self.broker, self._loop)

    async def _end(self) -> None:
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


def run(options: Options) -> int:
    """Serve until told to stop; return the exit code."""
    log.info("%s", version_line("nsqd"))
    log.info("ID: %d", options.node_id)
    # Requests and messages make no cycles; a collection of the old generation in between would
    # only walk every topic and channel.
    gc.freeze()
    # A disk thread in the middle of Python code gives way to the loop after this, not after 5 ms.
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(options))


async def _run(options: Options) -> int:
    path = options.data_path or "."
    if not Path(path).is_dir():
        log.critical("failed to instantiate nsqd - --data-path %s is not a folder", path)
        return 1
    daemon = Daemon(options, asyncio.get_running_loop())
    try:
        await daemon.serve()
    except (PenstockError, OSError) as error:
        log.critical("failed to instantiate nsqd - %s", error)
        return 1
    return 0


def split_address(address: str) -> tuple[str, int | None]:
    """(host, port) of ``host:port``; (path, None) of a unix socket's path."""
    if "/" in address:
        return address, None
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise PenstockError(f"listen ({address}) failed - address must be host:port or a path")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_error(address: str, error: OSError) -> PenstockError:
    return PenstockError(f"listen ({address}) failed - {error.strerror or error}")


def remove_stale_socket(path: str) -> None:
    """A socket file left by a killed process would make bind fail."""
    file = Path(path)
    if file.exists() and stat.S_ISSOCK(file.stat().st_mode):
        file.unlink()
