"""`nsq_to_file`: writes messages to files, with a set of files and a consumer for each topic.

    consumer --> waiting --> append --> held, in flight --> sync --> FIN

Rule 1: a message is finished after its line is synced, never before.  If the tool is killed, every
        message is in a file or is delivered again; some may be both.
Rule 2: held messages are synced when there are max-in-flight of them, at each sync-interval, when
        the consumer is starved, at rotation, at SIGHUP, and at the end.
Rule 3: each topic has one disk thread, so a slow disk delays only its topic.
Rule 4: any disk error ends the tool with status 1; held messages are delivered again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import re2

from penstock.cli.consumer_tools import (
    consumer_config,
    lookupd_addresses,
    make_consumer,
    max_in_flight,
    nsqd_addresses,
    since,
)
from penstock.cli.flags import FlagTable
from penstock.cli.tool import Signals, client_options, log_level, repeated, start_tool, tool_table
from penstock.cli.topic_file import Layout, TopicFile, fill_name
from penstock.client import Config, Message
from penstock.errors import HttpClientError, OptionError
from penstock.net.http_client import Timeouts
from penstock.net.peer_client import fetch_json
from penstock.settings.table import boolean, duration, integer, string
from penstock.wire.names import is_valid_name
from penstock.wire.peer_answers import names_in
from penstock.wire.url import lookupd_url

log = logging.getLogger("penstock.cli")

PROGRAM = "nsq_to_file"
MISSING_REV = "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"


@dataclass(frozen=True, slots=True)
class ToFileOptions:
    topic: tuple[str, ...] = repeated(
        "Messages", "topic to write; if none is given, all topics of nsqlookupd"
    )
    topic_pattern: str = string("Messages", "", "regular expression that topics must match")
    topic_refresh_ns: int = duration(
        "Messages", "1m", "how often to query nsqlookupd for topics", minimum="10ms"
    )
    channel: str = string("Messages", "nsq_to_file", "channel to consume from")
    output_dir: str = string("Files", "/tmp", "folder for finished files")
    work_dir: str = string("Files", "", "folder for files being written", default_text="output-dir")
    filename_format: str = string(
        "Files",
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "file name; may also contain <PID> and folders",
    )
    datetime_format: str = string("Files", "%Y-%m-%d_%H", "value of <DATETIME>, a strftime format")
    host_identifier: str = string(
        "Files",
        "",
        "value of <HOST>; may contain <SHORT_HOST> and <HOSTNAME>",
        default_text="the short host name",
    )
    gzip: bool = boolean("Files", False, "compress with gzip")
    gzip_level: int = integer("Files", 6, "1 is fastest, 9 compresses best", minimum=1, maximum=9)
    rotate_size: int = integer(
        "Files", 0, "start a new file after this many bytes; 0: never", minimum=0
    )
    rotate_interval_ns: int = duration("Files", "0", "start a new file after this long; 0: never")
    skip_empty_files: bool = boolean(
        "Files", False, "create a file only when there is a message for it"
    )
    sync_interval_ns: int = duration(
        "Files", "30s", "longest time until messages are synced and finished", minimum="1ms"
    )
    max_in_flight: int = max_in_flight("messages in flight per topic, and the most per sync")
    since: str = since()
    nsqd_tcp_address: tuple[str, ...] = nsqd_addresses()
    lookupd_http_address: tuple[str, ...] = lookupd_addresses()
    http_client_connect_timeout_ns: int = duration(
        "Source", "2s", "timeout for connecting to nsqlookupd", minimum="1ms"
    )
    http_client_request_timeout_ns: int = duration(
        "Source", "5s", "timeout for a complete response", minimum="1ms"
    )
    consumer_opt: tuple[tuple[str, Any], ...] = client_options("consumer")
    log_level: str = log_level(own=False)
    log_prefix: str = string("Log", f"[{PROGRAM}] ", "prefix of each log line")

    def layout(self, topic: str) -> Layout:
        """The file names of ``topic``; raises ValueError if they would be invalid."""
        name = fill_name(self.filename_format, topic, self.host_identifier, os.getpid())
        if self.gzip and not name.endswith(".gz"):
            name += ".gz"
        layout = Layout(
            output_dir=self.output_dir,
            work_dir=self.work_dir,
            name_format=name,
            datetime_format=self.datetime_format,
            gzip_level=self.gzip_level if self.gzip else 0,
            rotate_size=self.rotate_size,
            rotate_interval_s=self.rotate_interval_ns / 1e9,
        )
        layout.path_in(layout.output_dir, layout.name(time.time()))
        return layout


def flag_table() -> FlagTable[ToFileOptions]:
    return tool_table(
        PROGRAM, ToFileOptions, "Writes the messages of topics to files, one per line."
    )


def checked(options: ToFileOptions) -> ToFileOptions:
    check_topics(options)
    hostname = socket.gethostname()
    short = hostname.partition(".")[0]
    host = options.host_identifier or "<SHORT_HOST>"
    host = host.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)
    options = replace(
        options,
        host_identifier=host,
        output_dir=str(Path(options.output_dir).absolute()),
        work_dir=str(Path(options.work_dir or options.output_dir).absolute()),
    )
    revised = options.gzip or options.rotate_size or options.rotate_interval_ns
    if revised or options.work_dir != options.output_dir:
        if "<REV>" not in options.filename_format:
            raise OptionError(MISSING_REV)
    else:
        name = options.filename_format.replace("<REV>", "")
        options = replace(options, filename_format=name)
    for topic in options.topic or ("topic",):
        try:
            options.layout(topic)
        except ValueError as error:
            raise OptionError(f"--filename-format and topic {topic!r}: {error}") from None
    return options


def check_topics(options: ToFileOptions) -> None:
    if not is_valid_name(options.channel):
        raise OptionError(f"{options.channel!r} is not a valid name for a channel")
    for topic in options.topic:
        if not is_valid_name(topic):
            raise OptionError(f"{topic!r} is not a valid name for a topic")
    if options.nsqd_tcp_address and options.lookupd_http_address:
        raise OptionError("use --nsqd-tcp-address or --lookupd-http-address not both")
    if not options.topic and not options.lookupd_http_address:
        raise OptionError("--lookupd-http-address must be specified when no --topic specified")
    if not options.nsqd_tcp_address and not options.lookupd_http_address:
        raise OptionError("--nsqd-tcp-address or --lookupd-http-address required")
    try:
        re2.compile(options.topic_pattern)
    except re2.error as error:
        raise OptionError(f"invalid --topic-pattern - {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Write until stopped; return the exit status."""
    return start_tool(flag_table(), argv, run, checked)


