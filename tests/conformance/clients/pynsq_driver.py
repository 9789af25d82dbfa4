"""A driver of pynsq: its Reader and its Writer on tornado's loop."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import nsq

HEARTBEAT_S = 1


def tell(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def secured(ca: str = "", secret: str = "", **compression: bool) -> dict[str, Any]:
    tls = {"tls_v1": True, "tls_options": {"ca_certs": ca}} if ca else {}
    return {**tls, **compression, "auth_secret": secret or None}


class Driver:
    def __init__(self, address: str, security: dict[str, Any]) -> None:
        self._address = address
        self._secured = secured(**security)
        self._writer = nsq.Writer([address], heartbeat_interval=HEARTBEAT_S, **self._secured)
        self._reader: Any = None
        self._messages: dict[str, Any] = {}

    async def connect(self) -> None:
        while not self._writer.conns:
            await asyncio.sleep(0.01)

    def do_subscribe(self, topic: str, channel: str, ready: int, timeout_ms: int) -> None:
        self._reader = nsq.Reader(
            topic,
            channel,
            self._take,
            nsqd_tcp_addresses=[self._address],
            max_in_flight=ready,
            max_tries=1000,
            msg_timeout=timeout_ms / 1000,
            heartbeat_interval=HEARTBEAT_S,
            **self._secured,
        )
        tell("subscribed")

    def _take(self, message: Any) -> None:
        message.enable_async()
        id = message.id.decode()
        self._messages[id] = message
        tell(
            "message",
            id=id,
            attempts=message.attempts,
            timestamp_ns=message.timestamp,
            body=message.body.decode("latin-1"),
        )

    def do_publish(self, topic: str, bodies: list[str]) -> None:
        raw = [body.encode("latin-1") for body in bodies]
        if len(raw) == 1:
            self._writer.pub(topic, raw[0], self._published)
        else:
            self._writer.mpub(topic, raw, self._published)

    def do_defer(self, topic: str, body: str, delay_ms: int) -> None:
        self._writer.dpub(topic, delay_ms, body.encode("latin-1"), self._published)

    def _published(self, _conn: Any, answer: Any) -> None:
        tell("published", error=None if answer == b"OK" else str(answer))

    def do_finish(self, id: str) -> None:
        self._messages.pop(id).finish()

    def do_touch(self, id: str) -> None:
        self._messages[id].touch()

    def do_requeue(self, id: str, delay_ms: int) -> None:
        self._messages.pop(id).requeue(backoff=False, time_ms=delay_ms)


async def main(port: str, security: str = "{}") -> None:
    driver = Driver(f"127.0.0.1:{port}", json.loads(security))
    await driver.connect()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        getattr(driver, f"do_{command.pop('do')}")(**command)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
