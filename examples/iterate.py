"""Consume with ``async for``: a message is finished when the loop takes the next one.

python examples/iterate.py [nsqd's TCP address]
"""

import asyncio
import sys

from penstock import Consumer, Producer

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"


async def main() -> None:
    async with Producer(NSQD) as producer:
        await producer.publish_many("numbers", [b"%d" % number for number in range(1, 11)])

    total = 0
    async with Consumer("numbers", "sum", nsqd_tcp_addresses=NSQD, max_in_flight=10) as consumer:
        async for message in consumer:
            total += int(message.body)
            if total == 55:
                message.finish()  # `break` ends the loop, which would have done it
                break
    print("sum:", total)


asyncio.run(main())
