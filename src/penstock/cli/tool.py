"""Shared by all of NSQ's tools: options, start, signals, standard output.

Exit status: 0 done, or ended by SIGINT or SIGTERM; 1 failed; 2 wrong command line.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import stat
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import uvloop

from penstock.cli.flags import FlagTable, UsageError
from penstock.client.config import Config, Seconds
from penstock.errors import PenstockError
from penstock.net import log
from penstock.settings.kinds import Listed, Text
from penstock.settings.table import choice, integer, row, settings_of
from penstock.version import NSQ_VERSION, VERSION

# go-nsq's name for an option of ours; the name means the opposite of what the option does.
GO_NAMES = {"skip_lookupd_authorization": "lookupd_authorization"}
OptionsT = TypeVar("OptionsT")
# Within this time a second signal is a duplicate: shells and `timeout` signal group and process.
SECOND_SIGNAL_S = 0.5
CLIENT_SETTINGS = {setting.option: setting for setting in settings_of(Config)}


class ToolError(PenstockError):
    """The tool cannot continue; the text is its last line."""


class Repeated(Listed):
    """A flag given several times.  Commas are part of a value, as in NSQ's tools."""

    def __init__(self, item: Text) -> None:
        super().__init__(item)
        self.noun = item.noun

    def parse(self, text: str) -> tuple[Any, ...]:
        return (self.item.parse(text),)


class ClientOption(Text):
    """``name,value`` or ``name`` alone for true: an option of the client."""

    kind = "name,value"
    noun = "a client option and its value, as in heartbeat_interval,10s"

    def parse(self, text: str) -> tuple[str, Any]:
        name, comma, value = text.partition(",")
        name = name.replace("-", "_")
        setting = CLIENT_SETTINGS.get(GO_NAMES.get(name, name))
        if setting is None:
            raise ValueError(text)
        if isinstance(setting.kind, Seconds) and value.isdecimal():
            value += "ms"  # as go-nsq parses a number without a unit
        return setting.option, setting.kind.convert(value if comma else "true")

    def show(self, value: Any) -> str:
        return f"{value[0]},{CLIENT_SETTINGS[value[0]].kind.show(value[1])}"


def repeated(group: str, help: str, **more: Any) -> Any:
    return row(Repeated(Text()), group, (), help, **more)


def client_options(whose: str) -> Any:
    return row(Repeated(ClientOption()), "Client", (), f"option of the {whose}: name,value or name")


def log_level(*, own: bool = True) -> Any:
    return choice("Log", "info", "lowest level of log lines to write", log.LEVELS, own=own)


def status_every(what: str) -> Any:
    return integer("Log", 250, f"{what} between status lines; 0: none", minimum=0)


def tool_table(program: str, options: type[OptionsT], summary: str) -> FlagTable[OptionsT]:
    return FlagTable(
        program, options, summary=summary, environment_prefix=f"PENSTOCK_{program.upper()}_"
    )


def client_config(
    program: str, given: Sequence[tuple[str, Any]], standing: Mapping[str, Any], **fixed: Any
) -> Config:
    """``given`` on the command line overrides ``standing``; ``fixed`` overrides both."""
    agent = {"user_agent": f"{program}/{NSQ_VERSION} penstock/{VERSION}"}
    return Config.of(None, **{**agent, **standing, **dict(given), **fixed})


