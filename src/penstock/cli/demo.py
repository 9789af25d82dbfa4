"""`penstock demo`: sample orders and clicks, a few per second.

    orders    {"id": 17, "customer": "carla", "total": 12.5, "at": "2026-11-15T10:31:22Z"}
    clicks    {"page": "/shop", "customer": "emil", "ms": 81}

One order in a hundred is invalid JSON, as in real life.  With -consume a consumer reads the orders
on the channel billing and fails at those; `penstock up` has a policy that buries them.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.cli.flags import FlagTable
from penstock.cli.tool import Signals, client_config, log_level, start_tool, unless_stopped
from penstock.client import Consumer, Message, Producer
from penstock.errors import ClientError
from penstock.net import log
from penstock.settings.table import boolean, integer, string

PROGRAM = "penstock demo"
CUSTOMERS = ("anna", "bert", "carla", "dora", "emil", "frida")
PAGES = ("/", "/shop", "/cart", "/help")
TICK_S = 0.1
STOP_TIMEOUT_S = 2.0
CHANNEL = "billing"
# While nsqd has no policy for the channel.
MAX_ATTEMPTS = 10
BROKEN_PERCENT = 1


@dataclass(frozen=True, slots=True)
class DemoOptions:
    nsqd_tcp_address: str = string("Demo", "127.0.0.1:4150", "nsqd to publish to", own=True)
    rate: int = integer("Demo", 20, "messages per second", minimum=1, maximum=100_000, own=True)
    consume: bool = boolean(
        "Demo",
        False,
        "read the orders too, on the channel billing, and fail at invalid ones",
        own=True,
    )
    count: int = integer("Demo", 0, "messages to publish; 0: no limit", minimum=0, own=True)
    log_level: str = log_level()


def flag_table() -> FlagTable[DemoOptions]:
    return FlagTable(
        PROGRAM,
        DemoOptions,
        summary="Publishes sample messages to the topics orders and clicks.",
        environment_prefix="PENSTOCK_DEMO_",
    )


def main(argv: Sequence[str] | None = None) -> int:
    return start_tool(flag_table(), argv, run)


def make_message(number: int, chance: random.Random) -> tuple[str, bytes]:
    """(topic, body)."""
    customer = chance.choice(CUSTOMERS)
    if chance.random() < 0.5:
        click = {
            "page": chance.choice(PAGES),
            "customer": customer,
            "ms": int(chance.lognormvariate(4, 1)),
        }
        return "clicks", json.dumps(click).encode()
    if chance.randrange(100) < BROKEN_PERCENT:
        return "orders", b"oops, not JSON"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    total = round(chance.lognormvariate(3, 1), 2)
    order = {"id": number, "customer": customer, "total": total, "at": now}
    return "orders", json.dumps(order).encode()


async def run(options: DemoOptions, signals: Signals) -> int:
    config = client_config(PROGRAM, (), {"stop_timeout": STOP_TIMEOUT_S})
    producer = Producer([options.nsqd_tcp_address], config=config)
    consumer = _consumer(options) if options.consume else None
    try:
        if consumer is not None:
            await consumer.start()
        await unless_stopped(_publish_all(options, producer), signals.stop)
    finally:
        await producer.stop()
        if consumer is not None:
            await consumer.stop()
    return 0


def _consumer(options: DemoOptions) -> Consumer:
    fixed = {"stop_timeout": STOP_TIMEOUT_S, "max_attempts": MAX_ATTEMPTS, "max_in_flight": 20}
    config = client_config(PROGRAM, (), fixed)
    address = options.nsqd_tcp_address
    return Consumer("orders", CHANNEL, bill, nsqd_tcp_addresses=[address], config=config)


async def bill(message: Message) -> None:
    """Read an order; nsqd buries one that cannot be read after its last attempt."""
    try:
        json.loads(message.body)
    except ValueError:
        log.LOGGER.warning(
            "topic=orders channel=%s: attempt %d: %.40r is not JSON",
            *(CHANNEL, message.attempts, message.body),
        )
        # At once, and without a pause for the others.
        message.requeue(0, backoff=False)


async def _publish_all(options: DemoOptions, producer: Producer) -> None:
    chance = random.Random(0)
    await producer.start()
    log.LOGGER.info("publishing %d messages per second to orders and clicks", options.rate)
    number, due = 0, 0.0
    while True:
        due += options.rate * TICK_S
        while number < due:
            if options.count and number >= options.count:
                return
            number += 1
            await _publish(producer, *make_message(number, chance))
        await asyncio.sleep(TICK_S)


async def _publish(producer: Producer, topic: str, body: bytes) -> None:
    """Publish, and log an error instead of failing: a demo survives restarts of its nsqd."""
    try:
        await producer.publish(topic, body)
    except ClientError as error:
        log.LOGGER.warning("topic=%s: %s", topic, error)
        await asyncio.sleep(1.0)
