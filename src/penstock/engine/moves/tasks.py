"""Which buried messages of a channel are moved, and where to.

    Task    asked for over HTTP: by id, a number of the oldest, or all that are buried now
    Owed    by policy (`topic`, or more than max_buried): retried with growing pauses

Rule 1: a batch has at most BATCH_COUNT_MAX messages and about BATCH_SIZE_MAX bytes, and a turn of
        the loop looks at no more messages than that.
Rule 2: memory is bounded: a task has at most as many ids as a request may have, or a place in the
        table of buried messages; what is owed is a bounded list, and beyond it a place as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.core.buried import Buried
from penstock.core.ticket import Ticket
from penstock.engine.channel import Channel
from penstock.engine.moves.sweep import Chosen

# (index, reason, text, attempts, buried_ns, client)
Burial = tuple[int, str, str, int, int, str]

BATCH_COUNT_MAX = 1024
BATCH_SIZE_MAX = 1 << 20
# With a rate, a batch has at most a tenth of a second's messages.
RATE_SHARE = 10
SECOND_NS = 1_000_000_000
OWED_COUNT_MAX = 65_536


class Task:
    """Messages that someone asked to move; the ticket is settled at its end.

    What is buried below the topic's end of now, in the order of the log.
    """

    owed = False

    def __init__(self, channel: Channel, to: str, chosen: Chosen, rate: int = 0) -> None:
        self.to = to
        self.ticket = Ticket()
        self.moved_count = 0
        self.not_before_ns = 0  # monotonic
        self.error: OSError | None = None  # why some could not be read
        self._channel = channel
        self._channel_id = channel.id
        self._reason = chosen.reason
        self._indexes = None if chosen.indexes is None else deque(sorted(set(chosen.indexes)))
        self._after = chosen.after
        self._end = channel.topic.end
        buried = channel.window.buried
        held = 0 if buried is None else buried.count_of(chosen.reason)
        self._left = min(chosen.count_max, held)
        self._rate = rate

    @property
    def left(self) -> int:
        """How many messages are still to come, at most."""
        return self._left if self._indexes is None else min(self._left, len(self._indexes))

    def stop(self) -> None:
        """End after the batch that is on its way."""
        self._left = 0
        self.not_before_ns = 0

    def pick(self) -> list[int] | None:
        """The next messages to move, ascending; [] to ask again, None if it has ended."""
        channel, buried = self._channel, self._channel.window.buried
        if channel.closed or channel.id != self._channel_id or self._left <= 0 or buried is None:
            return None
        count = min(BATCH_COUNT_MAX, self._left)
        if self._rate:
            count = min(count, max(1, self._rate // RATE_SHARE))
        if self._indexes is not None:
            return self._pick_given(self._indexes, buried, count)
        page = buried.page(self._after, count, self._reason)
        if not page or page[0][0] >= self._end:
            return None
        found = [row[0] for row in page]
        self._after = found[-1]
        return [i for i in found if i < self._end and i not in channel.moving]

    def _pick_given(self, indexes: deque[int], buried: Buried, count: int) -> list[int] | None:
        picked: list[int] = []
        while indexes and len(picked) < count:
            index = indexes.popleft()
            if index in buried and index not in self._channel.moving:
                picked.append(index)
        return picked or None

    def unread(self, indexes: list[int]) -> None:
        """The last of the messages picked are for the next batch."""
        if not indexes:
            return
        if self._indexes is not None:
            self._indexes.extendleft(reversed(indexes))
        else:
            self._after = indexes[0] - 1

    def unreadable(self, indexes: list[int], error: OSError) -> None:
        """These could not be read: they stay buried."""
        self.error = error

    def moved(self, count: int, now_ns: int) -> None:
        self.moved_count += count
        self._left -= count
        if self._rate:
            start_ns = max(now_ns, self.not_before_ns)
            self.not_before_ns = start_ns + count * SECOND_NS // self._rate


class Owed:
    """Messages that a channel's policy moves to its dead topic."""

    owed = True

    def __init__(self, channel: Channel, wanted: Callable[[Burial, int], bool]) -> None:
        """``wanted(row, count)``: whether the policy moves it when so many others are moved."""
        self.not_before_ns = 0  # monotonic
        self._channel = channel
        self._wanted = wanted
        self._indexes: deque[int] = deque()
        self._after: int | None = None  # the place of a search; None: there is none

    @property
    def idle(self) -> bool:
        return not self._indexes and self._after is None

    def add(self, indexes: list[int]) -> None:
        if len(self._indexes) + len(indexes) <= OWED_COUNT_MAX:
            self._indexes.extend(indexes)
        else:
            self.search()

    def search(self) -> None:
        """Search all that is buried, from the start."""
        self._after = -1

    def pick(self) -> list[int] | None:
        """The next messages to move; [] to ask again, None if there are none."""
        buried, picked = self._channel.window.buried, set[int]()
        if buried is None:
            self._indexes.clear()
            self._after = None
            return None
        for _ in range(min(len(self._indexes), BATCH_COUNT_MAX)):
            self._take(buried.get(self._indexes.popleft()), picked)
        if not picked and self._after is not None:
            page = buried.page(self._after, BATCH_COUNT_MAX)
            for row in page:
                self._take(row, picked)
            self._after = page[-1][0] if page else None
        if not picked and self._after is None and not self._indexes:
            return None
        return sorted(picked)

    def _take(self, row: Burial | None, picked: set[int]) -> None:
        if row is None or row[0] in self._channel.moving:
            return
        if self._wanted(row, len(picked)):
            picked.add(row[0])

    def unread(self, indexes: list[int]) -> None:
        """These were picked and not moved: they are next."""
        self._indexes.extendleft(reversed(indexes))

    def unreadable(self, indexes: list[int], error: OSError) -> None:
        """These could not be read: they are tried again after the others."""
        self._indexes.extend(indexes)

    def moved(self, count: int, now_ns: int) -> None:
        """Counted by the channel."""


Job = Task | Owed


class Mover:
    """What is to be moved of one channel."""

    def __init__(self, channel: Channel, owed: Owed) -> None:
        self.channel = channel
        self.tasks: deque[Task] = deque()
        self.owed = owed
        self.queued = False
        self.wake_ns = 0  # when it is queued again, monotonic; 0: it does not wait
        self.pause_ns = 0  # since an owed batch failed; 0: it did not

    @property
    def idle(self) -> bool:
        return not self.tasks and self.owed.idle

    def job(self, now_ns: int) -> Job:
        """The job whose turn it is, or that is due next."""
        jobs: list[Job] = list(self.tasks)  # those at a rate let the others pass
        if not jobs or not self.owed.idle:
            jobs.append(self.owed)
        return min(jobs, key=lambda job: max(job.not_before_ns, now_ns))
