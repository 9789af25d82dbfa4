"""Coroutines of tests, on both loops, with a limit; an error in the loop fails the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from penstock.client import Consumer, Message
from tests.support.daemon import Nsqd

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
# Small waits: what is tested is that things happen, not that they take long.
QUICK: dict[str, Any] = {
    "reconnect_delay": 0.02,
    "max_reconnect_delay": 0.2,
    "default_requeue_delay": 0.0,
    "max_backoff_duration": 0.0,
    "output_buffer_timeout": 0.025,
    "stop_timeout": 5,
}


def run(work: Coroutine[Any, Any, None], loop: str = "uvloop", timeout_s: float = 90.0) -> None:
    """Run ``work``; it must end in time and leave no error behind."""
    errors: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: errors.append(found))
        async with asyncio.timeout(timeout_s):
            await work

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(watched())
    assert errors == []


class Received:
    """A handler that keeps what it was given."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(self, message: Message) -> None:
        self.messages.append(message)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def consumer_of(
    nsqd: Nsqd | str, topic: str, handler: Callable[[Any], Any] | None = None, **options: Any
) -> Consumer:
    address = nsqd if isinstance(nsqd, str) else f"127.0.0.1:{nsqd.tcp_port}"
    options.setdefault("nsqd_tcp_addresses", [address])
    return Consumer(topic, "ch", handler, **{**QUICK, **options})
