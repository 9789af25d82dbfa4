"""A handler that fails, messages that are retried, and messages that are given up.

python examples/retries.py [nsqd's TCP address]
"""

import asyncio
import sys

from penstock import Consumer, Message, Producer

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"


async def main() -> None:
    producer = Producer(NSQD)
    ended = asyncio.Semaphore(0)

    def handle(message: Message) -> None:
        print(f"{message.body.decode()}, attempt {message.attempts}")
        if message.body == b"flaky" and message.attempts < 3:
            message.requeue(0.1, backoff=False)  # retry this one soon; others continue
        elif message.body == b"hopeless":
            raise ValueError("cannot be handled")  # retry later; the consumer backs off
        else:
            ended.release()

    async def give_up(message: Message) -> None:
        await producer.publish("orders-failed", message.body)  # finished only if this succeeds
        ended.release()

    consumer = Consumer(
        "orders",
        "billing",
        handle,
        give_up=give_up,
        nsqd_tcp_addresses=NSQD,
        max_attempts=2,
        default_requeue_delay=0.1,
        backoff_multiplier=0.05,
    )
    await producer.publish_many("orders", [b"fine", b"hopeless"])
    async with consumer:
        await ended.acquire()
        await ended.acquire()
    print("given up:", consumer.stats.given_up)

    consumer = Consumer("orders", "billing", handle, nsqd_tcp_addresses=NSQD)
    await producer.publish("orders", b"flaky")
    async with consumer:
        await ended.acquire()
    await producer.stop()


asyncio.run(main())
