"""Reads log ranges for readers over HTTP, on disk threads (R9).

Rule 1: only a few at once, so that writes and syncs always find a thread; readers take turns.
Rule 2: no work per message.
Rule 3: a range stays in memory until its reader has received it, which may be slow: all of them
        together are limited, and further reads wait.  The less room is left, the smaller are the
        responses; a reader that holds more than is left gets small ones, and the last quarter is
        for the others, so that a new reader always finds room.
Rule 4: while clients need all of the loop's time, readers wait for them (`pace.py`).
Rule 5: a reader that verifies checksums itself gets a slice of the file if it is in the page cache:
        the kernel sends it, without a thread or a copy here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from functools import partial

from penstock.core.ticket import Ticket
from penstock.engine.context import Context
from penstock.engine.health import Retries
from penstock.engine.pull.pace import Pace
from penstock.engine.pull.polls import Known, Polls, readable_end
from penstock.engine.topic import Topic
from penstock.errors import PenstockError
from penstock.page_cache import FileSlice
from penstock.storage.ranges import Range

AT_ONCE_MAX = 4
WAITING_MAX = 1024
SYNC_WAIT_NS = 5_000_000_000
# Sixteen of the largest responses.  A reader that receives nothing is disconnected after 5 s.
HELD_SIZE_MAX = 256 << 20
# A response is at most this fraction of what is left, but may always have the minimum size.
LEFT_PART = 8
SIZE_MIN = 256 << 10
# The minimum that a slice of a file counts for: it uses no memory, but a descriptor.
SLICE_SIZE_MIN = 1 << 20
SLICE_COUNT_MAX = 128


_NONE = object()


class UnsyncedError(PenstockError):
    """A range must be synced before it is read, and was not in time."""


class BusyError(PenstockError):
    """Too many reads wait, most of them of this reader."""


class Read(Ticket):
    """A read in progress; ``range`` is its result once it is settled without an error.

    If ``file_slice`` is set, that is the result, and the range has no pieces.
    """

    __slots__ = (
        *("end", "held_size", "range", "raw", "reader"),
        *("size_max", "start", "file_slice", "topic"),
    )

    def __init__(
        self, topic: Topic, start: int, end: int, size_max: int, raw: bool, reader: Hashable
    ) -> None:
        super().__init__()
        self.topic = topic
        self.reader = reader
        self.start = start
        self.end = end
        self.size_max = size_max
        self.raw = raw
        self.held_size = 0
        self.range = Range([], start)
        self.file_slice: FileSlice | None = None


class Reads:
    """All reads of a broker."""

    def __init__(self, context: Context, retries: Retries, polls: Polls) -> None:
        self._disk = context.disk
        self._turns = context.turns
        self._retries = retries
        self._polls = polls
        # By reader, in the order of their turns.
        self._waiting: dict[Hashable, deque[Read]] = {}
        self._waiting_count = 0
        self._held_by: dict[Hashable, int] = {}
        self._slice_count = 0
        self.slice_count_max = SLICE_COUNT_MAX
        self._running_count = 0
        self._held_size = 0
        self._pace = Pace(context.clock)
        self._paused = False
        self._failing: set[Topic] = set()  # a read failed and is being retried
        self.read_count = 0
        self.read_size = 0

    @property
    def pressed(self) -> bool:
        """Whether reads wait because others hold too much."""
        return bool(self._waiting) and self._next() is _NONE

    def read(
        self,
        topic: Topic,
        start: int,
        end: int,
        size_max: int,
        *,
        raw: bool = False,
        reader: Hashable = None,
    ) -> Read:
        """Read complete batches with messages in [start, end), at most about ``size_max`` bytes.

        With ``raw`` the result may extend beyond the range and is not verified.  ``reader``
        identifies the client, for rule 3.

        ``end`` is at most the topic's; unsynced messages before it are synced first (R18): after a
        restart it may be unknown that they are.  The caller calls ``free`` when it no longer needs
        the result.
        """
        read = Read(topic, start, end, size_max, raw, reader)
        if end <= readable_end(topic, None):
            self._begin(read)
        else:
            known = {topic.name: Known(topic.instance, end - 1)}
            poll = self._polls.wait(known, None, SYNC_WAIT_NS)
            poll.ticket.add(lambda _: self._begin_synced(read))
        return read

    def _begin_synced(self, read: Read) -> None:
        if read.end > readable_end(read.topic, None):
            read.settle(UnsyncedError(f"topic {read.topic.name} could not be synced in time"))
        else:
            self._begin(read)

    def _begin(self, read: Read) -> None:
        if self._waiting_count >= WAITING_MAX:
            self._make_room(read.reader)
        if self._waiting_count >= WAITING_MAX:
            read.settle(BusyError("too many reads wait"))
            return
        self._waiting.setdefault(read.reader, deque()).append(read)
        self._waiting_count += 1
        self._start_next()

    def _make_room(self, reader: Hashable) -> None:
        """Refuse the newest read of the reader with the most, unless ``reader`` has as many."""
        most = max(self._waiting, key=lambda each: len(self._waiting[each]))
        if len(self._waiting[most]) > len(self._waiting.get(reader, ())) + 1:
            refused = self._waiting[most].pop()
            self._waiting_count -= 1
            refused.settle(BusyError("too many reads wait"))

    def free(self, read: Read) -> None:
        """Release the result of ``read``; calling it again has no effect."""
        if read.file_slice is not None and read.file_slice.fd >= 0:
            read.file_slice.close()
            self._slice_count -= 1
        self._hold(read, 0)
        self._start_next()

    def _hold(self, read: Read, size: int) -> None:
        more = size - read.held_size
        read.held_size = size
        self._held_size += more
        held = self._held_by.get(read.reader, 0) + more
        if held:
            self._held_by[read.reader] = held
        else:
            self._held_by.pop(read.reader, None)

    def _start_next(self) -> None:
        while self._waiting and self._running_count < AT_ONCE_MAX:
            reader = self._next()
            if reader is _NONE or self._paused or self._pause():
                return
            own = self._waiting.pop(reader)
            read = own.popleft()
            self._waiting_count -= 1
            if own:
                self._waiting[reader] = own
            self._start(read)

    def _next(self) -> Hashable:
        """The next reader in turn for which there is room."""
        left_size = HELD_SIZE_MAX - self._held_size
        if left_size > 0:
            ample = left_size >= HELD_SIZE_MAX // 4
            for reader in self._waiting:
                if ample or self._held_by.get(reader, 0) <= left_size:
                    return reader
        return _NONE

    def _start(self, read: Read) -> None:
        log, raw = read.topic.log, read.raw
        left_size = HELD_SIZE_MAX - self._held_size
        if self._held_by.get(read.reader, 0) > left_size:
            size_max = min(read.size_max, SIZE_MIN)
        else:
            size_max = min(read.size_max, max(SIZE_MIN, left_size // LEFT_PART))
        found = None
        if raw and self._slice_count < self.slice_count_max:
            found = log.file_slice(read.start, read.end, size_max)
        if found is not None:
            read.file_slice, next = found
            self._slice_count += 1
            self._hold(read, max(read.file_slice.size, SLICE_SIZE_MIN))
            self._found(read, Range([], next), read.file_slice.size)
            return
        self._running_count += 1
        self._hold(read, size_max)
        work = partial(log.read_range, read.start, read.end, size_max, raw)
        self._disk.submit(work, partial(self._done, read))

    def _pause(self) -> bool:
        """Whether reads must pause for clients; they resume by a timer."""
        wait_ns = self._pace.wait_ns()
        if wait_ns:
            self._paused = True
            self._turns.after(wait_ns, self._resume)
        return self._paused

    def _resume(self) -> None:
        self._paused = False
        self._start_next()

    def _done(self, read: Read, found: Range | None, error: Exception | None) -> None:
        self._running_count -= 1
        if found is None:
            failure = error or OSError("not read")
            self._failed(read, failure)
            read.settle(failure)
        else:
            self._hold(read, found.size)
            self._found(read, found, found.size)
        self._start_next()

    def _failed(self, read: Read, error: Exception) -> None:
        """The reader gets the error and may not retry: probe until the read works again."""
        topic, retries = read.topic, self._retries
        source = f"topic={topic.name}: reading by index"

        def seen(_: Range | None, error: Exception | None) -> None:
            if error is None or topic.closed:
                self._failing.discard(topic)
                retries.worked(source)
            else:
                retries.failed(source, error, again)

        def again() -> None:
            work = partial(topic.log.read_range, read.start, read.end, 1)
            self._disk.submit(work, seen)

        if topic not in self._failing and not topic.closed:
            self._failing.add(topic)
            retries.failed(source, error, again)

    def _found(self, read: Read, found: Range, size: int) -> None:
        # The range also covers a gap after the last batch.
        if read.topic.log.next_index(found.next) >= read.end:
            found = Range(found.pieces, read.end)
        self.read_count += 1
        self.read_size += size
        self._pace.read(size)
        read.range = found
        read.settle()
