"""When retention has to check a topic again, and the disk work of all topics in turn (R21).

Rule 1: a topic costs nothing until its next segment is due.
Rule 2: what comes due for many topics at once is begun one after another: rolls, and unlinks.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from penstock.core.deadlines import NEVER_NS
from penstock.engine.context import Context
from penstock.engine.disk import Lane
from penstock.engine.rounds import LimitedQueue, Rounds
from penstock.storage.segment import Segment

# Rolls for age, and unlinks, that are on the disk threads at once.
ROLL_COUNT_MAX = 1
UNLINK_COUNT_MAX = 1


class KeepingTopic(Protocol):
    """A topic as the retention of a node sees it."""

    name: str

    def retire(self) -> bool: ...


class Keeping(Protocol):
    """What one topic retains."""

    wake_ns: int

    @property
    def topic(self) -> KeepingTopic: ...
    @property
    def size(self) -> int: ...
    @property
    def oldest_age_ns(self) -> int: ...
    @property
    def given_up_count(self) -> int: ...
    def seal_finished(self) -> None: ...
    def oldest_ns(self) -> int | None: ...
    def give_up(self) -> Segment: ...
    def holds(self, segment: Segment) -> bool: ...


class Retention:
    """Wakes the topics of a node when something of them is due."""

    def __init__(self, context: Context, rounds: Rounds) -> None:
        self._clock = context.clock
        self._rounds = rounds
        self.retained: dict[Keeping, None] = {}  # of the topics that retain something
        self.rolls = LimitedQueue(context, ROLL_COUNT_MAX)
        self.unlinks = Lane(context.disk, UNLINK_COUNT_MAX)
        self.unlinking_size = 0  # bytes of files on their way out
        self._due: list[tuple[int, int, Keeping]] = []
        self._number = 0

    def by_name(self) -> list[Keeping]:
        return sorted(self.retained, key=lambda retained: retained.topic.name)

    def wake(self, retained: Keeping, due_ns: int) -> None:
        """Check the topic at ``due_ns``, by the monotonic clock, unless it is checked before."""
        if due_ns < retained.wake_ns:
            retained.wake_ns = due_ns
            self._number += 1
            heapq.heappush(self._due, (due_ns, self._number, retained))

    def check_soon(self, retained: Keeping) -> None:
        """Check the topic with the next upkeep."""
        self._rounds.used.add(retained.topic)

    def forget(self, retained: Keeping) -> None:
        """The topic is gone, or retains nothing any more."""
        retained.wake_ns = NEVER_NS
        self.retained.pop(retained, None)
        if len(self._due) > 2 * len(self.retained) + 64:
            # Those that are not due any more would be kept in memory until they were.
            self._due = [due for due in self._due if due[2].wake_ns == due[0]]
            heapq.heapify(self._due)

    def check(self) -> None:
        """Mark the topics that are due for the next upkeep."""
        now_ns = self._clock.monotonic_ns()
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, retained = heapq.heappop(self._due)
            if retained.wake_ns == due_ns:
                retained.wake_ns = NEVER_NS
                self._rounds.used.add(retained.topic)