async def run(options: ToFileOptions, signals: Signals) -> int:
    return await Topics(options, signals).run()


class Topics:
    """A writer for each topic; topics are added and never removed."""

    def __init__(self, options: ToFileOptions, signals: Signals) -> None:
        self._options = options
        self._stop = signals.stop
        self._config = consumer_config(PROGRAM, options, {})
        self._matches = re2.compile(options.topic_pattern).search
        self._writers: dict[str, Writer] = {}
        self._refused: set[str] = set()
        self._error: BaseException | None = None
        signals.on_hup = self._reopen

    async def run(self) -> int:
        finding = None
        if self._options.topic:
            self._add(self._options.topic)
        else:
            finding = asyncio.create_task(self._find())
        await self._stop.wait()
        if finding is not None:
            finding.cancel()
            await asyncio.wait([finding])
        if self._error is None:
            await asyncio.gather(*(writer.stop() for writer in self._writers.values()))
        for writer in self._writers.values():
            writer.end()
        if self._error is not None:
            raise self._error
        return 0

    def _add(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if topic in self._writers:
                continue
            if not self._matches(topic):
                log.warning("topic=%s: skipped, does not match --topic-pattern", topic)
                continue
            try:
                layout = self._options.layout(topic)
            except ValueError as error:
                if topic not in self._refused:
                    self._refused.add(topic)
                    log.error("topic=%s: skipped: %s", topic, error)
                continue
            writer = Writer(topic, layout, self._options, self._config, self._failed)
            self._writers[topic] = writer
            writer.start()

    def _failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self._stop.set()

    def _reopen(self) -> None:
        for writer in self._writers.values():
            writer.reopen()

    async def _find(self) -> None:
        """Query all nsqlookupds now and at every interval.  (NSQ's tool waits first.)"""
        while True:
            answers = await asyncio.gather(
                *(self._fetch_topics(address) for address in self._options.lookupd_http_address)
            )
            self._add(sorted({topic for answer in answers for topic in answer}))
            await asyncio.sleep(self._options.topic_refresh_ns / 1e9)

    async def _fetch_topics(self, address: str) -> list[str]:
        try:
            url = lookupd_url(address, "/topics")
            topics = names_in(await fetch_json(url, Timeouts.of(self._options)), "topics")
        except (HttpClientError, OptionError, ValueError) as error:
            log.error("lookupd=%s: could not retrieve topic list: %s", address, error)
            return []
        return [topic for topic in topics if is_valid_name(topic) and self._matches(topic)]


class Writer:
    """One topic: its consumer, its files, and the messages not finished yet."""

    def __init__(
        self,
        topic: str,
        layout: Layout,
        options: ToFileOptions,
        config: Config,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.topic = topic
        self._file = TopicFile(topic, layout)
        self._consumer = make_consumer(options, topic, self._take, config)
        self._skip_empty = options.skip_empty_files
        self._sync_interval_s = options.sync_interval_ns / 1e9
        self._hold_max = config.max_in_flight
        self._failed = failed
        self._pool = ThreadPoolExecutor(1, f"file-{topic}")
        self._waiting: list[Message] = []
        self._held: list[Message] = []
        self._wakeup = asyncio.Event()
        self._reopening = False
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._consumer.start()),
            asyncio.create_task(self._work()),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def reopen(self) -> None:
        self._reopening = True
        self._wakeup.set()

    async def stop(self) -> None:
        """Stop consuming, sync and finish everything received, and close the file."""
        self._stopping = True
        self._wakeup.set()
        starting, working = self._tasks
        # An nsqd or nsqlookupd that hangs would delay the start by 11 s.
        starting.cancel()
        await asyncio.wait([starting])
        stopping = asyncio.create_task(self._consumer.stop())
        # If the disk fails now, messages in flight will not be answered.
        await asyncio.wait([stopping, working], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            stopping.cancel()
            return
        working.cancel()
        await asyncio.wait([working])
        await self._on_thread(self._file.close)

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, message: Message) -> None:
        message.enable_async()
        self._waiting.append(message)
        self._wakeup.set()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        tick_s = loop.time() + self._sync_interval_s
        while True:
            tick = await self._wait(tick_s)
            if tick:
                tick_s = loop.time() + self._sync_interval_s
            await self._write()
            await self._maintain(tick)

    async def _wait(self, until_s: float) -> bool:
        """Wait for work; return True if it is time to sync."""
        try:
            async with asyncio.timeout_at(until_s):
                await self._wakeup.wait()
        except TimeoutError:
            return True
        self._wakeup.clear()
        return False

    async def _write(self) -> None:
        """Append waiting messages, in parts that leave at most max-in-flight unsynced."""
        while self._waiting:
            room = max(1, self._hold_max - len(self._held))
            part, self._waiting = self._waiting[:room], self._waiting[room:]
            rotated = await self._on_thread(self._file.append, [message.body for message in part])
            self._held += part
            if rotated or len(self._held) >= self._hold_max:
                await self._sync()

    async def _maintain(self, tick: bool) -> None:
        """Sync, rotate or close after the messages are written."""
        closing, self._reopening = self._reopening, False
        if tick or closing or self._stopping or self._consumer.is_starved:
            await self._sync()
        if tick and not self._stopping and self._file.must_rotate():
            if not self._skip_empty:
                await self._on_thread(self._file.rotate)
            else:
                closing = True
        if closing:
            log.info("topic=%s: closing the file", self.topic)
            await self._on_thread(self._file.close)

    async def _sync(self) -> None:
        if self._held:
            await self._on_thread(self._file.sync)
            held, self._held = self._held, []
            for message in held:
                message.finish()

    async def _on_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
