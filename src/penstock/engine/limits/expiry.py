"""Gives up messages that are older than ``msg_ttl``, also without consumers.

    a delivery       checks the age of what it sends, to the batch (channel.pyx)
    once a second    the log is searched for the first message that is young enough; everything
                     below it that waits in a channel is given up

Append times never decrease in a topic (R4), so what has expired is always a range from the start.
The search may read the disk, so a thread does it, one topic at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.engine.context import Context

if TYPE_CHECKING:
    from penstock.storage.topic_log import TopicLog

# Searches on disk threads at once.
SEARCH_COUNT_MAX = 2
# Time that looking for topics to be searched may use in one turn of the loop.
SLICE_NS = 1_000_000


class ExpiringTopic(Protocol):
    """A topic as the expiry sees it."""

    name: str
    closed: bool

    @property
    def log(self) -> TopicLog: ...
    def cutoffs(self, wall_ns: int) -> list[int]: ...
    def expire_below(self, ends: dict[int, int], wall_ns: int) -> bool: ...


class Expiry:
    """The topics whose messages, or whose channels' messages, may expire."""

    def __init__(self, context: Context) -> None:
        self._clock = context.clock
        self._disk = context.disk
        self._turns = context.turns
        self._supervisor = context.supervisor
        self._topics: dict[ExpiringTopic, None] = {}
        self._waiting: deque[ExpiringTopic] = deque()
        self._search_count = 0

    def watch(self, topic: ExpiringTopic) -> None:
        """A policy gives the messages of the topic, or of a channel of it, a lifetime."""
        self._topics[topic] = None

    def run(self) -> None:
        """Called once a second: begin with all topics, unless the last pass is still running."""
        if not self._waiting and self._topics:
            self._waiting.extend(self._topics)
            self._next()

    def _next(self) -> None:
        end_ns = self._clock.monotonic_ns() + SLICE_NS
        while self._waiting and self._search_count < SEARCH_COUNT_MAX:
            topic = self._waiting.popleft()
            if topic.closed:
                self._topics.pop(topic, None)
            else:
                self._supervisor.guard(topic.name, self._search, topic)
            if self._clock.monotonic_ns() >= end_ns:
                self._turns.soon(self._next)
                return

    def _search(self, topic: ExpiringTopic) -> None:
        cutoffs = topic.cutoffs(self._clock.wall_ns())
        if not cutoffs or topic.log.append_ns_first >= max(cutoffs):
            return  # nothing waits, or all of it is young
        self._search_count += 1
        self._disk.submit(partial(_seek, topic.log, cutoffs), partial(self._found, topic))

    def _found(
        self, topic: ExpiringTopic, ends: dict[int, int] | None, error: Exception | None
    ) -> None:
        self._search_count -= 1
        if ends is not None:  # otherwise the next second tries again
            self._give_up(topic, ends)
        self._turns.soon(self._next)

    def _give_up(self, topic: ExpiringTopic, ends: dict[int, int]) -> None:
        """In pieces: a turn of the loop gives up a bounded number."""
        if not topic.closed and topic.expire_below(ends, self._clock.wall_ns()):
            self._turns.soon(partial(self._give_up, topic, ends))


def _seek(log: TopicLog, cutoffs: Iterable[int]) -> dict[int, int]:
    return {cutoff: log.seek(cutoff) for cutoff in cutoffs}
