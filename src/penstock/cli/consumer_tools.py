"""Shared by the consuming tools: options of the source, and the start and stop of consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from penstock.cli.tool import ToolError, client_config, repeated, unless_stopped
from penstock.client import Config, Consumer
from penstock.errors import OptionError
from penstock.settings.kinds import Text, parse_duration
from penstock.settings.places import NOUN, parse_place
from penstock.settings.table import integer, row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Consuming(Protocol):
    """The options of every tool that consumes; the rows below declare them."""

    @property
    def channel(self) -> str: ...
    @property
    def max_in_flight(self) -> int: ...
    @property
    def nsqd_tcp_address(self) -> tuple[str, ...]: ...
    @property
    def lookupd_http_address(self) -> tuple[str, ...]: ...
    @property
    def since(self) -> str: ...
    @property
    def consumer_opt(self) -> tuple[tuple[str, Any], ...]: ...


def nsqd_addresses() -> Any:
    return repeated("Source", "TCP address of an nsqd to consume from")


def lookupd_addresses() -> Any:
    return repeated("Source", "HTTP address of an nsqlookupd to find nsqds with")


def max_in_flight(help: str = "messages in flight, over all connections") -> Any:
    return integer("Source", 200, help, minimum=1)


class Since(Text):
    """``1h`` or a place in a log; kept as a place."""

    kind = "duration or place"
    noun = f"a duration such as 1h, {NOUN}"

    def parse(self, text: str) -> str:
        if not text:
            return text
        try:
            return str(parse_place(f"-{text}" if parse_duration(text) > 0 else text))
        except ValueError:
            return str(parse_place(text))


def since(group: str = "Source") -> Any:
    help = "where a new channel starts: this long ago, or a place; no effect on existing channels"
    return row(Since(), group, "", help, own=True)


def check_source(options: Consuming) -> None:
    check_one_kind("--nsqd-tcp-address", options.nsqd_tcp_address, options.lookupd_http_address)


def check_one_kind(flag: str, nsqds: Sequence[str], lookupds: Sequence[str]) -> None:
    if not nsqds and not lookupds:
        raise OptionError(f"{flag} or --lookupd-http-address required")
    if nsqds and lookupds:
        raise OptionError(f"use {flag} or --lookupd-http-address not both")


def consumer_config(
    program: str, options: Consuming, standing: Mapping[str, Any], **fixed: Any
) -> Config:
    """``--max-in-flight`` and ``--since`` override the client's ``max_in_flight`` and ``start``."""
    fixed = {"max_in_flight": options.max_in_flight, **fixed}
    if options.since:
        fixed["start"] = options.since
    return client_config(program, options.consumer_opt, standing, **fixed)


def make_consumer(options: Consuming, topic: str, handler: Any, config: Config) -> Consumer:
    return Consumer(
        topic,
        options.channel,
        handler,
        nsqd_tcp_addresses=options.nsqd_tcp_address,
        lookupd_http_addresses=options.lookupd_http_address,
        config=config,
    )


async def start_all(consumers: Sequence[Consumer]) -> None:
    await asyncio.gather(*(consumer.start() for consumer in consumers))


@asynccontextmanager
async def running(
    consumers: Sequence[Consumer], options: Consuming, stop: asyncio.Event
) -> AsyncIterator[None]:
    """Start all, and at the end stop all, which finishes messages in flight (30 s at most).

    An nsqd given by address that cannot be reached at start is an error; later the client
    reconnects.  ``stop`` also interrupts the start: an nsqd that hangs would delay it by 11 s.
    """
    try:
        if await unless_stopped(start_all(consumers), stop):
            for consumer in consumers:
                missing = set(options.nsqd_tcp_address) - set(consumer.connections)
                if missing:
                    raise ToolError(f"failed to connect to nsqd {', '.join(sorted(missing))}")
        yield
    finally:
        await asyncio.gather(*(consumer.stop() for consumer in consumers))
