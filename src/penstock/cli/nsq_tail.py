"""`nsq_tail`: prints messages as they arrive.

Rule 1: a message is finished after it is printed and before the tool ends: with ``-n`` no printed
        message is delivered again.  (NSQ's nsq_tail leaves its last messages in flight.)
Rule 2: a line is one message of one topic; lines of several topics do not mix.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.cli.consumer_tools import (
    check_source,
    consumer_config,
    lookupd_addresses,
    make_consumer,
    max_in_flight,
    nsqd_addresses,
    running,
    since,
)
from penstock.cli.flags import FlagTable
from penstock.cli.tool import (
    Output,
    Signals,
    ToolError,
    client_options,
    log_level,
    repeated,
    start_tool,
    tool_table,
)
from penstock.client import Consumer, Message
from penstock.errors import OptionError
from penstock.settings.table import boolean, integer, string

PROGRAM = "nsq_tail"


@dataclass(frozen=True, slots=True)
class TailOptions:
    topic: tuple[str, ...] = repeated("Messages", "topic to print")
    channel: str = string(
        "Messages", "", "channel to consume from", default_text="a new ephemeral one"
    )
    n: int = integer("Messages", 0, "exit after this many messages of a topic; 0: never", minimum=0)
    print_topic: bool = boolean("Messages", False, "prefix each line with the topic")
    max_in_flight: int = max_in_flight()
    since: str = since()
    nsqd_tcp_address: tuple[str, ...] = nsqd_addresses()
    lookupd_http_address: tuple[str, ...] = lookupd_addresses()
    consumer_opt: tuple[tuple[str, Any], ...] = client_options("consumer")
    log_level: str = log_level()


def flag_table() -> FlagTable[TailOptions]:
    return tool_table(
        PROGRAM, TailOptions, "Prints the messages of topics to standard output, one per line."
    )


def checked(options: TailOptions) -> TailOptions:
    check_source(options)
    if not options.topic:
        raise OptionError("--topic required")
    channel = options.channel or f"tail{random.randrange(999999):06d}#ephemeral"
    limit = options.max_in_flight
    if options.n:
        # More would only be requeued.
        limit = min(limit, options.n)
    return replace(options, channel=channel, max_in_flight=limit)


def main(argv: Sequence[str] | None = None) -> int:
    """Print until stopped; return the exit status."""
    return start_tool(flag_table(), argv, run, checked)


async def run(options: TailOptions, signals: Signals) -> int:
    config = consumer_config(
        PROGRAM, options, {}, batch_size=options.max_in_flight, batch_timeout=0
    )
    output = Output(stop=signals.stop)
    tails = [Tail(topic, options, output, signals) for topic in dict.fromkeys(options.topic)]
    consumers = []
    for tail in tails:
        tail.consumer = make_consumer(options, tail.topic, tail.show, config)
        consumers.append(tail.consumer)
    async with running(consumers, options, signals.stop):
        await signals.stop.wait()
    for tail in tails:
        if tail.error is not None:
            raise tail.error
    return 0


class Tail:
    """Prints one topic."""

    def __init__(self, topic: str, options: TailOptions, output: Output, signals: Signals) -> None:
        self.topic = topic
        self.consumer: Consumer | None = None
        self.error: ToolError | None = None
        self._left = options.n or None
        self._prefix = f"{topic} | ".encode() if options.print_topic else b""
        self._output = output
        self._stop = signals.stop

    async def show(self, messages: list[Message]) -> None:
        if self._left is not None:
            requeue(messages[self._left :])
            messages = messages[: self._left]
            self._left -= len(messages)
        lines = [self._prefix + message.body + b"\n" for message in messages]
        try:
            await self._output.write(b"".join(lines))
        except ToolError as error:
            self.error = error
            self._left = 0
            requeue(messages)
        self._limit_in_flight()
        if self._left == 0:
            self._stop.set()

    def _limit_in_flight(self) -> None:
        """nsqd must not deliver messages that will not be printed: their attempts and order change.

        The lower ready count is sent before the FINs that would allow more deliveries.
        """
        assert self.consumer is not None
        if self._left is not None and self._left < self.consumer.max_in_flight:
            self.consumer.max_in_flight = self._left


def requeue(messages: Sequence[Message]) -> None:
    for message in messages:
        message.requeue(0.0, backoff=False)
