"""`penstock up`: a whole installation in one terminal, for development.

    nsqlookupd | 2026/11/15 04:31:22.370396 INFO: TCP: listening on 127.0.0.1:4160
    nsqd       | 2026/11/15 04:31:22.770396 INFO: TCP: listening on 127.0.0.1:4150
    nsqadmin   | 2026/11/15 04:31:23.170396 INFO: HTTP: listening on 127.0.0.1:4171
    up         | all programs are up; press Ctrl-C to stop them

Rule 1: parts start in the order of ``PARTS``, each when its predecessor answers /ping.
Rule 2: they end in reverse order at the first Ctrl-C; a second one kills them.
Rule 3: if a part ends by itself, the others end too, and `up` exits with status 1.
Rule 4: a pipeline or a demo runs in addition on request; the parts continue if it ends.
Rule 5: no process is left running, however `up` ends (see ``child``).
Rule 6: the first run writes a policy file into the data path; it is never overwritten.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from penstock.cli import up_extras
from penstock.cli.child import end, send, spawn, status_text
from penstock.cli.flags import FlagTable, UsageError
from penstock.engine.options import PROCESS_COUNT_MAX
from penstock.errors import OptionError, PenstockError
from penstock.settings.table import boolean, integer, string
from penstock.version import penstock_line
from penstock.wire.address import join_address, split_address

T = TypeVar("T")

START_SECONDS_MAX = 60.0
PING_SECONDS_MAX = 2.0
PING_WAIT_S = 0.05
STOP_SECONDS_MAX = 20.0  # more than nsqd allows its own nodes
LOG_DRAIN_S = 2.0
# Within this time a second signal is a duplicate: shells and `timeout` signal group and process.
SECOND_SIGNAL_S = 0.5
LINE_SIZE_MAX = 65_536

NAME = "up"
NAME_WIDTH = len("nsqlookupd")
COLOURS = (36, 33, 32, 35, 34)

LISTENING = re.compile(r'\b(TCP|HTTP): listening on ([^\s"]+)')
PREFIX = re.compile(r"\[([\w-]+)\] ")
FATAL = re.compile(r" FATAL: (.*)")

POLICY_FILE = "policy.toml"
POLICIES = """\
# Policies of the nsqd of `penstock up`.  Edit this file and send SIGHUP to nsqd, or start again;
# `penstock policy` and nsqadmin show what is in effect.

# Finished messages are kept for an hour, and a new channel gets them: messages can be published
# first and read later, or again.
[[policy]]
retain = "1h"
channel_start = "earliest"

# The consumer of `penstock up --demo` cannot read one order in a hundred.  After three attempts it
# is buried: see the dead letters on nsqadmin's page of the channel.
[[policy]]
topic = "orders"
channel = "billing"
max_attempts = 3
on_max_attempts = "bury"
"""

PORTS = "Ports; 0 for any free port"


@dataclasses.dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `up`."""

    data_path: str = string("Parts", "data", "folder for messages; created if missing", own=True)
    host: str = string("Parts", "127.0.0.1", "address to listen on, for all programs", own=True)
    processes: int = integer(
        "Parts",
        1,
        "nsqd processes to run; their ports are 100 apart",
        minimum=1,
        maximum=PROCESS_COUNT_MAX,
        own=True,
    )
    pipeline: str = string(
        "Parts", "", "pipeline to run on Spark: archive, metrics or a file", own=True
    )
    no_spark: bool = boolean("Parts", False, "start no pipeline, even with -pipeline", own=True)
    demo: bool = boolean("Parts", False, "publish sample messages", own=True)
    nsqd_tcp_port: int = integer(
        PORTS, 4150, "port of nsqd for clients", minimum=0, maximum=65535, own=True
    )
    nsqd_http_port: int = integer(
        PORTS, 4151, "port of nsqd for HTTP", minimum=0, maximum=65535, own=True
    )
    lookupd_tcp_port: int = integer(
        PORTS, 4160, "port of nsqlookupd for nsqds", minimum=0, maximum=65535, own=True
    )
    lookupd_http_port: int = integer(
        PORTS, 4161, "port of nsqlookupd for HTTP", minimum=0, maximum=65535, own=True
    )
    admin_http_port: int = integer(
        PORTS, 4171, "port of nsqadmin for browsers", minimum=0, maximum=65535, own=True
    )


