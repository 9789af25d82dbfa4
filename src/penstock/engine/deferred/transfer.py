"""Deferred messages on their way to another node (engine/drain/handover.py).

    take -> the handover stages them there -> settle      they are done here, in the checkpoint
                                           -> give_back   they fire here, when they are due

Rule 1: what is taken does not fire here before it is given back.
Rule 2: what an open handover of an earlier process took is taken again when its slots are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.schedule import NEVER, Taken
from penstock.core.slots import Due
from penstock.engine.deferred.slot import SlotTable

if TYPE_CHECKING:
    from penstock.engine.context import Turns
    from penstock.engine.deferred.queue import DeferredQueue, Range

# Until a checkpoint is written it is asked for at this interval; another one may be in progress.
CHECKPOINT_POLL_NS = 5_000_000

Slots = Iterable[tuple[int, Iterable[tuple[int, int]]]]  # number, runs of ordinals


class Transfer:
    """Takes messages out of a queue, due or not, soonest first."""

    def __init__(self, queue: DeferredQueue, table: SlotTable, turns: Turns) -> None:
        self._queue = queue
        self._table = table
        self._turns = turns

    # Taking

    def open(self, wanted: bool) -> None:
        """Whether messages will be taken: then slots are read long before they are near."""
        self._queue.loader.far = wanted
        self._queue.wake()

    def take(self, count_max: int, size_max: int, then: Callable[[list[Due]], None]) -> None:
        """Call ``then`` with the soonest messages; with none if there are none now.

        Messages of ephemeral topics stay, and so does what is due: it fires here.
        """
        schedule, now_ns = self._table.schedule, self._table.clock.wall_ns()
        if schedule.top_ns <= now_ns or not len(schedule):
            then([])
            return
        taken = schedule.take(NEVER - 1, count_max, size_max)
        parts = self._queue.ranges(taken)
        work = partial(self._queue.read_parts, parts)
        self._table.disk.submit(work, partial(self._have_read, taken, parts, then))

    def _have_read(
        self,
        taken: Taken,
        parts: list[Range],
        then: Callable[[list[Due]], None],
        found: list[bytes | OSError] | None,
        error: Exception | None,
    ) -> None:
        dues = self._queue.parse_parts(taken, parts, found, error)
        if not dues:
            self._queue.wake()
        then(dues)

    def is_void(self, dues: Iterable[Due]) -> bool:
        """Whether the topic of one was deleted or emptied since it was taken."""
        void_stamp = self._table.tallies.void_stamp
        return any(due.stamp < void_stamp(due.instance) for due in dues)

    def give_back(self, dues: Iterable[Due]) -> None:
        """They are not handed over: they fire here."""
        for due in dues:
            file = self._table.files[due.slot]
            self._table.schedule.retry(file, due, due.due_ns)
        self._queue.wake()

    def settle(self, dues: list[Due], then: Callable[[], None]) -> None:
        """The other node has them; ``then`` is called when that is durable here."""
        checkpoints = self._queue.checkpoints
        numbers = set()
        for (number, _), (_, ordinals) in self._table.schedule.group(dues).items():
            file = self._table.files[number]
            self._table.schedule.settle(file, len(ordinals))
            checkpoints.add_void(file, ordinals)
            numbers.add(number)
        self._checkpoint(numbers, then)

    def _checkpoint(self, numbers: set[int], then: Callable[[], None]) -> None:
        checkpoints = self._queue.checkpoints
        if checkpoints.lacks(numbers):
            checkpoints.write([])
            again = partial(self._checkpoint, numbers, then)
            self._turns.after(CHECKPOINT_POLL_NS, again)
        else:
            then()

    # After a restart

    def expect(self, slots: Slots) -> None:
        """An earlier process took these; called when the queue has recovered, before it reads."""
        for number, runs in slots:
            if number in self._table.files:
                self._table.files[number].expect(runs)

    def expected(self, slots: Slots) -> list[Due] | None:
        """Those that are not done, without their bodies; None while their slots are not read."""
        files = [self._table.files[n] for n, _ in slots if n in self._table.files]
        if not all(file.counted for file in files):
            return None
        return [due for file in files for due in file.taken or ()]
