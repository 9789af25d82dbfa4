"""Names of topics and channels that no nsqd has any more, and when each is forgotten.

    kept for as long as it was there, REMEMBERED_MIN_NS at least, ``longest_ns`` at most

A new nsqd asks for the channels of its topics, so what an nsqd registered must outlast its restart,
and that of a machine.  But a peer that comes for seconds and registers 50,000 names should not
leave them for long: it would need as long to register as they are to stay.

Rule 1: no clock; ``now_ns`` is monotonic and comes in.
Rule 2: of more than ``count_max`` names those go first that would be forgotten first.
Rule 3: a name that comes and goes again and again costs a bounded amount of memory.
"""

from __future__ import annotations

import heapq
from typing import Protocol

# Long enough for any restart.
REMEMBERED_MIN_NS = 60 * 1_000_000_000
# So many entries may be void before they are removed.
VOID_COUNT_MAX = 1024


class Forgettable(Protocol):
    """A topic or a channel."""

    since_ns: int
    entry: int  # the number of its entry here; 0: none


class OrphanQueue:
    """What is to be forgotten; ``longest_ns`` 0: nothing is, as in NSQ."""

    def __init__(self, longest_ns: int, count_max: int) -> None:
        self.count = 0
        self._longest_ns = longest_ns
        self._count_max = count_max
        self._last_entry = 0
        # (when, entry, name, topic, channel or ""); void if the name has another entry.
        self._heap: list[tuple[int, int, Forgettable, str, str]] = []

    def add(self, name: Forgettable, topic: str, channel: str, now_ns: int) -> None:
        """Nobody has ``name`` any more."""
        if not self._longest_ns or name.entry:
            return
        age_ns = max(now_ns - name.since_ns, REMEMBERED_MIN_NS)
        self._last_entry += 1
        name.entry = self._last_entry
        self.count += 1
        due_ns = now_ns + min(age_ns, self._longest_ns)
        heapq.heappush(self._heap, (due_ns, name.entry, name, topic, channel))

    def discard(self, name: Forgettable) -> None:
        """Somebody has it again, or it is gone."""
        if name.entry:
            name.entry = 0
            self.count -= 1
            if len(self._heap) > 2 * self.count + VOID_COUNT_MAX:
                self._heap = [each for each in self._heap if each[2].entry == each[1]]
                heapq.heapify(self._heap)

    def pop_due(self, now_ns: int, count_max: int) -> list[tuple[str, str]]:
        """Up to ``count_max`` names that are due, or too many, as (topic, channel or "")."""
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
