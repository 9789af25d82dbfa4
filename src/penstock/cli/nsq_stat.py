"""`nsq_stat`: prints a line per interval with a channel's numbers, summed over all nsqds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote, urlencode

from penstock.cli.consumer_tools import check_one_kind
from penstock.cli.flags import FlagTable
from penstock.cli.tool import (
    Output,
    Signals,
    ToolError,
    log_level,
    repeated,
    start_tool,
    tool_table,
)
from penstock.errors import HttpClientError, OptionError
from penstock.net.http_client import Timeouts
from penstock.net.peer_client import fetch_json, lookup
from penstock.settings.table import duration, integer, string
from penstock.wire.peer_answers import channels_in, stats_query

PROGRAM = "nsq_stat"
HEADER = """\
------rate------+----------------depth----------------+--------------metadata---------------
ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients
"""
HEADER_LINES = 25
NSQDS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class StatOptions:
    topic: str = string("Channel", "", "topic of the channel")
    channel: str = string("Channel", "", "channel to report on")
    # The range is checked below, with NSQ's error text.
    interval_ns: int = duration("Report", "2s", "time between two lines", minimum="-1h")
    count: int = integer("Report", 0, "lines to print; 0: no limit", minimum=0)
    nsqd_http_address: tuple[str, ...] = repeated("Source", "HTTP address of an nsqd, host:port")
    lookupd_http_address: tuple[str, ...] = repeated(
        "Source", "HTTP address of an nsqlookupd, host:port"
    )
    http_client_connect_timeout_ns: int = duration(
        "Source", "2s", "timeout for connecting", minimum="1ms"
    )
    http_client_request_timeout_ns: int = duration(
        "Source", "5s", "timeout for a request", minimum="1ms"
    )
    log_level: str = log_level()


@dataclass(slots=True)
class Numbers:
    """The sums, in the order they are printed."""

    depth: int = 0
    memory_depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0

    def add(self, channel: dict[str, Any]) -> None:
        """Add a channel of /stats.  An nsqd before 1.3 does not report all of the numbers."""
        for field in fields(self):
            value = channel.get(field.name)
            if field.name == "memory_depth":
                value = channel["depth"] - channel["backend_depth"]
            elif value is None and field.name == "client_count":
                value = len(channel["clients"])
            setattr(self, field.name, getattr(self, field.name) + int(value or 0))

    def line(self, before: Numbers, interval_s: float) -> str:
        ingress = self.message_count - before.message_count
        egress = ingress - (self.depth - before.depth)
        return (
            f"{int(ingress / interval_s):7d} {int(egress / interval_s):7d} | "
            f"{self.depth:7d} {self.memory_depth:7d} {self.backend_depth:7d} "
            f"{self.in_flight_count:5d} {self.deferred_count:5d} | "
            f"{self.requeue_count:7d} {self.timeout_count:7d} "
            f"{self.message_count:12d} {self.client_count:7d}\n"
        )


def flag_table() -> FlagTable[StatOptions]:
    return tool_table(
        PROGRAM, StatOptions, "Prints rates, depths and counts of a channel, summed over all nsqds."
    )


def checked(options: StatOptions) -> StatOptions:
    if not options.topic or not options.channel:
        raise OptionError("--topic and --channel are required")
    if options.interval_ns <= 0:
        raise OptionError("--interval should be positive")
    check_one_kind("--nsqd-http-address", options.nsqd_http_address, options.lookupd_http_address)
    for flag in ("nsqd_http_address", "lookupd_http_address"):
        if any("://" in address for address in getattr(options, flag)):
            raise OptionError(
                f"--{flag.replace('_', '-')} error - address should not contain scheme"
            )
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Print until stopped or ``--count`` is reached; return the exit status."""
    return start_tool(flag_table(), argv, run, checked)


async def run(options: StatOptions, signals: Signals) -> int:
    reporting = asyncio.create_task(report(options, Output()))
    stopping = asyncio.create_task(signals.stop.wait())
    await asyncio.wait([reporting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if reporting.done():
        await reporting
    else:
        reporting.cancel()
        await asyncio.wait([reporting])
    return 0


async def report(options: StatOptions, output: Output) -> None:
    """Print the lines; the first sample is only the baseline of the second."""
    loop = asyncio.get_running_loop()
    interval_s = options.interval_ns / 1e9
    before = await sample(options)
    printed = 0
    due_s = loop.time()
    while not options.count or printed < options.count:
        due_s = max(due_s + interval_s, loop.time())
        await asyncio.sleep(due_s - loop.time())
        now = await sample(options)
        header = HEADER if printed % HEADER_LINES == 0 else ""
        await output.write((header + now.line(before, interval_s)).encode())
        printed += 1
        before = now


async def sample(options: StatOptions) -> Numbers:
    """Query every nsqd; one that does not respond is an error, because the sum would be wrong."""
    addresses = options.nsqd_http_address or await producers(options)
    target = f"/stats?{urlencode(stats_query(options.topic, options.channel), quote_via=quote)}"
    slots = asyncio.Semaphore(NSQDS_AT_ONCE)

    async def fetch(address: str) -> Any:
        async with slots:
            return await fetch_json(f"http://{address}{target}", Timeouts.of(options))

    total, found = Numbers(), False
    try:
        for answer in await asyncio.gather(*(fetch(address) for address in addresses)):
            for _, _, channel in channels_in(answer, [options.topic], options.channel):
                total.add(channel)
                found = True
    except (HttpClientError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ToolError(f"ERROR: failed to get nsqd stats - {error}") from None
    if not found:
        raise ToolError(
            f"ERROR: failed to find channel({options.channel}) in stats metadata "
            f"for topic({options.topic})"
        )
    return total


async def producers(options: StatOptions) -> list[str]:
    """The HTTP addresses of the nsqds that have the topic, from all nsqlookupds."""
    timeouts = Timeouts.of(options)
    try:
        answers = await asyncio.gather(
            *(
                lookup(address, options.topic, "http_port", timeouts)
                for address in options.lookupd_http_address
            )
        )
    except (HttpClientError, OptionError, ValueError) as error:
        raise ToolError(f"ERROR: failed to get topic producers - {error}") from None
    return sorted({address for answer in answers for address in answer})
