"""The load of one client library in its own process; prints rate and CPU as JSON.

    python -m bench.client_load <library> <work> <port> <topic> <messages> <seconds>

Every library does the same job, as its users would write it: ``consume`` finishes messages with up
to 2,500 in flight; ``publish`` keeps 100 single publishes in flight; ``publish-many`` eight batches
of 100, ``publish-in-turn`` one.  Every acknowledgement is awaited.  Time and CPU count from the
first message to the last, without the start.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn

IN_FLIGHT = 2500
OUTSTANDING = 100
BATCH = 100
BATCHES = {"publish-many": 8, "publish-in-turn": 1}  # in flight
BODY = b"x" * 200


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass
class Load:
    """The load to generate, and the progress."""

    address: str
    topic: str
    messages: int
    seconds: float
    done: int = 0
    started: int = 0
    start_s: float = 0.0
    start_cpu_s: float = field(default=0.0)

    def begin(self) -> None:
        self.start_s, self.start_cpu_s = time.perf_counter(), cpu_s()

    def count(self, count: int = 1) -> None:
        """Add ``count``; print the result and exit when enough are done."""
        if not self.start_s:
            self.begin()
            return
        self.done += count
        # The last ones in flight are left out, like the first one.
        enough = self.done >= self.messages - OUTSTANDING * count
        if enough or (self.done % 32 == 0 and time.perf_counter() - self.start_s > self.seconds):
            self.end()

    def another(self) -> bool:
        self.started += 1
        return self.started <= self.messages

    def end(self) -> NoReturn:
        seconds, used_s = time.perf_counter() - self.start_s, cpu_s() - self.start_cpu_s
        print(json.dumps({"rate": self.done / seconds, "cpu_us": used_s / self.done * 1e6}))
        sys.stdout.flush()
        # Stopping differs between the libraries and is not measured.
        os._exit(0)


def on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    import uvloop

    uvloop.run(work)


def penstock(load: Load, work: str) -> None:
    from penstock import Consumer, Message, Producer

    def handle(message: Message) -> None:
        load.count()

    async def handle_async(message: Message) -> None:
        load.count()

    async def consume(handler: Any) -> None:
        await Consumer(
            load.topic,
            "bench",
            handler,
            nsqd_tcp_addresses=load.address,
            max_in_flight=IN_FLIGHT,
        ).run()

    async def publish() -> None:
        async with Producer(load.address) as producer:

            async def one_by_one() -> None:
                while load.another():
                    await producer.publish(load.topic, BODY)
                    load.count()

            await asyncio.gather(*(one_by_one() for _ in range(OUTSTANDING)))
            load.end()

    async def publish_many() -> None:
        async with Producer(load.address) as producer:

            async def in_turn() -> None:
                while True:
                    await producer.publish_many(load.topic, [BODY] * BATCH)
                    load.count(BATCH)

            await asyncio.gather(*(in_turn() for _ in range(BATCHES[work])))

    if work.startswith("consume"):
        on_uvloop(consume(handle if work == "consume" else handle_async))
    else:
        on_uvloop(publish() if work == "publish" else publish_many())


def pynsq(load: Load, work: str) -> None:
    import nsq
    from tornado.ioloop import IOLoop

    if work == "consume":

        def handle(message: Any) -> bool:
            load.count()
            return True

        nsq.Reader(
            message_handler=handle,
            nsqd_tcp_addresses=[load.address],
            topic=load.topic,
            channel="bench",
            max_in_flight=IN_FLIGHT,
        )
        nsq.run()
        return
    writer = nsq.Writer([load.address])

    def stored(connection: Any, answer: Any) -> None:
        assert answer == b"OK", answer
        load.count(BATCH if work in BATCHES else 1)
        publish()

    def publish() -> None:
        if work in BATCHES:
            writer.mpub(load.topic, [BODY] * BATCH, callback=stored)
        elif load.another():
            writer.pub(load.topic, BODY, callback=stored)

    def begin() -> None:
        for _ in range(BATCHES.get(work, OUTSTANDING)):
            publish()

    IOLoop.current().call_later(0.5, begin)
    nsq.run()


def ansq(load: Load, work: str) -> None:
    import ansq

    async def consume() -> None:
        reader = await ansq.create_reader(load.topic, "bench", [load.address])
        await reader.connections[0].rdy(IN_FLIGHT)
        async for message in reader.messages():
            await message.fin()
            load.count()

    async def publish() -> None:
        writer = await ansq.create_writer([load.address])

        async def one_by_one() -> None:
            while load.another():
                await writer.pub(load.topic, BODY)
                load.count()

        await asyncio.gather(*(one_by_one() for _ in range(OUTSTANDING)))
        load.end()

    async def publish_many() -> None:
        writer = await ansq.create_writer([load.address])

        async def in_turn() -> None:
            while True:
                await writer.mpub(load.topic, *[BODY] * BATCH)
                load.count(BATCH)

        await asyncio.gather(*(in_turn() for _ in range(BATCHES[work])))

    on_uvloop({"consume": consume, "publish": publish}.get(work, publish_many)())


def gnsq(load: Load, work: str) -> None:
    from gevent import monkey

    monkey.patch_all()
    import gevent
    import gnsq

    if work == "consume":
        consumer = gnsq.Consumer(load.topic, "bench", load.address, max_in_flight=IN_FLIGHT)

        @consumer.on_message.connect
        def handle(consumer: Any, message: Any) -> None:
            message.finish()
            load.count()

        consumer.start()
        return
    producer = gnsq.Producer(load.address)
    producer.start()

    def one_by_one() -> None:
        while load.another():
            producer.publish(load.topic, BODY)
            load.count()

    def in_turn() -> None:
        while True:
            producer.multipublish(load.topic, [BODY] * BATCH)
            load.count(BATCH)

    if work == "publish":
        gevent.joinall([gevent.spawn(one_by_one) for _ in range(OUTSTANDING)])
        load.end()
    gevent.joinall([gevent.spawn(in_turn) for _ in range(BATCHES[work])])


LIBRARIES: dict[str, Callable[[Load, str], None]] = {
    "penstock": penstock,
    "pynsq": pynsq,
    "ansq": ansq,
    "gnsq": gnsq,
}


if __name__ == "__main__":
    library, work, port, topic, messages, seconds = sys.argv[1:]
    LIBRARIES[library](
        Load(f"127.0.0.1:{port}", topic, int(messages), float(seconds)),
        work,
    )
