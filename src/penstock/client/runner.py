"""Runners call the program's handler.

    Inline      a function, called on the loop as messages arrive
    Lanes       a coroutine function; lanes are tasks that handle one message after the other
    Batches     a function or coroutine function that takes a list
    Inbox       no handler: ``async for message in consumer``

Rule 1: a turn of the loop runs handlers for SLICE_S at most (or one call, if that is longer), so
        heartbeats are answered while thousands of messages wait.
Rule 2: the number of waiting messages is bounded by max_in_flight.
Rule 3: a message whose connection was lost while it waited is not handled: nsqd delivers it
        again, and could not receive its answer.
Rule 4: a task per message would cost more than most handlers.  A lane continues with the next
        message while handlers do not suspend; more lanes start only while messages wait and
        all lanes are suspended.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from penstock.client.config import Config
from penstock.client.message import RESPONDED, WAITING, Message

log = logging.getLogger("penstock.client")

SLICE_S = 0.005
IDLE_LANES_MAX = 64

Handler = Callable[[Any], Any]


class Runner(Protocol):
    def take(self, messages: list[Message]) -> None:
        """Handle messages that one subscription received."""

    def drain(self) -> None:
        """No more messages will be received: do not wait to fill a batch."""

    async def end(self) -> None:
        """Cancel running handlers; hand back messages that are not started or not answered."""


def make_runner(handler: Handler | None, config: Config) -> Runner:
    """Return the runner for this kind of ``handler``."""
    if handler is None:
        return Inbox()
    suspends = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )
    pool = None
    if config.threads and not suspends:
        pool = ThreadPoolExecutor(config.threads, "penstock-handler")
        handler, suspends = _in_threads(handler, pool), True
    if config.batch_size:
        return Batches(handler, config.batch_size, config.batch_timeout, pool)
    if suspends:
        return Lanes(handler, config.threads if pool else config.concurrency, pool)
    return Inline(handler)


def _in_threads(handler: Handler, pool: ThreadPoolExecutor) -> Handler:
    async def handle(given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, handler, given)

    return handle


def conclude(message: Message, result: object) -> None:
    """Answer a message whose handler has returned."""
    if message.state == WAITING:
        if result is False:
            message.owner.requeue(message, None, True)
        else:
            message.owner.finish(message)


def fail(message: Message, error: BaseException) -> None:
    """Requeue a message whose handler has raised, unless the handler answered it before."""
    subscription = message.owner
    log.error(
        "topic=%s channel=%s id=%s attempts=%d: handler failed: %r",
        *(subscription.consumer.topic, subscription.consumer.channel),
        *(message.id.decode("latin-1"), message.attempts, error),
        exc_info=error,
    )
    if message.state != RESPONDED:
        subscription.requeue(message, None, True)


def hand_back(messages: Iterable[Message]) -> None:
    """Requeue messages without delay, for another consumer."""
    for message in messages:
        message.owner.requeue(message, 0.0, False)


class Inline:
    """Calls a function for each message, on the loop."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[list[Message]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, messages: list[Message]) -> None:
        self._waiting.append(messages)
        if len(self._waiting) == 1:
            self._run()

    def _run(self) -> None:
        until_s = monotonic() + SLICE_S
        while self._waiting:
            messages = self._waiting[0]
            count = self._run_some(messages, until_s)
            if count < len(messages):
                self._waiting[0] = messages[count:]
                self._loop.call_soon(self._run)
                return
            self._waiting.popleft()

    def _run_some(self, messages: list[Message], until_s: float) -> int:
        """Run handlers until ``until_s``; return how many messages were processed."""
        handler = self._handler
        subscription = messages[0].owner
        finished: list[Message] = []
        count = 0
        for message in messages:
            if subscription.closed:
                return len(messages)
            count += 1
            try:
                result = handler(message)
            except Exception as error:
                fail(message, error)
            else:
                if message.state == WAITING:
                    if result is None or result is True:
                        message.state = RESPONDED
                        finished.append(message)
                    else:
                        self._conclude_later(message, result)
            if monotonic() > until_s:
                break
        subscription.finish_all(finished)
        return count

    def _conclude_later(self, message: Message, result: object) -> None:
        """Answer by the result of a function, which may be awaitable."""
        if not inspect.isawaitable(result):
            conclude(message, result)
            return
        task = self._loop.create_task(_await(message, result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drain(self) -> None:
        pass

    async def end(self) -> None:
        while self._waiting:
            hand_back(self._waiting.popleft())
        await cancel(self._tasks)


async def _await(message: Message, result: Awaitable[object]) -> None:
    try:
        conclude(message, await result)
    except asyncio.CancelledError:
        hand_back([message])
        raise
    except Exception as error:
        fail(message, error)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for them, a second at most."""
    running = [task for task in tasks if not task.done() and task is not asyncio.current_task()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=1.0)


class Lanes:
    """Awaits a coroutine function for each message, in as many tasks as suspend."""

    def __init__(self, handler: Handler, lane_max: int, pool: ThreadPoolExecutor | None) -> None:
        self._handler = handler
        self._lane_max = lane_max or 1 << 30
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Message] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._spread = 1
        self._starting = False

    def take(self, messages: list[Message]) -> None:
        self._waiting.extend(messages)
        if not self._starting:
            self._spread = 1
            self._start_lanes()

    def _start_lanes(self) -> None:
        """Wake or start lanes: one at first, twice as many in each turn while messages wait."""
        self._starting = bool(self._waiting)
        if not self._starting:
            return
        count = min(self._spread, len(self._waiting))
        while count and self._idle:
            self._idle.pop().set_result(None)
            count -= 1
        while count and len(self._lanes) < self._lane_max:
            lane = self._loop.create_task(self._lane())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
            count -= 1
        self._spread *= 2
        if count and not self._idle and len(self._lanes) >= self._lane_max:
            # All allowed lanes are busy; each takes its next message itself.
            self._starting = False
        else:
            self._loop.call_soon(self._start_lanes)

    async def _lane(self) -> None:
        until_s = monotonic() + SLICE_S
        while True:
            while self._waiting:
                message = self._waiting.popleft()
                if not message.owner.closed:
                    await self._handle(message)
                if monotonic() > until_s:
                    await asyncio.sleep(0)
                    until_s = monotonic() + SLICE_S
            if len(self._idle) >= IDLE_LANES_MAX:
                return
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._idle:
                    self._idle.remove(waiter)
                raise
            until_s = monotonic() + SLICE_S

    async def _handle(self, message: Message) -> None:
        try:
            conclude(message, await self._handler(message))
        except asyncio.CancelledError:
            hand_back([message])
            raise
        except Exception as error:
            fail(message, error)

    def drain(self) -> None:
        pass

    async def end(self) -> None:
        hand_back(self._waiting)
        self._waiting.clear()
        await cancel(self._lanes)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class Batches:
    """Calls a function with lists: when a batch is full, when its time is over, or when no more can
    be received because the in-flight limit is nearly reached."""

    def __init__(
        self, handler: Handler, size: int, timeout_s: float, pool: ThreadPoolExecutor | None
    ) -> None:
        self._handler = handler
        self._size = size
        self._timeout_s = timeout_s
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Message] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    def take(self, messages: list[Message]) -> None:
        self._waiting += messages
        while len(self._waiting) >= self._size:
            self._run(self._size)
        if not self._waiting:
            self._cancel_timer()
        elif self._draining or messages[0].owner.consumer.is_starved:
            self._run_all()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._run_all)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run_all(self) -> None:
        self._cancel_timer()
        while self._waiting:
            self._run(self._size)

    def _run(self, count: int) -> None:
        batch = [message for message in self._waiting[:count] if not message.owner.closed]
        del self._waiting[:count]
        if not batch:
            return
        try:
            result = self._handler(batch)
        except Exception as error:
            self._fail(batch, error)
            return
        if inspect.isawaitable(result):
            task = self._loop.create_task(self._await(batch, result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._conclude(batch, result)

    async def _await(self, batch: list[Message], result: Awaitable[object]) -> None:
        try:
            self._conclude(batch, await result)
        except asyncio.CancelledError:
            hand_back(batch)
            raise
        except Exception as error:
            self._fail(batch, error)

    def _conclude(self, batch: list[Message], result: object) -> None:
        """Answer all messages that have no answer yet."""
        by_subscription: dict[Any, list[Message]] = {}
        for message in batch:
            if message.state == WAITING:
                if result is False:
                    message.owner.requeue(message, None, True)
                else:
                    message.state = RESPONDED
                    by_subscription.setdefault(message.owner, []).append(message)
        for subscription, finished in by_subscription.items():
            subscription.finish_all(finished)

    def _fail(self, batch: list[Message], error: Exception) -> None:
        unanswered = [message for message in batch if message.state != RESPONDED]
        for message in unanswered[:1]:
            fail(message, error)
        for message in unanswered[1:]:
            message.owner.requeue(message, None, True)

    def drain(self) -> None:
        self._draining = True
        self._run_all()

    async def end(self) -> None:
        self._cancel_timer()
        hand_back(self._waiting)
        self._waiting.clear()
        await cancel(self._tasks)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class Inbox:
    """Keeps messages for iterators."""

    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self._handed: WeakKeyDictionary[asyncio.Task[Any], Message] = WeakKeyDictionary()

    def take(self, messages: list[Message]) -> None:
        self._waiting.extend(messages)
        if self._ended:
            self._hand_back()
            return
        for _ in range(min(len(messages), len(self._takers))):
            self._wake()

    def _wake(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return

    async def next(self) -> Message | None:
        """The next message, or None when the consumer is stopped."""
        while not self._ended:
            while self._waiting:
                message = self._waiting.popleft()
                if not message.owner.closed:
                    return message
            taker = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                # We were woken for a message and cancelled: wake the next waiter.
                if taker.done() and not taker.cancelled():
                    self._wake()
                raise
        return None

    def remember(self, message: Message) -> None:
        """Remember the last message that the current task took."""
        task = asyncio.current_task()
        assert task is not None
        self._handed[task] = message

    def drain(self) -> None:
        self._ended = True
        self._hand_back()
        while self._takers:
            self._wake()
        # A task that stops the consumer no longer handles the message it took last.
        task = asyncio.current_task()
        if task is not None and task in self._handed:
            hand_back([self._handed[task]])

    def _hand_back(self) -> None:
        hand_back(self._waiting)
        self._waiting.clear()

    async def end(self) -> None:
        hand_back(list(self._handed.values()))
        self._handed.clear()


class Messages:
    """``async for``: a message is finished when the next one is taken."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._last: Message | None = None

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Message:
        if self._last is not None:
            conclude(self._last, True)
            self._last = None
        message = await self._inbox.next()
        if message is None:
            raise StopAsyncIteration
        self._last = message
        self._inbox.remember(message)
        return message
