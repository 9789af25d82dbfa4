"""Orphans: topics and channels that no nsqd has any more, and when each is forgotten.

    kept as long as it had been registered, REMEMBERED_MIN_NS at least, ``longest_ns`` at most

A new nsqd asks for the channels of its topics, so registrations must outlast a restart of an nsqd
or its machine.  But a peer that connects for seconds and registers 50,000 names must not leave
them for long: to keep names for an hour it must stay registered for an hour.

Rule 1: no clock; ``now_ns`` is monotonic and passed in.
Rule 2: above ``count_max`` names, those that expire first are forgotten first.
Rule 3: a name that is registered and unregistered repeatedly takes bounded memory.
"""

from __future__ import annotations

import heapq
from typing import Protocol

# Long enough for any restart.
REMEMBERED_MIN_NS = 60 * 1_000_000_000
# Void entries allowed before the heap is compacted.
VOID_COUNT_MAX = 1024


class Forgettable(Protocol):
    """A topic or a channel."""

    since_ns: int
    entry: int  # number of its entry in the queue; 0: none


class OrphanQueue:
    """Orphaned names by expiry time; ``longest_ns`` 0: nothing is forgotten, as in NSQ."""

    def __init__(self, longest_ns: int, count_max: int) -> None:
        self.count = 0
        self._longest_ns = longest_ns
        self._count_max = count_max
        self._last_entry = 0
        # (when, entry, name, topic, channel or ""); void if the name has another entry.
        self._heap: list[tuple[int, int, Forgettable, str, str]] = []

    def add(self, name: Forgettable, topic: str, channel: str, now_ns: int) -> None:
        """Add ``name``, whose last producer has left."""
        if not self._longest_ns or name.entry:
            return
        age_ns = max(now_ns - name.since_ns, REMEMBERED_MIN_NS)
        self._last_entry += 1
        name.entry = self._last_entry
        self.count += 1
        due_ns = now_ns + min(age_ns, self._longest_ns)
        heapq.heappush(self._heap, (due_ns, name.entry, name, topic, channel))

    def discard(self, name: Forgettable) -> None:
        """Remove ``name``: an nsqd has it again, or it was deleted."""
        if name.entry:
            name.entry = 0
            self.count -= 1
            if len(self._heap) > 2 * self.count + VOID_COUNT_MAX:
                self._heap = [each for each in self._heap if each[2].entry == each[1]]
                heapq.heapify(self._heap)

    def pop_due(self, now_ns: int, count_max: int) -> list[tuple[str, str]]:
        """Remove up to ``count_max`` names that are due, or too many: (topic, channel or "")."""
        popped: list[tuple[str, str]] = []
        heap = self._heap
        while heap and len(popped) < count_max:
            due_ns, entry, name, topic, channel = heap[0]
            if name.entry == entry:
                if due_ns > now_ns and self.count <= self._count_max:
                    break
                name.entry = 0
                self.count -= 1
                popped.append((topic, channel))
            heapq.heappop(heap)
        return popped
