"""Publish and consume in bulk.

python examples/batches.py [nsqd's TCP address]
"""

import asyncio
import sys

from penstock import Consumer, Message, Producer

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"
COUNT = 20_000


async def main() -> None:
    # `send` waits only if too much is in flight; a future is done when its message is stored.
    async with Producer(NSQD, batch_publish_count=500) as producer:
        stored = [await producer.send("events", b"event %d" % n) for n in range(COUNT)]
        await asyncio.gather(*stored)
    print("published:", COUNT)

    rows = 0
    done = asyncio.Event()

    async def insert(messages: list[Message]) -> None:
        nonlocal rows
        await asyncio.sleep(0.001)  # one statement for all of them
        rows += len(messages)
        if rows >= COUNT:
            done.set()

    async with Consumer(
        "events", "database", insert, nsqd_tcp_addresses=NSQD, max_in_flight=2000, batch_size=500
    ):
        await done.wait()
    print("inserted:", rows)


asyncio.run(main())
