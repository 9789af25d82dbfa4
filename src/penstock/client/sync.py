"""Producers and consumers for programs without asyncio.

    from penstock.client import sync

    with sync.Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"...")

    with sync.Consumer("orders", "email", nsqd_tcp_addresses="127.0.0.1:4150") as consumer:
        for message in consumer:            # finished when the loop takes the next one
            ...

An event loop runs in its own thread, so heartbeats are answered however long the program takes.
Methods may be called from any thread, and raise the same errors as the asyncio classes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import uvloop

from penstock.client import consumer as consumers
from penstock.client import producer as producers
from penstock.client.config import Config
from penstock.client.message import Message
from penstock.client.options import Options
from penstock.client.producer import Body
from penstock.client.runner import fail
from penstock.errors import StoppedError

T = TypeVar("T")


class Background:
    """A loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self.loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise StoppedError("the producer or consumer was stopped")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and wait for its result; Ctrl-C cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


class Stoppable:
    """``with``, ``start`` and ``stop`` of both classes below.

    ``begin`` and ``leave`` are the first and last coroutines that run on the loop's thread.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], Coroutine[Any, Any, None]],
        leave: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._name = name
        self._begin = begin
        self._leave = leave
        self._background: Background | None = None
        self._stopped = False

    def start(self) -> None:
        if self._stopped:
            raise StoppedError(f"the {self._name} was stopped")
        if self._background is None:
            self._background = Background(f"penstock-{self._name}")
            try:
                self._background.wait(self._begin())
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Wait for pending work and disconnect; permanent."""
        background, self._background, self._stopped = self._background, None, True
        if background is not None:
            try:
                background.wait(self._leave())
            finally:
                background.end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _loop(self) -> Background:
        if self._background is None:
            self.start()
        assert self._background is not None
        return self._background


class Producer(Stoppable):
    """As `penstock.Producer`, blocking."""

    def __init__(
        self,
        nsqd_tcp_addresses: Sequence[str] | str,
        *,
        config: Config | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._producer = producers.Producer(nsqd_tcp_addresses, config=config, **options)
        super().__init__("producer", self._producer.start, self._producer.stop)

    def publish(self, topic: str, body: Body, *, delay: float = 0.0) -> None:
        """Publish a message; returns when it is stored."""
        self._loop().wait(self._producer.publish(topic, body, delay=delay))

    def publish_many(self, topic: str, bodies: Sequence[Body]) -> None:
        """Publish all of ``bodies`` or none, in one MPUB."""
        self._loop().wait(self._producer.publish_many(topic, bodies))

    def send(
        self, topic: str, body: Body, *, delay: float = 0.0
    ) -> concurrent.futures.Future[None]:
        """Publish without waiting; the future's ``result()`` waits."""
        return self._loop().submit(self._producer.publish(topic, body, delay=delay))


class Consumer(Stoppable):
    """As `penstock.Consumer`, but messages are handled on the calling thread."""

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd_tcp_addresses: Sequence[str] | str = (),
        lookupd_http_addresses: Sequence[str] | str = (),
        give_up: consumers.GiveUp | None = None,
        config: Config | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._left: Message | None = None
        self._consumer = consumers.Consumer(
            topic,
            channel,
            self._take,
            nsqd_tcp_addresses=nsqd_tcp_addresses,
            lookupd_http_addresses=lookupd_http_addresses,
            give_up=give_up,
            config=Config.of(config, **options),
        )
        super().__init__("consumer", self._consumer.start, self._hand_back)

    @property
    def stats(self) -> consumers.Stats:
        return self._consumer.stats

    def _take(self, message: Message) -> None:
        message.enable_async()
        if self._stopped:
            message.requeue(0.0, backoff=False)
        else:
            self._messages.put(message)

    def get(self, timeout: float | None = None) -> Message | None:
        """Return the next message, which the caller answers; None on timeout or if stopped."""
        self.start()
        while True:
            try:
                message = self._messages.get(timeout=timeout)
            except queue.Empty:
                return None
            if message is None:
                self._messages.put(None)  # for other threads that wait
                return None
            if not message.owner.closed:
                return message

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages; each is finished when the next one is taken."""
        while (message := self.get()) is not None:
            try:
                yield message
            except GeneratorExit:
                # The loop was left: the program may still answer, until it stops the consumer.
                self._left = message
                raise
            message.finish()

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call ``handler`` for each message, on this thread, until another calls `stop`."""
        while (message := self.get()) is not None:
            try:
                result = handler(message)
            except Exception as error:
                fail(message, error)
            else:
                message.requeue() if result is False else message.finish()

    async def _hand_back(self) -> None:
        """Hand back messages that are not started, wait for those being handled, disconnect."""
        # Before messages are handed back: nsqd must not deliver them here again.
        self._consumer.begin_stop()
        waiting = [self._left]
        while not self._messages.empty():
            waiting.append(self._messages.get())
        for message in waiting:
            if message is not None:
                message.requeue(0.0, backoff=False)
        self._messages.put(None)
        await self._consumer.stop()
