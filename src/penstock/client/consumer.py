"""A consumer: all connections of a topic and channel, and its handler.

    consumer = Consumer("orders", "email", handle, nsqd_tcp_addresses=["127.0.0.1:4150"])
    async with consumer:                       # start() .. stop()
        await consumer.wait()                  # until stop() is called

    discovery --> links --> subscriptions --> runner --> handler
                     `--- ready, backoff: RDY ---'

Rule 1: the consumer keeps running while nsqds and lookupds come and go.
Rule 2: stopping loses nothing: CLS is sent, received messages are handled and answered, and nsqd
        has the answers before the connection closes.  What is not done in ``stop_timeout`` is
        requeued.
Rule 3: `Ready` decides RDY and `Backoff` the pauses; this module carries out their decisions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from penstock.client.backoff import Backoff, State
from penstock.client.config import Config, make_context
from penstock.client.connection import Connection, parse_address
from penstock.client.discovery import Discovery
from penstock.client.lifecycle import Lifecycle
from penstock.client.link import Link
from penstock.client.message import WAITING, Message
from penstock.client.options import Options
from penstock.client.ready_counts import Change, Ready
from penstock.client.runner import Handler, Inbox, Messages, Runner, make_runner
from penstock.client.subscription import Subscription
from penstock.errors import NotConnectedError, OptionError, StoppedError
from penstock.wire.names import is_valid_name
from penstock.wire.url import lookupd_url

log = logging.getLogger("penstock.client")

GiveUp = Callable[[Message], object]  # or a coroutine function


@dataclass(slots=True)
class Stats:
    """Counters of a consumer."""

    received: int = 0
    finished: int = 0
    requeued: int = 0
    buried: int = 0
    given_up: int = 0
    refused: int = 0  # answers that came too late for nsqd
    connected: int = 0  # connections opened
    lost: int = 0


def check_names(topic: str, channel: str) -> None:
    for name in (topic, channel):
        if not isinstance(name, str):
            raise TypeError(f"a topic or channel must be a str, not {type(name).__name__}")
    if not is_valid_name(topic):
        raise OptionError(f"{topic!r} is not a valid name for a topic")
    if not is_valid_name(channel):
        raise OptionError(f"{channel!r} is not a valid name for a channel")


class Consumer(Lifecycle):
    """A consumer of ``topic`` and ``channel``.

    ``handler`` takes a message (or, with ``batch_size``, a list of them) and may be a function or a
    coroutine function; without one, iterate: ``async for message in consumer``.  ``give_up`` is
    called with a message that has had ``max_attempts``, before it is finished.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler | None = None,
        *,
        nsqd_tcp_addresses: Sequence[str] | str = (),
        lookupd_http_addresses: Sequence[str] | str = (),
        give_up: GiveUp | None = None,
        accept: Callable[[str], bool] = lambda address: True,
        config: Config | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_names(topic, channel)
        self.topic = topic
        self.channel = channel
        self.config = Config.of(config, **options)
        self.stats = Stats()
        self._handler = handler
        self._give_up = give_up
        self._accept = accept
        self._nsqds = _listed(nsqd_tcp_addresses)
        self._lookupds = _listed(lookupd_http_addresses)
        self._check_addresses()
        self._ready = Ready(
            self.config.max_in_flight, self.config.low_rdy_idle_timeout, self.config.low_rdy_timeout
        )
        self._backoff = Backoff(
            self.config.backoff_multiplier,
            self.config.max_backoff_duration,
            self.config.backoff_strategy,
        )
        self._subscriptions: list[Subscription] = []
        self._by_share: dict[int, Subscription] = {}
        self._links: dict[str, Link] = {}
        self._listed_now: set[str] = set()
        self._discovery: Discovery | None = None
        self._runner: Runner | None = None
        self._giving_up: set[asyncio.Future[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopping = False
        self._stopped_task: asyncio.Task[None] | None = None
        self._stopped: asyncio.Event | None = None

    def _check_addresses(self) -> None:
        if not self._nsqds and not self._lookupds:
            raise OptionError("a consumer needs nsqd_tcp_addresses or lookupd_http_addresses")
        for address in self._lookupds:
            lookupd_url(address, "/lookup", topic=self.topic)
        for address in self._nsqds:
            try:
                parse_address(address)
            except NotConnectedError as error:
                raise OptionError(str(error)) from None

    # Start and stop

    async def start(self) -> None:
        """Connect.  Returns after one attempt for each known address; others may follow."""
        if self._runner is not None:
            raise StoppedError("a consumer can only be started once")
        self._loop = asyncio.get_running_loop()
        if self.config.tls_v1:
            self.config = self.config.replace(tls_context=make_context(self.config))
        self._stopped = asyncio.Event()
        self._runner = make_runner(self._handler, self.config)
        self._arm("rotate", self.config.rdy_redistribute_interval, self._rotate)
        for address in self._nsqds:
            self._link(address)
        if self._lookupds:
            self._discovery = Discovery(self._lookupds, self.topic, self.config, self._found)
            await self._discovery.polled.wait()
        for link in list(self._links.values()):
            await link.tried.wait()

    async def wait(self) -> None:
        """Wait until the consumer is stopped."""
        if self._stopped is None:
            raise StoppedError("the consumer was not started")
        await self._stopped.wait()

    async def run(self) -> None:
        """Start, and run until stopped or cancelled."""
        async with self:
            await self.wait()

    async def stop(self) -> None:
        """Finish what is in flight and disconnect; permanent.

        Do not await it in a handler, because it waits for the handler: create a task for it.
        """
        if self._runner is None or self._stopped is None or self._stopped.is_set():
            return
        self.begin_stop()
        if self._stopped_task is None:
            # In the caller's task: a task that iterates and stops no longer handles its message.
            self._runner.drain()
            self._stopped_task = self._loop.create_task(self._stop(self._runner))
        await asyncio.shield(self._stopped_task)

    def begin_stop(self) -> None:
        """Stop receiving messages.

        This must come before messages are handed back: nsqd would deliver them to us repeatedly,
        until all their attempts are used.
        """
        if not self._stopping:
            self._stopping = True
            for subscription in self._subscriptions:
                subscription.begin_close()

    async def _stop(self, runner: Runner) -> None:
        for timer in self._timers.values():
            timer.cancel()
        if self._discovery is not None:
            await self._discovery.stop()
        await asyncio.gather(*(link.stop() for link in self._links.values()))
        subscriptions = list(self._subscriptions)
        try:
            async with asyncio.timeout(self.config.stop_timeout):
                await asyncio.gather(*(subscription.over.wait() for subscription in subscriptions))
        except TimeoutError:
            log.warning(
                "topic=%s channel=%s: %d messages not answered after %g s are requeued",
                *(self.topic, self.channel, self.in_flight, self.config.stop_timeout),
            )
        await runner.end()
        await asyncio.gather(*(subscription.connection.close() for subscription in subscriptions))
        assert self._stopped is not None
        self._stopped.set()

    def __aiter__(self) -> Messages:
        """Iterate over messages; each is finished when the loop takes the next one."""
        if not isinstance(self._runner, Inbox):
            raise StoppedError("iterate over a started consumer that has no handler")
        return Messages(self._runner)

    # State

    @property
    def max_in_flight(self) -> int:
        return self._ready.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        """Change the limit; 0 pauses the consumer, any other number resumes it."""
        if count < 0:
            raise OptionError(f"max_in_flight must be 0 or more, not {count}")
        self._send(self._ready.resize(count, self._now_s()))

    @property
    def in_flight(self) -> int:
        return sum(subscription.share.in_flight for subscription in self._subscriptions)

    @property
    def connections(self) -> list[str]:
        """The nsqds it is connected to."""
        return [subscription.address for subscription in self._subscriptions]

    @property
    def backoff(self) -> State:
        return self._backoff.state

    @property
    def is_starved(self) -> bool:
        """Whether some connection is near its limit until messages are answered."""
        return any(subscription.share.starved for subscription in self._subscriptions)

    # Connections

    def _found(self, addresses: set[str]) -> None:
        self._listed_now = {address for address in addresses if self._accept(address)}
        for address in sorted(self._listed_now):
            self._link(address)

    def _link(self, address: str) -> None:
        link = self._links.get(address)
        if link is not None and not link.done:
            return
        self._links[address] = Link(
            address, self.config, self._opened, lambda: self._wanted(address)
        )

    def _wanted(self, address: str) -> bool:
        return address in self._nsqds or address in self._listed_now

    def _opened(self, connection: Connection) -> None:
        if self._stopping:
            connection.abort()
            return
        subscription = Subscription(self, connection)
        self._subscriptions.append(subscription)
        self._by_share[id(subscription.share)] = subscription
        self.stats.connected += 1
        subscription.start()
        self._send(self._ready.add(subscription.share, self._now_s()))

    def lost(self, subscription: Subscription, error: Exception | None) -> None:
        """A connection was closed; its link reconnects."""
        self._subscriptions.remove(subscription)
        changes = self._ready.remove(subscription.share, self._now_s())
        del self._by_share[id(subscription.share)]
        self.stats.lost += 1
        if self._stopping:
            return
        log.warning("nsqd=%s: disconnected: %s", subscription.address, error or "closed by nsqd")
        self._send(changes)
        if self._backoff.state is State.TESTING and self._ready.probe is None:
            self._backoff.postpone()
            self._pause()
        if self._discovery is not None:
            self._discovery.poll_now()

    # Messages

    def received(self, subscription: Subscription, messages: list[Message]) -> None:
        self.stats.received += len(messages)
        subscription.share.received_s = self._loop.time()
        attempts_max = self.config.max_attempts
        if attempts_max:
            beyond = [message for message in messages if message.attempts > attempts_max]
            if beyond:
                messages = [m for m in messages if m.attempts <= attempts_max]
                for message in beyond:
                    self._give_up_on(message)
        if messages:
            assert self._runner is not None
            self._runner.take(messages)

    def _give_up_on(self, message: Message) -> None:
        self.stats.given_up += 1
        log.error(
            "topic=%s channel=%s id=%s: given up after %d attempts",
            *(self.topic, self.channel, message.id.decode("latin-1"), message.attempts - 1),
        )
        if self._give_up is None:
            message.finish()
            return
        try:
            result = self._give_up(message)
        except Exception as error:
            self._not_given_up(message, error)
            return
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(self._await_give_up(message, result))
            self._giving_up.add(task)
            task.add_done_callback(self._giving_up.discard)
        elif message.state == WAITING:
            message.finish()

    async def _await_give_up(self, message: Message, result: Awaitable[object]) -> None:
        try:
            await result
        except Exception as error:
            self._not_given_up(message, error)
        else:
            if message.state == WAITING:
                message.finish()

    def _not_given_up(self, message: Message, error: Exception) -> None:
        # Finishing would lose the message that the callback failed to save.
        log.error(
            "topic=%s channel=%s id=%s: give_up failed: %r",
            *(self.topic, self.channel, message.id.decode("latin-1"), error),
            exc_info=error,
        )
        message.requeue(backoff=False)

    def finished(self, count: int) -> None:
        self.stats.finished += count
        if self._backoff.level and self._backoff.succeed():
            self._follow()
        self._settle()

    def buried(self) -> None:
        """A message was buried: it is no failure of the handler, which knew what to do."""
        self.stats.buried += 1
        if self._backoff.level and self._backoff.succeed():
            self._follow()
        self._settle()

    def requeued(self, backoff: bool) -> None:
        self.stats.requeued += 1
        if not self._stopping:
            changed = self._backoff.fail() if backoff else self._backoff.pass_over()
            if changed:
                self._follow()
        self._settle()

    # RDY and backoff

    def _follow(self) -> None:
        """Apply the backoff's new state."""
        if self._backoff.state is State.PAUSED:
            self._send(self._ready.pause(self._now_s()))
            self._pause()
        else:
            log.info("topic=%s channel=%s: backoff is over", self.topic, self.channel)
            self._send(self._ready.resume(self._now_s()))

    def _pause(self) -> None:
        log.info(
            "topic=%s channel=%s: backing off for %.3f s (level %d)",
            *(self.topic, self.channel, self._backoff.pause_s, self._backoff.level),
        )
        self._arm("pause", self._backoff.pause_s, self._test)

    def _test(self) -> None:
        changes = self._ready.test(self._now_s())
        if changes is None:
            self._backoff.postpone()
            self._pause()
        else:
            self._backoff.test()
            self._send(changes)

    def _rotate(self) -> None:
        self._send(self._ready.rotate(self._now_s()))
        self._arm("rotate", self.config.rdy_redistribute_interval, self._rotate)

    def _settle(self) -> None:
        if self._ready.waiting:
            self._send(self._ready.settle(self._now_s()))

    def _send(self, changes: Sequence[Change]) -> None:
        if not self._stopping:
            for share, count in changes:
                self._by_share[id(share)].set_ready(count)

    def _arm(self, name: str, delay_s: float, call: Callable[[], Any]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._loop.call_later(delay_s, call)

    def _now_s(self) -> float:
        return self._loop.time() if self._runner is not None else 0.0


def _listed(addresses: Sequence[str] | str) -> list[str]:
    given = addresses.split(",") if isinstance(addresses, str) else addresses
    return [address.strip() for address in given if address.strip()]
