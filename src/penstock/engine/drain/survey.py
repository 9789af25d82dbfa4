"""What a node still has to deliver, and what of it is blocked.

A walk over all topics, a slice of the loop's time at once.  Its numbers are of different moments;
``is_empty`` looks at all topics at one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.clock import Clock
from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.context import Context
from penstock.engine.deferred.queue import DeferredQueue
from penstock.engine.staging.area import Staging
from penstock.engine.topic import Topic

SLICE_NS = 1_000_000
# Between two looks at the clock: 60 us.
CHANNEL_COUNT_MAX = 100
BLOCKED_COUNT_MAX = 100
HOUR_MS = 3_600_000


@dataclass
class Left:
    """What is left; the counts are of messages, once for each channel that has to deliver them."""

    held: int = 0  # topics that are paused or have no channels
    queued: int = 0
    in_flight: int = 0
    requeued: int = 0  # with a delay
    buried: int = 0  # until they are kicked, moved or discarded
    unread: int = 0  # by the readers of pull channels
    deferred: int = 0
    stagings: int = 0  # of Spark queries; not messages
    counting: bool = False  # slot files may have more deferred messages
    topics: int = 0  # with any of these
    deferred_until_ms: int = 0  # the end of the hour of the latest
    blocked_count: int = 0
    # The first of those that are blocked.
    blocked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def messages(self) -> int:
        delivered = self.held + self.queued + self.in_flight + self.requeued
        return delivered + self.buried + self.unread + self.deferred

    @property
    def empty(self) -> bool:
        return not (self.topics or self.messages or self.stagings or self.counting)

    def counts(self) -> dict[str, int]:
        """For GET /drain."""
        return {
            "messages": self.messages,
            "topics": self.topics,
            "queued": self.queued,
            "in_flight": self.in_flight,
            "requeued": self.requeued,
            "deferred": self.deferred,
            "deferred_until_ms": self.deferred_until_ms,
            "held": self.held,
            "buried": self.buried,
            "unread": self.unread,
            "stagings": self.stagings,
        }

    def block(self, why: str, messages: int, topic: str, channel: str = "") -> None:
        self.blocked_count += 1
        if len(self.blocked) < BLOCKED_COUNT_MAX:
            entry: dict[str, Any] = {"topic": topic}
            if channel:
                entry["channel"] = channel
            self.blocked.append({**entry, "messages": messages, "why": why})


class Survey:
    """Counts what a broker still has."""

    def __init__(
        self,
        context: Context,
        topics: Mapping[str, BaseTopic],
        deferred: DeferredQueue,
        staging: Staging,
    ) -> None:
        self._turns = context.turns
        self._clock: Clock = context.clock
        self._topics = topics
        self._deferred = deferred
        self._staging = staging
        self._running = False

    def run(self, then: Callable[[Left], None]) -> None:
        """Call ``then`` with what is left, unless a walk is in progress."""
        if not self._running:
            self._running = True
            left = Left()
            self._walk(self._steps(left), left, then)

    def _walk(self, steps: Iterator[None], left: Left, then: Callable[[Left], None]) -> None:
        end_ns = self._clock.monotonic_ns() + SLICE_NS
        for _ in steps:
            if self._clock.monotonic_ns() >= end_ns:
                self._turns.soon(partial(self._walk, steps, left, then))
                return
        self._running = False
        left.counting = not self._deferred.empty
        left.stagings = self._staging_count()
        then(left)

    def is_empty(self) -> bool:
        """Whether nothing is left."""
        if self._staging_count():
            return False
        left = Left()
        for _ in self._steps(left):
            if left.topics or left.messages:
                return False
        return self._deferred.empty

    def _steps(self, left: Left) -> Iterator[None]:
        """Count everything, some channels of a topic or all of them in each step."""
        for topic in list(self._topics.values()):
            if not topic.closed:
                yield from self._count(topic, left)

    def _staging_count(self) -> int:
        staging = self._staging
        return staging.staging_count + len(staging.publications) + len(staging.published)

    def _count(self, topic: BaseTopic, left: Left) -> Iterator[None]:
        before = left.messages
        if topic.depth:
            left.held += topic.depth
            why = "the topic waits for nsqlookupd"
            if topic.paused:
                why = "the topic is paused"
            elif not topic.channels:
                why = "the topic has no channels"
            left.block(why, topic.depth, topic.name)
        channels = list(topic.channels.values())
        for start in range(0, len(channels), CHANNEL_COUNT_MAX):
            for channel in channels[start : start + CHANNEL_COUNT_MAX]:
                _count_channel(topic, channel, left)
            yield
        deferred = self._deferred.tallies.count(topic.instance)
        if deferred:
            left.deferred += deferred
            last_ms = max(self._deferred.due_hours(topic.instance), default=0) * 1000
            left.deferred_until_ms = max(left.deferred_until_ms, last_ms + HOUR_MS)
        writing = topic.appender.count or (isinstance(topic, Topic) and not topic.writer.idle)
        left.topics += bool(writing or left.messages > before)
        yield


def _count_channel(topic: BaseTopic, channel: Channel, left: Left) -> None:
    if channel.pulled:
        if channel.depth:
            left.unread += channel.depth
            why = "its reader has not committed them"
            left.block(why, channel.depth, topic.name, channel.name)
        return
    window = channel.window
    count = channel.depth + window.in_flight_count + window.deferred_count
    left.queued += channel.depth
    left.in_flight += window.in_flight_count
    left.requeued += window.deferred_count
    buried = window.buried_count
    if buried:
        left.buried += buried
        left.block("they are buried", buried, topic.name, channel.name)
    if count and channel.paused:
        left.block("the channel is paused", count, topic.name, channel.name)
    elif count and not channel.consumers:
        left.block("the channel has no consumers", count, topic.name, channel.name)
