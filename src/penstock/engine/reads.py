"""Reads of log ranges for readers over HTTP, on the disk's threads (R9).

Rule 1: a few at once, so that writes and syncs always find a thread; the others wait in order.
Rule 2: nothing is done for each message.
Rule 3: what was read stays in memory until the reader has taken it, which may be slow: all such
        answers together are bounded, and the next reads wait.
Rule 4: while clients need all of the loop's time, readers wait for them (`pace.py`).
Rule 5: who verifies by himself gets a stretch of the file where that is in the page cache: the
        kernel sends it, without a thread or a copy here.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.ticket import Ticket
from penstock.engine.pace import Pace
from penstock.engine.polls import Known, readable_end
from penstock.errors import PenstockError
from penstock.storage.page_cache import Stretch
from penstock.storage.ranges import Range

if TYPE_CHECKING:
    from penstock.engine.broker import Broker
    from penstock.engine.topic import Topic

AT_ONCE_MAX = 4
WAITING_MAX = 1024
SYNC_WAIT_NS = 5_000_000_000
# Sixteen of the largest answers.  A reader that takes nothing is cut off after a minute.
HELD_SIZE_MAX = 256 << 20
# What a stretch counts for at least: it takes no memory, but a descriptor.
STRETCH_SIZE_MIN = 1 << 20


class UnsyncedError(PenstockError):
    """A range must be synced before it is read, and the disk did not do it in time."""


class Read(Ticket):
    """A read on its way; ``range`` is what it found once it is settled without an error.

    If there is a ``stretch``, then that is what it found, and the range has no pieces.
    """

    __slots__ = ("end", "held_size", "range", "raw", "size_max", "start", "stretch", "topic")

    def __init__(self, topic: Topic, start: int, end: int, size_max: int, raw: bool) -> None:
        super().__init__()
        self.topic = topic
        self.start = start
        self.end = end
        self.size_max = size_max
        self.raw = raw
        self.held_size = 0
        self.range = Range([], start)
        self.stretch: Stretch | None = None


class Reads:
    """All reads of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: deque[Read] = deque()
        self._running_count = 0
        self._held_size = 0
        self._pace = Pace(broker.clock)
        self._resting = False
        self._failing: set[Topic] = set()  # the disk gave an error, and it is tried again
        self.read_count = 0
        self.read_size = 0

    @property
    def full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX or self._broker.polls.full

    def read(self, topic: Topic, start: int, end: int, size_max: int, *, raw: bool = False) -> Read:
        """Whole batches with messages in [start, end), about ``size_max`` bytes of them.

        With ``raw`` they may reach further over the edges and be unverified.

        ``end`` is at most the topic's; what is not synced there is synced first (R18): after a
        restart it may not be known any more that it is.  Whoever asks calls ``free`` when it has
        no more use for what was read.
        """
        read = Read(topic, start, end, size_max, raw)
        if end <= readable_end(topic, None):
            self._begin(read)
        else:
            known = {topic.name: Known(topic.instance, end - 1)}
            poll = self._broker.polls.wait(known, None, SYNC_WAIT_NS)
            poll.ticket.add(lambda _: self._begin_synced(read))
        return read

    def _begin_synced(self, read: Read) -> None:
        if read.end > readable_end(read.topic, None):
            read.settle(UnsyncedError(f"topic {read.topic.name} could not be synced in time"))
        else:
            self._begin(read)

    def _begin(self, read: Read) -> None:
        self._waiting.append(read)
        self._go_on()

    def free(self, read: Read) -> None:
        """What ``read`` found is not held any more; a second time changes nothing."""
        if read.stretch is not None:
            read.stretch.close()
        self._hold(read, 0)
        self._go_on()

    def _hold(self, read: Read, size: int) -> None:
        self._held_size += size - read.held_size
        read.held_size = size

    def _go_on(self) -> None:
        while (
            self._waiting and self._running_count < AT_ONCE_MAX and self._held_size < HELD_SIZE_MAX
        ):
            if self._resting or self._rest():
                return
            self._start(self._waiting.popleft())

    def _start(self, read: Read) -> None:
        log, raw = read.topic.log, read.raw
        found = log.stretch(read.start, read.end, read.size_max) if raw else None
        if found is not None:
            read.stretch, next = found
            self._hold(read, max(read.stretch.size, STRETCH_SIZE_MIN))
            self._found(read, Range([], next), read.stretch.size)
            return
        self._running_count += 1
        self._hold(read, read.size_max)
        work = partial(log.read_range, read.start, read.end, read.size_max, raw)
        self._broker.disk.submit(work, partial(self._done, read))

    def _rest(self) -> bool:
        """Whether clients come first now; then it goes on by itself later."""
        wait_ns = self._pace.wait_ns()
        if wait_ns:
            self._resting = True
            self._broker.turns.after(wait_ns, self._rested)
        return self._resting

    def _rested(self) -> None:
        self._resting = False
        self._go_on()

    def _done(self, read: Read, found: Range | None, error: BaseException | None) -> None:
        self._running_count -= 1
        if found is None:
            failure = error if isinstance(error, Exception) else OSError(str(error))
            self._failed(read, failure)
            read.settle(failure)
        else:
            self._hold(read, found.size)
            self._found(read, found, found.size)
        self._go_on()

    def _failed(self, read: Read, error: BaseException) -> None:
        """The reader gets the error and may come back or not: see by ourselves when it is over."""
        topic, retries = read.topic, self._broker.retries
        source = f"topic={topic.name}: reading by index"

        def seen(_: Range | None, error: BaseException | None) -> None:
            if error is None or topic.closed:
                self._failing.discard(topic)
                retries.worked(source)
            else:
                retries.failed(source, error, again)

        def again() -> None:
            work = partial(topic.log.read_range, read.start, read.end, 1)
            self._broker.disk.submit(work, seen)

        if topic not in self._failing and not topic.closed:
            self._failing.add(topic)
            retries.failed(source, error, again)

    def _found(self, read: Read, found: Range, size: int) -> None:
        # A gap behind the last batch is covered too.
        if read.topic.log.next_index(found.next) >= read.end:
            found = Range(found.pieces, read.end)
        self.read_count += 1
        self.read_size += size
        self._pace.read(size)
        read.range = found
        read.settle()
