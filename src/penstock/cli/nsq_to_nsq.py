"""`nsq_to_nsq`: republishes the messages of topics to one of several nsqds.

    consumer --> filter --> destination --OK--> FIN
                   |             `---error--> REQ, and the consumer backs off
                   `--dropped--> FIN

Rule 1: a message is finished when its destination has stored it; it may be stored twice, but is
        never lost.
Rule 2: a destination that is not connected fails immediately, so that the pool uses others.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from penstock.cli.host_pool import make_pool
from penstock.cli.timings import Timing
from penstock.cli.tool import (
    Signals,
    client_config,
    client_options,
    log_level,
    repeated,
    start_tool,
    status_every,
    tool_table,
)
from penstock.client import Config, Message, Producer
from penstock.errors import ClientError, NotConnectedError, OptionError
from penstock.settings.table import string
from penstock.wire.names import is_valid_name

log = logging.getLogger("penstock.cli")

PROGRAM = "nsq_to_nsq"
STOP_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class ToNsqdOptions:
    topic: tuple[str, ...] = repeated("Messages", "topic to consume")
    channel: str = string("Messages", "nsq_to_nsq", "channel to consume from")
    destination_topic: str = string(
        "Destination", "", "topic to publish all messages to", default_text="the message's own"
    )
    destination_nsqd_tcp_address: tuple[str, ...] = repeated(
        "Destination", "TCP address of an nsqd to publish to"
    )
    mode: str = string(
        "Destination", "hostpool", "round-robin, hostpool or epsilon-greedy; others: round-robin"
    )
    require_json_field: str = string("Filter", "", "drop messages without this field")
    require_json_value: str = string("Filter", "", "drop messages whose field has another value")
    whitelist_json_field: tuple[str, ...] = repeated(
        "Filter", "field to keep; all others are removed"
    )
    max_in_flight: int = max_in_flight("messages in flight per topic")
    since: str = since()
    nsqd_tcp_address: tuple[str, ...] = nsqd_addresses()
    lookupd_http_address: tuple[str, ...] = lookupd_addresses()
    consumer_opt: tuple[tuple[str, Any], ...] = client_options("consumer")
    producer_opt: tuple[tuple[str, Any], ...] = client_options("producer")
    status_every: int = status_every("messages")
    log_level: str = log_level()


def flag_table() -> FlagTable[ToNsqdOptions]:
    return tool_table(
        PROGRAM, ToNsqdOptions, "Republishes the messages of topics to another topic or nsqd."
    )


def checked(options: ToNsqdOptions) -> ToNsqdOptions:
    if not options.topic or not options.channel:
        raise OptionError("--topic and --channel are required")
    if options.destination_topic and not is_valid_name(options.destination_topic):
        raise OptionError(f"--destination-topic {options.destination_topic!r} is invalid")
    check_source(options)
    if not options.destination_nsqd_tcp_address:
        raise OptionError("--destination-nsqd-tcp-address required")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Relay until stopped; return the exit status."""
    return start_tool(flag_table(), argv, run, checked)


async def run(options: ToNsqdOptions, signals: Signals) -> int:
    config = consumer_config(PROGRAM, options, {})
    # The retry is the message's next delivery, perhaps to another destination.
    producing = client_config(PROGRAM, options.producer_opt, {"publish_retries": 0})
    relay = Relay(options, producing)
    consumers = [
        make_consumer(options, topic, relay.handler(topic), config)
        for topic in dict.fromkeys(options.topic)
    ]
    try:
        async with running(consumers, options, signals.stop):
            await signals.stop.wait()
    finally:
        await relay.stop()
    return 0


class Destination:
    """One nsqd; connected on first use, and reconnected by its producer."""

    def __init__(self, address: str, config: Config) -> None:
        self._address = address
        self._config = config
        self._producer: Producer | None = None
        self._connecting = asyncio.Lock()

    async def publish(self, topic: str, body: bytes) -> None:
        async with self._connecting:
            if self._producer is None:
                producer = Producer([self._address], config=self._config)
                await producer.start()
                self._producer = producer
        if not self._producer.connections:
            raise NotConnectedError(f"{self._address}: not connected")
        await self._producer.publish(topic, body)

    async def stop(self) -> None:
        if self._producer is not None:
            await self._producer.stop()


class Relay:
    """All destinations, and the pool that selects one."""

    def __init__(self, options: ToNsqdOptions, config: Config) -> None:
        addresses = list(dict.fromkeys(options.destination_nsqd_tcp_address))
        self._destinations = {address: Destination(address, config) for address in addresses}
        for address in addresses:
            Producer([address], config=config)  # raises if the address is invalid
        self._pool = make_pool(options.mode, addresses)
        self._filter = Filter(options)
        self._timing = Timing(options.status_every)
        self._topic = options.destination_topic

    def handler(self, topic: str) -> Any:
        async def handle(message: Message) -> bool:
            return await self._handle(self._topic or topic, message)

        return handle

    async def _handle(self, topic: str, message: Message) -> bool:
        """Filter and publish a message; False requeues it."""
        try:
            body = self._filter.apply(message.body)
        except MissingField as error:
            log.error("%s", error)
            return False
        if body is None:
            return True
        loop = asyncio.get_running_loop()
        address = self._pool.take()
        since_s = loop.time()
        try:
            await self._destinations[address].publish(topic, body)
        except (ClientError, OSError) as error:
            self._pool.report(address, loop.time() - since_s, False)
            log.error("nsqd=%s topic=%s: failed to publish: %s", address, topic, error)
            return False
        elapsed_s = loop.time() - since_s
        self._pool.report(address, elapsed_s, True)
        self._timing.add(address, elapsed_s)
        return True

    async def stop(self) -> None:
        """Stop without waiting for replies: messages that are not stored by now were requeued."""
        stopping = asyncio.gather(*(each.stop() for each in self._destinations.values()))
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping, STOP_SECONDS_MAX)


class MissingField(Exception):
    """A message does not have the required field."""


class Filter:
    """Selects messages and the fields to keep."""

    def __init__(self, options: ToNsqdOptions) -> None:
        self._field = options.require_json_field
        self._value = options.require_json_value
        self._fields = sorted(set(options.whitelist_json_field))
        self._active = bool(self._field or self._value or self._fields)

    def apply(self, body: bytes) -> bytes | None:
        """The body to publish; None drops the message."""
        if not self._active:
            return body
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            log.error("dropped, not JSON: %s: %r", error, body[:80])
            return None
        if not isinstance(value, dict):
            log.error("dropped, not a JSON object: %r", body[:80])
            return None
        if self._field and not self._passes(value):
            return None
        if not self._fields:
            return body
        kept = {name: integral(value[name]) for name in self._fields if name in value}
        return json.dumps(kept, separators=(",", ":"), ensure_ascii=False).encode()

    def _passes(self, value: dict[str, Any]) -> bool:
        if self._field not in value:
            if self._value:
                raise MissingField(f"json: missing field {self._field!r}")
            return False
        return not self._value or equal(value[self._field], self._value)


def equal(found: Any, wanted: str) -> bool:
    """Compare a string as text and a number by value; other types are never equal."""
    if isinstance(found, str):
        return found == wanted
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return False
    try:
        return float(found) == float(wanted)
    except (ValueError, OverflowError):
        return False


def integral(value: Any) -> Any:
    """1.0 is written as 1, as NSQ's nsq_to_nsq does for the fields it keeps."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