# The addresses of running programs: name, TCP or HTTP, address.
Addresses = dict[str, dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Part:
    """One program of the installation."""

    name: str
    command: str
    flags: Callable[[UpOptions, Addresses], dict[str, object]]
    # How many processes must log "listening" before the part is up, and for which protocols.
    count: Callable[[UpOptions], int] = lambda options: 1
    kinds: tuple[str, ...] = ("TCP", "HTTP")


def lookupd_flags(options: UpOptions, addresses: Addresses) -> dict[str, object]:
    return listen_flags(options, options.lookupd_tcp_port, options.lookupd_http_port)


def nsqd_flags(options: UpOptions, addresses: Addresses) -> dict[str, object]:
    policies: dict[str, object] = {}
    if "PENSTOCK_NSQD_POLICY_FILE" not in os.environ:
        policies["policy-file"] = policy_file(options.data_path)
    return {
        **policies,
        **listen_flags(options, options.nsqd_tcp_port, options.nsqd_http_port),
        "lookupd-tcp-address": addresses["nsqlookupd"]["TCP"],
        "data-path": options.data_path,
        "processes": options.processes,
    }


def policy_file(data_path: str) -> Path:
    """The policies of this installation; written if there are none yet."""
    path = Path(data_path) / POLICY_FILE
    if not path.exists():
        path.write_text(POLICIES, encoding="utf-8")
    return path


def admin_flags(options: UpOptions, addresses: Addresses) -> dict[str, object]:
    return {
        "http-address": join_address(options.host, options.admin_http_port),
        "lookupd-http-address": addresses["nsqlookupd"]["HTTP"],
    }


def listen_flags(options: UpOptions, tcp_port: int, http_port: int) -> dict[str, object]:
    flags: dict[str, object] = {
        "tcp-address": join_address(options.host, tcp_port),
        "http-address": join_address(options.host, http_port),
    }
    if options.host not in ("", "0.0.0.0", "::"):
        flags["broadcast-address"] = options.host
    return flags


PARTS = (
    Part("nsqlookupd", "lookupd", lookupd_flags),
    Part("nsqd", "nsqd", nsqd_flags, lambda options: options.processes),
    Part("nsqadmin", "admin", admin_flags, kinds=("HTTP",)),
)


class Stopped(Exception):
    """A signal was received."""


class PartError(PenstockError):
    """A part ended or does not respond."""


class Screen:
    """The common log: each line after the name of its program, in colour on a terminal.

    ``on_lost`` is called when it cannot be written any more: `up | head`, or a closed terminal.
    """

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self._colours: dict[str, int] | None = None
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            self._colours = {}

    def show(self, name: str, text: str) -> None:
        label = f"{name:<{NAME_WIDTH}} |"
        if self._colours is not None:
            colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
            label = f"\x1b[{colour}m{label}\x1b[0m"
        try:
            print(label, text, flush=True)
        except OSError:
            # Python would try to write the remainder at exit.
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
            self.on_lost()


class Running:
    """A running part: its log, its addresses, its end."""

    def __init__(self, part: Part, process: Process, count: int, screen: Screen) -> None:
        self.part = part
        self.process = process
        self.addresses: Addresses = {}
        self.listening = asyncio.Event()
        self.ended = asyncio.create_task(process.wait())
        self._count = count
        self._screen = screen
        self._fatal = ""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in lines_of(self.process.stderr):
            match = PREFIX.match(line)
            name = match[1] if match else self.part.name
            text = line[match.end() :] if match else line
            self._screen.show(name, text)
            if found := LISTENING.search(text):
                self.addresses.setdefault(name, {})[found[1]] = found[2]
            elif found := FATAL.search(text):
                self._fatal = self._fatal or found[1]
            wanted = len(self.part.kinds)
            whole = [name for name, kinds in self.addresses.items() if len(kinds) == wanted]
            if len(whole) == self._count:
                self.listening.set()

    async def wait_up(self) -> None:
        """Wait until every process answers /ping with OK."""
        await self.listening.wait()
        for kinds in self.addresses.values():
            while not await ping(kinds["HTTP"]):
                await asyncio.sleep(PING_WAIT_S)

    async def drain_log(self) -> None:
        """Show the remaining log, for LOG_DRAIN_S at most: its children may keep stderr open."""
        with suppress(TimeoutError, OSError):
            await asyncio.wait_for(self._reading, LOG_DRAIN_S)

    async def exit_text(self) -> str:
        await self.drain_log()
        text = f"{self.part.name} ended {status_text(self.ended.result())}"
        if self._fatal:
            text += f": {self._fatal}"
        if "in use" in self._fatal:
            text += "; is another one running?  Other ports and another --data-path let both run"
        return text


async def lines_of(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of a log; lines over LINE_SIZE_MAX are split."""
    tail = b""
    while chunk := await reader.read(LINE_SIZE_MAX):
        *lines, tail = (tail + chunk).split(b"\n")
        if len(tail) > LINE_SIZE_MAX:
            lines, tail = [*lines, tail], b""
        for line in lines:
            yield line.decode("utf-8", "backslashreplace")
    if tail:
        yield tail.decode("utf-8", "backslashreplace")


async def ping(address: str) -> bool:
    """Whether GET /ping returns OK in time."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(PING_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /ping HTTP/1.0\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False


class Up:
    """Starts, supervises and ends all parts."""

    def __init__(self, options: UpOptions, screen: Screen) -> None:
        self._options = options
        self._screen = screen
        self._running: list[Running] = []
        self._extras = up_extras.Extras(screen.show, lines_of)
        self._stop = asyncio.Event()
        self._stop_s = 0.0
        screen.on_lost = self._stop.set

    async def serve(self) -> None:
        """Run all parts until a signal; raises PartError if one of them ends before."""
        loop = asyncio.get_running_loop()
        # SIGHUP means that the terminal was closed.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signal)
        try:
            for part in PARTS:
                await self._start(part)
            self._welcome()
            await self._unless_over(self._start_extras())
            await self._unless_over(asyncio.Event().wait())
        except Stopped:
            self._screen.show(NAME, "stopping; press Ctrl-C again to kill")
        finally:
            await self._end()

    def _signal(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self._stop.is_set():
            self._stop_s = now_s
            self._stop.set()
        elif now_s > self._stop_s + SECOND_SIGNAL_S:
            self._extras.kill()
            for running in self._running:
                send(running.process, signal.SIGKILL)

    async def _start(self, part: Part) -> None:
        addresses = {name: kinds for r in self._running for name, kinds in r.addresses.items()}
        # Override the environment, because the log is parsed here.
        flags = {
            **part.flags(self._options, addresses),
            "log-prefix": f"[{part.name}] ",
            "log-level": "info",
            "log-format": "text",
        }
        command = [part.command, *(f"--{flag}={value}" for flag, value in flags.items())]
        process = await spawn(command, stderr=PIPE)
        running = Running(part, process, part.count(self._options), self._screen)
        self._running.append(running)
        try:
            await self._unless_over(asyncio.wait_for(running.wait_up(), START_SECONDS_MAX))
        except TimeoutError:
            raise PartError(f"{part.name} did not respond within {START_SECONDS_MAX:g} s") from None

    async def _start_extras(self) -> None:
        options = self._options
        addresses = {name: kinds for r in self._running for name, kinds in r.addresses.items()}
        wanted = []
        if options.demo:
            nsqd = next(name for name in sorted(addresses) if name.startswith("nsqd"))
            wanted.append(up_extras.demo(addresses[nsqd]["TCP"]))
        if options.pipeline:
            if reason := "-no-spark" if options.no_spark else up_extras.missing():
                self._screen.show(NAME, f"not starting pipeline {options.pipeline}: {reason}")
            else:
                lookupd = addresses["nsqlookupd"]["HTTP"]
                wanted.append(up_extras.pipeline(options.pipeline, lookupd, options.data_path))
        for extra in wanted:
            for notice in extra.notices:
                self._screen.show(NAME, notice)
            await self._extras.start(extra)

    async def _unless_over(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, unless a signal arrives or a part ends first."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stop.wait())
        ends = [running.ended for running in self._running]
        await asyncio.wait({task, stop, *ends}, return_when=asyncio.FIRST_COMPLETED)
        stopped = stop.done()
        stop.cancel()
        if task.done():
            return task.result()
        task.cancel()
        if stopped:
            raise Stopped
        over = next(running for running in self._running if running.ended.done())
        raise PartError(await over.exit_text())

    def _welcome(self) -> None:
        show = self._screen.show
        for running in self._running:
            for name in sorted(running.addresses, key=lambda name: (len(name), name)):
                kinds = running.addresses[name]
                tcp = f"TCP {kinds['TCP']}  " if "TCP" in kinds else ""
                show(NAME, f"{name:<{NAME_WIDTH}}  {tcp}HTTP http://{kinds['HTTP']}")
        admin = self._running[-1].addresses["nsqadmin"]["HTTP"]
        nsqd = next(kinds["HTTP"] for kinds in self._running[1].addresses.values())
        show(NAME, f"nsqadmin: http://{admin}")
        show(NAME, f"publish: curl -d hello 'http://{nsqd}/pub?topic=greetings'")
        folder = Path(self._options.data_path).resolve()
        kept = "" if "PENSTOCK_NSQD_POLICY_FILE" in os.environ else f", policies in {POLICY_FILE}"
        show(NAME, f"messages are stored in {folder}{kept}")
        show(NAME, "all programs are up; press Ctrl-C to stop them")

    async def _end(self) -> None:
        await self._extras.end()
        for running in reversed(self._running):
            if not await end(running.process, STOP_SECONDS_MAX):
                self._screen.show(NAME, f"{running.part.name} did not stop in time and was killed")
            await running.drain_log()


def flag_table() -> FlagTable[UpOptions]:
    return FlagTable(
        "penstock up",
        UpOptions,
        summary="Runs nsqlookupd, nsqd and nsqadmin in one terminal, for development.  Their\n"
        "other options come from PENSTOCK_NSQLOOKUPD_<OPTION>, PENSTOCK_NSQD_<OPTION> and\n"
        "PENSTOCK_NSQADMIN_<OPTION>.",
        environment_prefix="PENSTOCK_UP_",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts until a signal; return the exit code."""
    table = flag_table()
    try:
        parsed = table.parse(sys.argv[1:] if argv is None else argv, os.environ)
    except OptionError as error:
        print(f'{error}\nSee "penstock up --help" for all flags.', file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    if parsed.action != "run":
        show_help = parsed.action == "help"
        print(table.help() if show_help else penstock_line() + "\n", end="")
        return 0
    for warning in parsed.warnings:
        print(f"penstock up: {warning}", file=sys.stderr)
    return _run(parsed.options)


def _run(options: UpOptions) -> int:
    try:
        Path(options.data_path).mkdir(parents=True, exist_ok=True)
        asyncio.run(Up(options, Screen()).serve())
    except (PartError, OSError) as error:
        print(f"penstock up: {error}", file=sys.stderr)
        return 1
    return 0
