"""Reads of log ranges for readers over HTTP, on the disk's threads (R9).

Rule 1: a few at once, so that writes and syncs always find a thread; the others wait in order.
Rule 2: nothing is done for each message.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.engine.ticket import Ticket
from penstock.storage.ranges import Range

if TYPE_CHECKING:
    from penstock.engine.broker import Broker
    from penstock.engine.topic import Topic

AT_ONCE_MAX = 4
WAITING_MAX = 1024


class Read(Ticket):
    """A read on its way; ``range`` is what it found once it is settled without an error."""

    __slots__ = ("end", "range", "size_max", "start", "topic")

    def __init__(self, topic: Topic, start: int, end: int, size_max: int) -> None:
        super().__init__()
        self.topic = topic
        self.start = start
        self.end = end
        self.size_max = size_max
        self.range = Range(b"", start)


class Reads:
    """All reads of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: deque[Read] = deque()
        self._running_count = 0
        self.read_count = 0
        self.read_size = 0

    @property
    def full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX

    def read(self, topic: Topic, start: int, end: int, size_max: int) -> Read:
        """Whole batches with messages in [start, end), about ``size_max`` bytes of them."""
        read = Read(topic, start, end, size_max)
        self._waiting.append(read)
        self._go_on()
        return read

    def _go_on(self) -> None:
        while self._waiting and self._running_count < AT_ONCE_MAX:
            read = self._waiting.popleft()
            self._running_count += 1
            work = partial(read.topic.log.read_range, read.start, read.end, read.size_max)
            self._broker.disk.submit(work, partial(self._done, read))

    def _done(self, read: Read, found: Range | None, error: BaseException | None) -> None:
        self._running_count -= 1
        if found is None:
            self._broker.report(f"topic={read.topic.name}", error)
            read.settle(error if isinstance(error, Exception) else OSError(str(error)))
        else:
            # A gap behind the last batch is covered too.
            if read.topic.log.next_index(found.next) >= read.end:
                found = Range(found.data, read.end)
            self.read_count += 1
            self.read_size += len(found.data)
            read.range = found
            read.settle()
        self._go_on()
