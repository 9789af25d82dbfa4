"""`nsqd --processes N`: N independent nsqds under one command, for machines with many cores.

    node           0         1         2
    TCP            4150      4250      4350      the given port + 100 * node; 0 stays 0
    HTTP           4151      4251      4351
    unix socket    a.sock    a.sock.1  a.sock.2
    data path      node-0    node-1    node-2    folders in the given one
    node id        id        id + 1    id + 2    modulo 1024
    log prefix     [nsqd-0]  [nsqd-1]  [nsqd-2]

The step is 100, because 10 or less collides with nsqlookupd (4160, 4161) and nsqadmin (4171).

Rule 1: a node that ends is restarted, after a delay that doubles while it keeps ending.
Rule 2: if a node cannot start at all (port in use, folder locked), all nodes end, as a single nsqd
        would.
Rule 3: SIGTERM and SIGINT end all nodes concurrently; SIGHUP is forwarded to each.
Rule 4: when N changes, folders with messages that no node serves are reported.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.cli.child import end, send, spawn, status_text
from penstock.cli.node_folders import folder_name, warn_left
from penstock.engine.options import Options
from penstock.errors import OptionError, PenstockError
from penstock.storage.files import Files
from penstock.version import version_line
from penstock.wire.address import join_address, split_address
from penstock.wire.ids import NODE_ID_COUNT

log = logging.getLogger(__name__)

PORT_STEP = 100

# nsqd ends within about 12 s even if its disk hangs.
STOP_SECONDS_MAX = 15.0

RESTART_WAIT_S = 0.25
RESTART_WAIT_MAX_S = 30.0
STEADY_S = 60.0  # after running this long, the delay starts from its minimum again

# A first run that ends with status 1 within this time could not start; later, it failed.
START_S = 10.0


def run_nodes(options: Options, flags: Sequence[str]) -> int:
    """Run the nodes until a signal; ``flags`` are those of the command line."""
    log.info("%s, %d nodes", version_line("nsqd"), options.processes)
    files = Files()
    try:
        commands = [["nsqd", *flags, *own] for own in node_flags(options)]
        make_folders(files, Path(options.data_path or "."), options.processes)
        return asyncio.run(Nodes(commands).serve())
    except (PenstockError, OSError) as error:
        log.critical("failed to instantiate nsqd - %s", error)
        return 1
    finally:
        files.close()


def node_flags(options: Options) -> list[list[str]]:
    """The flags that differ for each node, to be placed after all others."""
    taken: set[str] = set()
    result = []
    for node in range(options.processes):
        addresses = {
            "tcp-address": options.tcp_address,
            "http-address": options.http_address,
            "https-address": options.https_address,
        }
        own = {flag: shifted_address(given, node) for flag, given in addresses.items()}
        for flag, address in own.items():
            used = flag != "https-address" or options.tls_cert
            if not used or not address or address.endswith(":0"):
                continue
            if address in taken:
                raise OptionError(f"--processes: node {node} would also listen on {address}")
            taken.add(address)
        ports = {
            "broadcast-tcp-port": options.broadcast_tcp_port,
            "broadcast-http-port": options.broadcast_http_port,
        }
        own |= {flag: str(shifted_port(port, node)) for flag, port in ports.items()}
        own |= {
            "processes": "1",
            "data-path": str(Path(options.data_path or ".") / folder_name(node)),
            "node-id": str((options.node_id + node) % NODE_ID_COUNT),
            "log-prefix": numbered(options.log_prefix, node),
        }
        result.append([f"--{flag}={text}" for flag, text in own.items()])
    return result


def shifted_address(address: str, node: int) -> str:
    """The address of one node; port 0 (any) and an empty address do not change."""
    if not address:
        return address
    host, port = split_address(address)
    if port is None:
        return f"{address}.{node}" if node else address
    return join_address(host, shifted_port(port, node))


def shifted_port(port: int, node: int) -> int:
    if port and port + PORT_STEP * node > 65535:
        raise OptionError(f"--processes: node {node} would need port {port + PORT_STEP * node}")
    return port and port + PORT_STEP * node


def numbered(prefix: str, node: int) -> str:
    """``[nsqd] `` becomes ``[nsqd-0] ``."""
    name = prefix.rstrip("] ")
    return f"{name}-{node}{prefix[len(name) :]}"


def make_folders(files: Files, data_path: Path, count: int) -> None:
    """Lock the data path, check for messages of another number of nodes, create the folders."""
    if not data_path.is_dir():
        raise PenstockError(f"--data-path {data_path} is not a folder")
    files.lock(str(data_path))
    if (data_path / "nsqd.dat").exists() or (data_path / "penstock").exists():
        raise PenstockError(
            f"{data_path} contains the messages of a single nsqd: move its contents to"
            f" {data_path / folder_name(0)}, or choose another --data-path"
        )
    warn_left(str(data_path), count)
    for node in range(count):
        (data_path / folder_name(node)).mkdir(exist_ok=True)


class Nodes:
    """The nodes of one command.  ``commands`` are the arguments of `penstock` for each."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._running: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._status = 0

    async def serve(self) -> int:
        """Run until a signal, or until a node cannot start; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._forward, signal.SIGHUP)
        async with asyncio.TaskGroup() as group:
            for node in range(len(self._commands)):
                group.create_task(self._supervise(node))
            await self._stopping.wait()
            log.info("NSQ: stopping %d nodes", len(self._running))
            for node, process in self._running.items():
                group.create_task(self._end(node, process))
        log.info("NSQ: bye")
        return self._status

    def _forward(self, number: int) -> None:
        for process in self._running.values():
            send(process, number)

    async def _supervise(self, node: int) -> None:
        """Run one node and restart it until all are stopped."""
        loop = asyncio.get_running_loop()
        wait_s, first = RESTART_WAIT_S, True
        while not self._stopping.is_set():
            start_s = loop.time()
            status = await self._run(node)
            if self._stopping.is_set():
                return
            ran_s = loop.time() - start_s
            if first and status == 1 and ran_s < START_S:
                log.critical("node=%d: could not start; see its log", node)
                self._status = 1
                self._stopping.set()
                return
            if status == 0:
                self._left(node)
                return
            first = False
            wait_s = RESTART_WAIT_S if ran_s > STEADY_S else wait_s
            log.error("node=%d: ended %s, restarting in %g s", node, status_text(status), wait_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            wait_s = min(2 * wait_s, RESTART_WAIT_MAX_S)

    def _left(self, node: int) -> None:
        """A node has ended cleanly by itself: it was drained, or somebody stopped it alone."""
        if self._running:
            log.warning("node=%d: ended, and is not started again; the others continue", node)
        else:
            log.warning("node=%d: ended, as the last one", node)
            self._stopping.set()

    async def _run(self, node: int) -> int:
        """Run one node until it ends; return its exit code."""
        try:
            process = await spawn(self._commands[node])
        except OSError as error:
            log.error("node=%d: %s", node, error)
            return 1
        self._running[node] = process
        log.info("node=%d: started as pid %d", node, process.pid)
        # Stopped during spawn: serve() has not ended this one.
        if self._stopping.is_set():
            await self._end(node, process)
        status = await process.wait()
        del self._running[node]
        return status

    async def _end(self, node: int, process: Process) -> None:
        if not await end(process, STOP_SECONDS_MAX):
            log.error("node=%d: did not stop in %g s, killed", node, STOP_SECONDS_MAX)
            self._status = 1
