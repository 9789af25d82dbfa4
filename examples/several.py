"""Several nsqds: publishes take turns, and skip one that is down; a consumer reads from all.

python examples/several.py [nsqd's TCP address ...]
"""

import asyncio
import sys

from penstock import Consumer, Message, Producer

NSQDS = sys.argv[1:] or ["127.0.0.1:4150"]


async def main() -> None:
    async with Producer(NSQDS) as producer:
        await asyncio.gather(*(producer.publish("work", b"%d" % n) for n in range(100)))

    left = set(range(100))
    done = asyncio.Event()

    def handle(message: Message) -> None:
        left.discard(int(message.body))
        if not left:
            done.set()

    consumer = Consumer("work", "crew", handle, nsqd_tcp_addresses=NSQDS, max_in_flight=20)
    async with consumer:
        await done.wait()
        print("connected to", len(consumer.connections))
    print("finished", consumer.stats.finished)


asyncio.run(main())
