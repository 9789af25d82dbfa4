"""A driver of ansq: its Reader and its Writer on asyncio."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import ansq
from ansq.tcp.connection import NSQConnection
from ansq.tcp.types import ConnectionFeatures, ConnectionOptions

from tests.conformance.clients import ansq_upgrades

HEARTBEAT_MS = 1000


def tell(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def options(**features: Any) -> ConnectionOptions:
    return ConnectionOptions(
        features=ConnectionFeatures(heartbeat_interval=HEARTBEAT_MS, **features)
    )


def authorize(secret: str) -> None:
    """AUTH on every connection.

    ansq knows the command, but not when to send it, nor does it note that it was allowed.
    """
    identify: Any = NSQConnection.identify

    async def identify_and_auth(self: Any, *args: Any, **fields: Any) -> Any:
        answer = await identify(self, *args, **fields)
        await self.auth(secret)
        self._is_authorized = True
        return answer

    setattr(NSQConnection, "identify", identify_and_auth)  # noqa: B010


class Driver:
    def __init__(self, address: str, features: dict[str, Any]) -> None:
        self._address = address
        self._features = features
        self._writer: Any = None
        self._reader: Any = None
        self._taking: asyncio.Task[None] | None = None
        self._messages: dict[str, Any] = {}

    async def connect(self) -> None:
        self._writer = await ansq.create_writer([self._address], options(**self._features))

    async def do_subscribe(self, topic: str, channel: str, ready: int, timeout_ms: int) -> None:
        self._reader = await ansq.create_reader(
            topic,
            channel,
            [self._address],
            connection_options=options(msg_timeout=timeout_ms, **self._features),
        )
        await self._reader.connections[0].rdy(ready)
        self._taking = asyncio.create_task(self._take())
        tell("subscribed")

    async def _take(self) -> None:
        async for message in self._reader.messages():
            self._messages[message.id] = message
            tell(
                "message",
                id=message.id,
                attempts=message.attempts,
                timestamp_ns=message.timestamp,
                body=message.body.decode("latin-1"),
            )

    async def do_publish(self, topic: str, bodies: list[str]) -> None:
        raw = [body.encode("latin-1") for body in bodies]
        if len(raw) == 1:
            answer = await self._writer.pub(topic, raw[0])
        else:
            answer = await self._writer.mpub(topic, *raw)
        self._published(answer)

    async def do_defer(self, topic: str, body: str, delay_ms: int) -> None:
        self._published(await self._writer.dpub(topic, body.encode("latin-1"), delay_ms))

    def _published(self, answer: Any) -> None:
        tell("published", error=None if answer.body == b"OK" else str(answer))

    async def do_finish(self, id: str) -> None:
        await self._messages.pop(id).fin()

    async def do_touch(self, id: str) -> None:
        await self._messages[id].touch()

    async def do_requeue(self, id: str, delay_ms: int) -> None:
        await self._messages.pop(id).req(delay_ms)


async def main(port: str, security: str = "{}") -> None:
    given = json.loads(security)
    if "secret" in given:
        authorize(given.pop("secret"))
    ca = given.pop("ca", None)
    if ca or given:
        ansq_upgrades.install(ca)
    driver = Driver(f"127.0.0.1:{port}", {"tls_v1": ca is not None, **given})
    await driver.connect()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        await getattr(driver, f"do_{command.pop('do')}")(**command)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
