"""Consumers that know nsqlookupds only: ``finders pynsq|ansq <topic> <channel> <address>...``.

Each message's body goes to standard output, a line each, and is finished.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

POLL_SECONDS = 1


def find_with_pynsq(topic: str, channel: str, addresses: list[str]) -> None:
    import nsq

    def take(message: Any) -> bool:
        print(message.body.decode(), flush=True)
        return True

    nsq.Reader(
        topic,
        channel,
        take,
        lookupd_http_addresses=[f"http://{address}" for address in addresses],
        lookupd_poll_interval=POLL_SECONDS,
        lookupd_poll_jitter=0.0,
        max_in_flight=10,
    )
    nsq.run()


async def find_with_ansq(topic: str, channel: str, addresses: list[str]) -> None:
    import ansq

    reader = await ansq.create_reader(
        topic,
        channel,
        lookupd_http_addresses=addresses,
        lookupd_poll_interval=POLL_SECONDS * 1000,
        lookupd_poll_jitter=0.0,
    )
    async for message in reader.messages():
        print(message.body.decode(), flush=True)
        await message.fin()


if __name__ == "__main__":
    client, topic, channel, *addresses = sys.argv[1:]
    if client == "pynsq":
        find_with_pynsq(topic, channel, addresses)
    else:
        asyncio.run(find_with_ansq(topic, channel, addresses))