class Signals:
    """``stop`` is set by SIGINT and SIGTERM; ``on_hup`` is called for each SIGHUP.

    A second SIGINT or SIGTERM ends the process immediately; killing a tool is always safe.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.on_hup: Callable[[], None] = self.stop.set
        self._first_s: float | None = None
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._received, number)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: self.on_hup())

    def _received(self, number: int) -> None:
        now_s = self._loop.time()
        if self._first_s is None:
            self._first_s = now_s
        elif now_s > self._first_s + SECOND_SIGNAL_S:
            os._exit(128 + number)
        self.stop.set()


async def unless_stopped(work: Coroutine[Any, Any, Any], stop: asyncio.Event) -> bool:
    """Await ``work``, cancelled by ``stop``; return whether it completed."""
    task, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    if task.cancelled():
        return False
    task.result()
    return True


async def confirmed(question: str, stop: asyncio.Event) -> bool:
    """Ask on the terminal; Ctrl-C and anything but yes are a no.

    Raises ToolError if there is no terminal.
    """
    if not sys.stdin.isatty():
        raise ToolError("standard input is not a terminal: --yes is required")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, typed.set)  # a blocking read would not end at Ctrl-C
    try:
        if await unless_stopped(typed.wait(), stop):
            return sys.stdin.readline().strip().lower() in ("y", "yes")
        print(file=sys.stderr)
        return False
    finally:
        loop.remove_reader(0)


Run = Callable[[Any, Signals], Coroutine[Any, Any, int]]


def start_tool(
    table: FlagTable[Any],
    argv: Sequence[str] | None,
    run: Run,
    checked: Callable[[Any], Any] = lambda options: options,
) -> int:
    """Read the options and run the tool; return its exit status.

    ``checked`` validates their combination, and raises OptionError with NSQ's texts.
    """
    program = table.program
    log.configure(prefix=f"[{program}] ")
    try:
        parsed = table.parse(list(sys.argv[1:] if argv is None else argv), os.environ)
        if parsed.action == "version":
            print(f"{program} v{NSQ_VERSION}")
            return 0
        if parsed.action == "help":
            print(table.help(), end="")
            return 0
        if parsed.warnings:
            log.LOGGER.warning("%s", "; ".join(parsed.warnings))
        options = checked(parsed.options)
        prefix = getattr(options, "log_prefix", f"[{program}] ")
        log.configure(level=options.log_level, prefix=prefix)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(run, options))
    except UsageError as error:
        print(f'{error}\nSee "{program} --help" for all flags.', file=sys.stderr)
        return 2
    except BrokenPipeError:
        return output_lost()
    except (PenstockError, OSError) as error:
        log.LOGGER.fatal("%s", error)
        return 1


def output_lost() -> int:
    """Standard output has no reader any more, as with `| head`; returns the exit status."""
    # Python would try to write the remainder at exit.
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    return 1


async def _run(run: Run, options: Any) -> int:
    return await run(options, Signals())


class Output:
    """Standard output, one writer at a time.

    A reader that hangs blocks the writers but not the loop: heartbeats and SIGTERM still work.
    So no write may block: a pipe that polls as writable accepts PIPE_BUF bytes.
    """

    CHUNK_SIZE = 4096
    FILE_CHUNK_SIZE = 1 << 20
    POLL_S = 0.002
    STUCK_S = 1.0  # how long a reader may read nothing once the tool is stopping

    def __init__(self, fd: int = 1, stop: asyncio.Event | None = None) -> None:
        self._fd = fd
        self._stop = stop
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        self._chunk_size = self.FILE_CHUNK_SIZE if regular else self.CHUNK_SIZE
        self._lock = asyncio.Lock()

    async def write(self, text: bytes) -> None:
        """Write all of ``text``; raises ToolError with NSQ's text if there is no reader."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            offset = 0
            stuck_s = loop.time()
            while offset < len(text):
                if self._stop is None or not self._stop.is_set():
                    stuck_s = loop.time()
                if not self._poll.poll(0):
                    if loop.time() > stuck_s + self.STUCK_S:
                        raise ToolError("ERROR: failed to write to os.Stdout - nothing reads it")
                    await asyncio.sleep(self.POLL_S)
                    continue
                stuck_s = loop.time()
                try:
                    offset += os.write(self._fd, text[offset : offset + self._chunk_size])
                except OSError as error:
                    raise ToolError(
                        f"ERROR: failed to write to os.Stdout - {error.strerror}"
                    ) from None
