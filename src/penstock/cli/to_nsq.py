"""`to_nsq`: publishes the records of standard input.

    producers:   one for each nsqd; every record is sent to all of them, in order
    pipelined:   a record is sent as soon as it is read; replies are awaited at the end

Rule 1: status 0 means that every nsqd has stored every record.
Rule 2: an error ends the reading; records read before it may or may not be stored.
Rule 3: the size of unacknowledged records (the client's max_pending_size) and of one record is
        bounded.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.flags import FlagTable
from penstock.cli.tool import (
    Signals,
    ToolError,
    client_config,
    client_options,
    log_level,
    repeated,
    start_tool,
    tool_table,
    unless_stopped,
)
from penstock.client import Producer
from penstock.errors import OptionError
from penstock.settings.table import integer, string
from penstock.wire.names import is_valid_name

PROGRAM = "to_nsq"
READ_SIZE = 256 << 10
RECORD_SIZE_MAX = 64 << 20
# How long to wait for replies after a signal.
STOP_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class ToNsqOptions:
    topic: str = string("Messages", "", "topic to publish to")
    delimiter: str = string("Messages", "\n", "byte that ends a record", default_text="a new line")
    rate: int = integer("Messages", 0, "messages per second; 0: no limit")
    nsqd_tcp_address: tuple[str, ...] = repeated("Destination", "TCP address of an nsqd")
    producer_opt: tuple[tuple[str, Any], ...] = client_options("producer")
    log_level: str = log_level()


def flag_table() -> FlagTable[ToNsqOptions]:
    return tool_table(
        PROGRAM, ToNsqOptions, "Publishes each record from standard input to every nsqd given."
    )


def checked(options: ToNsqOptions) -> ToNsqOptions:
    if not options.topic:
        raise OptionError("--topic required")
    if not is_valid_name(options.topic):
        raise OptionError(f"{options.topic!r} is not a valid name for a topic")
    if len(options.delimiter.encode("utf-8", "surrogateescape")) != 1:
        raise OptionError("--delimiter must be a single byte")
    if not options.nsqd_tcp_address:
        raise OptionError("--nsqd-tcp-address required")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Publish until the end of standard input; return the exit status."""
    return start_tool(flag_table(), argv, run, checked)


async def run(options: ToNsqOptions, signals: Signals) -> int:
    config = client_config(PROGRAM, options.producer_opt, {})
    producers = [Producer([address], config=config) for address in options.nsqd_tcp_address]
    publishing = Publishing(options.topic, producers, signals.stop)
    try:
        for producer in producers:
            if not await unless_stopped(producer.start(), signals.stop):
                return 0
        source = read_input(0, signals.stop)
        delimiter = options.delimiter.encode("utf-8", "surrogateescape")
        pace = Pace(options.rate) if options.rate > 0 else None
        async for record in split(source, delimiter):
            if signals.stop.is_set():
                break
            if not await publishing.add(record):
                break
            if pace is not None:
                await pace.wait(signals.stop)
    finally:
        await stop_all(producers, signals.stop)
    publishing.check()
    return 0


async def stop_all(producers: Sequence[Producer], stop: asyncio.Event) -> None:
    """Wait for all replies; after a signal, for STOP_SECONDS_MAX at most."""

    async def stop_each() -> None:
        await asyncio.gather(*(producer.stop() for producer in producers))

    stopping = asyncio.create_task(stop_each())
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait([stopping, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping, STOP_SECONDS_MAX)


@dataclass(slots=True)
class Publishing:
    """Records in flight; the first failure sets ``stop``."""

    topic: str
    producers: Sequence[Producer]
    stop: asyncio.Event
    error: BaseException | None = None
    futures: set[asyncio.Future[None]] = field(default_factory=set)

    async def add(self, record: bytes) -> bool:
        """Send to all as soon as there is room; False if ``stop`` was set before."""
        for producer in self.producers:
            if producer.pending_size + len(record) <= producer.config.max_pending_size:
                await self._send(producer, record)
            elif not await unless_stopped(self._send(producer, record), self.stop):
                self.error = self.error or ToolError("stopped while nsqd accepted no more data")
                return False
        return True

    async def _send(self, producer: Producer, record: bytes) -> None:
        future = await producer.send(self.topic, record)
        self.futures.add(future)
        future.add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[None]) -> None:
        self.futures.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            self.error = self.error or error
            self.stop.set()

    def check(self) -> None:
        """Raise ToolError unless every record was acknowledged; all producers are stopped."""
        if self.error is not None:
            raise ToolError(f"ERROR: failed to publish - {self.error}")
        unanswered = [future for future in self.futures if not future.done()]
        if unanswered:
            raise ToolError(f"ERROR: failed to publish - {len(unanswered)} not acknowledged")
        for future in self.futures:
            if (error := future.exception()) is not None:
                raise ToolError(f"ERROR: failed to publish - {error}")


class Pace:
    """A token bucket: one token every 1/rate s, at most ``rate`` stored; each record takes one."""

    def __init__(self, rate: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._interval_s = 1.0 / rate
        self._rate = rate
        self._token_count = 1.0
        self._since_s = self._loop.time()

    async def wait(self, stop: asyncio.Event) -> None:
        """Wait after a record until the next one may be sent."""
        self._fill()
        self._token_count -= 1.0
        while self._token_count < 0.0 and not stop.is_set():
            pause_s = -self._token_count * self._interval_s
            try:
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            except TimeoutError:
                self._fill()

    def _fill(self) -> None:
        now_s = self._loop.time()
        grown = self._token_count + (now_s - self._since_s) / self._interval_s
        self._token_count = min(float(self._rate), grown)
        self._since_s = now_s


async def read_input(fd: int, stop: asyncio.Event) -> AsyncIterator[bytes]:
    """The bytes of a file, pipe or terminal as they arrive, until its end or ``stop``.

    Poll first: files and /dev/null are always readable, and epoll refuses them.
    """
    loop = asyncio.get_running_loop()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not stop.is_set():
        if not poll.poll(0):
            await _readable(loop, fd, stop)
            continue
        block = os.read(fd, READ_SIZE)
        if not block:
            return
        yield block
        await asyncio.sleep(0)


async def _readable(loop: asyncio.AbstractEventLoop, fd: int, stop: asyncio.Event) -> None:
    readable = asyncio.Event()
    loop.add_reader(fd, readable.set)
    waiting = [loop.create_task(readable.wait()), loop.create_task(stop.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(fd)
        for task in waiting:
            task.cancel()


async def split(source: AsyncIterator[bytes], delimiter: bytes) -> AsyncIterator[bytes]:
    """The non-empty records; the last needs no delimiter."""
    parts: list[bytes] = []
    size = 0
    async for block in source:
        first, *more = block.split(delimiter)
        parts.append(first)
        size += len(first)
        if size > RECORD_SIZE_MAX:
            raise ToolError(f"ERROR: a record of more than {RECORD_SIZE_MAX} bytes")
        if not more:
            continue
        for record in (b"".join(parts), *more[:-1]):
            if record:
                yield record
        parts = [more[-1]]
        size = len(more[-1])
    if last := b"".join(parts):
        yield last
