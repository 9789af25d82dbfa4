"""Publish three messages and consume them.

python examples/hello.py [nsqd's TCP address]
"""

import asyncio
import sys

from penstock import Consumer, Message, Producer

NSQD = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"


async def main() -> None:
    handled = asyncio.Semaphore(0)

    async def handle(message: Message) -> None:
        print(message.body.decode())
        handled.release()

    async with Producer(NSQD) as producer:
        for name in ("Ada", "Grace", "Barbara"):
            await producer.publish("hello", f"hello, {name}".encode())

    async with Consumer("hello", "print", handle, nsqd_tcp_addresses=NSQD):
        for _ in range(3):
            await handled.acquire()


asyncio.run(main())
