"""A producer: publishes to one nsqd or several.

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"...")                  # stored when it returns
        await producer.publish("orders", b"...", delay=60)
        await producer.publish_many("orders", [b"...", b"..."])   # one MPUB: all or none
        stored = await producer.send("orders", b"...")            # waits only while too much pends
        await stored                                              # waits for the response

Rule 1: publishes are pipelined: each is sent in the turn it is made, without waiting for responses.
Rule 2: ``max_pending_size`` bounds the bytes that wait for a response; above it, publishers wait.
Rule 3: with several nsqds, publishes rotate over those connected; when one is lost, fails to store
        or does not respond, its publishes go to another.
Rule 4: if an attempt may have been stored, it is retried (a message may be published twice) or,
        with ``retry_unknown=False``, reported as UnknownOutcomeError.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TypeGuard, Unpack

from penstock.client.config import Config, make_context
from penstock.client.connection import Connection, parse_address
from penstock.client.lifecycle import Lifecycle
from penstock.client.link import Link
from penstock.client.options import Options
from penstock.client.publication import Encoder, Gathering, Pipe, checked
from penstock.core.publisher import Publication, single
from penstock.errors import (
    NotConnectedError,
    OptionError,
    RefusedError,
    StoppedError,
    UnknownOutcomeError,
)

log = logging.getLogger("penstock.client")

Body = bytes | bytearray | memoryview

# nsqd could not store it (disk full, shutting down); another one may, or the same one later.
STORING_FAILED = frozenset(("E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"))


class Producer(Lifecycle):
    """A producer for ``nsqd_tcp_addresses``; connects at the first publish, or with ``start``."""

    def __init__(
        self,
        nsqd_tcp_addresses: Sequence[str] | str,
        *,
        config: Config | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.config = Config.of(config, **options)
        given = nsqd_tcp_addresses
        split = given.split(",") if isinstance(given, str) else given
        self._addresses = [address.strip() for address in split if address.strip()]
        if not self._addresses:
            raise OptionError("a producer needs nsqd_tcp_addresses")
        for address in self._addresses:
            try:
                parse_address(address)
            except NotConnectedError as error:
                raise OptionError(str(error)) from None
        self._encoder = Encoder()
        self._retries = self.config.publish_retries
        self._size_max = self.config.max_pending_size
        self._gathers = self.config.batch_publish_count > 0
        self._connecting = False  # started, and not stopped
        self._links: list[Link] = []
        self._pipes: list[Pipe] = []
        self._turn = 0
        self._waiting: deque[Publication] = deque()  # for a connection
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()  # for max_pending_size
        self._pending_size = 0
        self._gatherings: dict[str, Gathering] = {}
        # The time of publications is updated once per sweep, precise enough for timeouts of
        # seconds: reading the loop's clock would take a tenth of the time of a publish.
        self._now_s = 0.0
        self._sweep_s = min(1.0, self.config.response_timeout / 4, self.config.publish_timeout / 4)
        self._sweep: asyncio.TimerHandle | None = None
        self._last_error: Exception | None = None
        self._empty: asyncio.Event = asyncio.Event()
        self._stopped = False

    # Start and stop

    async def start(self) -> None:
        """Connect; raises NotConnectedError if no nsqd can be reached (retries continue)."""
        self._connect()
        attempts = [asyncio.ensure_future(link.tried.wait()) for link in self._links]
        try:
            while not self._pipes and attempts:
                _, pending = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
                attempts = list(pending)
        finally:
            for each in attempts:
                each.cancel()
        if not self._pipes:
            raise NotConnectedError(
                f"no nsqd can be reached: {self._last_error or 'all connections were lost'}"
            )

    def _connect(self) -> None:
        if self._stopped:
            raise StoppedError("the producer is stopped")
        if not self._links:
            self._loop = asyncio.get_running_loop()
            if self.config.tls_v1:
                self.config = self.config.replace(tls_context=make_context(self.config))
            self._links = [
                Link(address, self.config, self._opened, failed=self._failed)
                for address in self._addresses
            ]
            self._connecting = True

    async def stop(self) -> None:
        """Wait for all responses (``stop_timeout`` at most) and disconnect; permanent."""
        if self._stopped:
            return
        self._stopped = True
        self._connecting = False
        for topic in list(self._gatherings):
            self._send_gathered(topic)
        try:
            async with asyncio.timeout(self.config.stop_timeout):
                while self._pending_size:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            log.warning("producer: stopped with %d bytes unanswered", self._pending_size)
        await asyncio.gather(*(link.stop() for link in self._links))
        await asyncio.gather(*(pipe.connection.close() for pipe in list(self._pipes)))
        if self._sweep is not None:
            self._sweep.cancel()
        while self._waiting:
            publication = self._waiting.popleft()
            stopped = StoppedError("the producer was stopped")
            self._settle(publication, self._outcome(publication, stopped))

    @property
    def connections(self) -> list[str]:
        """The nsqds it is connected to."""
        return [pipe.address for pipe in self._pipes]

    @property
    def pending_size(self) -> int:
        """Bytes that wait for a response."""
        return self._pending_size

    # Publishing

    async def publish(self, topic: str, body: Body, *, delay: float = 0.0) -> None:
        """Publish a message, to be delivered after ``delay`` seconds; returns when it is stored."""
        if self._fits(body):
            await self._begin(topic, body, delay)
        else:
            await (await self.send(topic, body, delay=delay))

    async def publish_many(self, topic: str, bodies: Sequence[Body]) -> None:
        """Publish all of ``bodies`` or none, in one MPUB."""
        await (await self.send_many(topic, bodies))

    async def send(self, topic: str, body: Body, *, delay: float = 0.0) -> asyncio.Future[None]:
        """Send a message, after a wait if too much is pending; the future is done once stored."""
        if not self._fits(body):
            body = checked(body)
            if not self._links or self._stopped:
                self._connect()
            await self._wait_for_room(len(body))
        return self._begin(topic, body, delay)

    def _fits(self, body: Body) -> TypeGuard[bytes]:
        """Whether ``body`` can be sent now, without conversion."""
        return (
            body.__class__ is bytes
            and 0 < len(body) <= self._size_max - self._pending_size
            and not self._queue
            and self._connecting
        )

    def _begin(self, topic: str, body: bytes, delay: float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        if self._gathers and not delay:
            self._gather(topic, body, future)
            self._pending_size += len(body)
            return future
        if self._sweep is None:
            self._arm_sweep()
        if delay:
            command = self._encoder.deferred(topic, _milliseconds(delay), body)
            retries, now_s = self._retries, self._now_s
            publication = Publication(command, len(body), (future,), retries, now_s)
        else:
            head = self._encoder.heads.get(topic) or self._encoder.head(topic)
            publication = single(head, body, future, self._retries, self._now_s)
        self._pending_size += len(body)
        self._dispatch(publication)
        return future

    async def send_many(self, topic: str, bodies: Sequence[Body]) -> asyncio.Future[None]:
        """As `send`, for several messages in one MPUB."""
        if isinstance(bodies, (str, bytes, bytearray, memoryview)):
            raise TypeError(f"bodies must be a list of bytes, not {type(bodies).__name__}")
        if not self._links or self._stopped:
            self._connect()
        command = self._encoder.many(topic, bodies)
        size = len(command)
        await self._wait_for_room(size)
        self._pending_size += size
        future: asyncio.Future[None] = self._loop.create_future()
        self._submit(command, size, (future,))
        return future

    def _submit(self, command: bytes, size: int, futures: Sequence[asyncio.Future[None]]) -> None:
        if self._sweep is None:
            self._arm_sweep()
        self._dispatch(Publication(command, size, futures, self._retries, self._now_s))

    def _dispatch(self, publication: Publication) -> None:
        """Write to the next connection's pipe, or queue until there is one."""
        pipes = self._pipes
        for _ in pipes:
            self._turn = turn = (self._turn + 1) % len(pipes)
            if not pipes[turn].ended:
                pipes[turn].write(publication, self._now_s)
                return
        self._waiting.append(publication)

    # Flow control

    async def _wait_for_room(self, size: int) -> None:
        """Wait until ``size`` more bytes may be pending; a larger message is sent alone."""
        while self._pending_size and (self._queue or self._pending_size + size > self._size_max):
            future: asyncio.Future[None] = self._loop.create_future()
            self._queue.append((future, size))
            try:
                await future
            except asyncio.CancelledError:
                self._make_room()
                raise
            if self._pending_size + size <= self._size_max:
                break
        if self._stopped:
            raise StoppedError("the producer was stopped")

    def _release(self, size: int) -> None:
        self._pending_size -= size
        if self._queue:
            self._make_room()
        if not self._pending_size:
            self._empty.set()

    def _make_room(self) -> None:
        room = self._size_max - self._pending_size
        while self._queue:
            future, size = self._queue[0]
            if future.done():
                self._queue.popleft()
                continue
            if size > room and self._pending_size:
                break
            self._queue.popleft()
            future.set_result(None)
            room -= size
            if room <= 0:
                break

    # Gathering

    def _gather(self, topic: str, body: bytes, future: asyncio.Future[None]) -> None:
        self._encoder.head(topic)
        config = self.config
        gathering = self._gatherings.get(topic)
        if gathering is None:
            gathering = self._gatherings[topic] = Gathering(
                self._loop, config.batch_publish_timeout, lambda: self._send_gathered(topic)
            )
        gathering.add(body, future)
        full = gathering.size >= config.batch_publish_size
        if full or len(gathering.bodies) >= config.batch_publish_count:
            self._send_gathered(topic)

    def _send_gathered(self, topic: str) -> None:
        gathering = self._gatherings.pop(topic)
        gathering.end()
        bodies = gathering.bodies
        if len(bodies) == 1:
            command = self._encoder.one(topic, bodies[0])
        else:
            command = self._encoder.many(topic, bodies)
        self._submit(command, gathering.size - 4 * len(bodies), gathering.futures)

    # Connections and outcomes

    def _opened(self, connection: Connection) -> None:
        pipe = Pipe(self, connection)
        self._pipes.append(pipe)
        connection.use(pipe)
        self._now_s = self._loop.time()
        while self._waiting:
            pipe.write(self._waiting.popleft(), self._now_s)

    def _failed(self, error: Exception) -> None:
        self._last_error = error

    def stored(self, size: int) -> None:
        self._release(size)

    def refused(self, publication: Publication, error: RefusedError) -> None:
        if error.code in STORING_FAILED and publication.retries:
            self._retry(publication, error)
        else:
            self._settle(publication, error)

    def unanswered(self, pipe: Pipe, error: Exception | None) -> None:
        """A pipe was lost: its publications are retried on others."""
        self._pipes.remove(pipe)
        if not self._stopped:
            log.warning("nsqd=%s: disconnected: %s", pipe.address, error or "closed by nsqd")
        pending, pipe.pending = pipe.pending, deque()
        self._now_s = self._loop.time()
        for publication in pending:
            if pipe.ended:
                self._dispatch(publication)
            else:
                publication.unknown = True
                self._retry(publication, error)

    def _retry(self, publication: Publication, error: Exception | None) -> None:
        spent = not publication.retries or self._expired(publication)
        if spent or (publication.unknown and not self.config.retry_unknown):
            self._settle(publication, self._outcome(publication, error))
        else:
            publication.retries -= 1
            self._dispatch(publication)

    def _expired(self, publication: Publication) -> bool:
        # The publication may have begun up to one sweep after its recorded time.
        elapsed_s = self._now_s - publication.begun_s - self._sweep_s
        return elapsed_s >= self.config.publish_timeout

    def _outcome(self, publication: Publication, error: Exception | None) -> Exception:
        if publication.unknown:
            return UnknownOutcomeError(
                f"the connection was lost before the answer ({error or 'closed by nsqd'}): "
                "the message may be stored, or not"
            )
        return error or NotConnectedError("no nsqd can be reached")

    def _settle(self, publication: Publication, error: Exception) -> None:
        publication.fail(error)
        self._release(publication.size)

    def _arm_sweep(self) -> None:
        self._now_s = self._loop.time()
        self._sweep = self._loop.call_later(self._sweep_s, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Abort connections that do not respond, and fail publications that waited too long."""
        self._now_s = self._loop.time()
        for pipe in list(self._pipes):
            if pipe.overdue(self._now_s - self._sweep_s, self.config.response_timeout):
                waited_s = self.config.response_timeout
                pipe.connection.abort(
                    NotConnectedError(f"{pipe.address}: no answer to a publish in {waited_s:g} s")
                )
        for _ in range(len(self._waiting)):
            publication = self._waiting.popleft()
            if not self._expired(publication):
                self._waiting.append(publication)
                continue
            reason = f"no nsqd could be reached in time: {self._last_error or 'connection lost'}"
            self._settle(publication, self._outcome(publication, NotConnectedError(reason)))
        self._sweep = None
        if self._pending_size:
            self._arm_sweep()


def _milliseconds(delay: float) -> int:
    if delay < 0:
        raise RefusedError("E_INVALID", f"DPUB could not parse timeout {delay:g}")
    return round(delay * 1000)
