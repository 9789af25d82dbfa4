"""Deferred messages on their way to another node (engine/drain/handover.py).

    take -> the handover stages them there -> settle      they are done here, in the checkpoint
                                           -> give_back   they fire here, when they are due

Rule 1: what is taken does not fire here before it is given back.
Rule 2: after a restart the slot files of an open handover are held: not read, so nothing of them
        fires, until it is known which of their messages the other node has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.schedule import NEVER, Taken
from penstock.core.slots import Due
from penstock.engine.deferred.slot import SlotFile, SlotTable
from penstock.storage.slots import SlotName

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

    def hold(self, numbers: Iterable[int]) -> None:
        """Called before the queue recovers: do not read these slots."""
        self._queue.loader.held.update(numbers)

    def settle_held(self, slots: Slots, then: Callable[[Exception | None], None]) -> None:
        """The other node has these messages; ``then`` is called when that is durable here."""
        names = [
            (self._table.files[number].name, list(runs))
            for number, runs in slots
            if number in self._table.files
        ]
        work = partial(self._append_fired, names)
        self._table.disk.submit(work, lambda _, error: then(error))

    def _append_fired(self, slots: list[tuple[SlotName, list[tuple[int, int]]]]) -> None:
        # On a disk thread; nothing else writes the checkpoints of a file that is not read yet.
        store = self._table.store
        for name, runs in slots:
            ordinals = [n for first, count in runs for n in range(first, first + count)]
            store.append_fired(name, ordinals, fresh=False)
        store.sync_names()

    def release_held(self) -> None:
        """It is known which messages are the other node's: read the slots."""
        loader = self._queue.loader
        held, loader.held = loader.held, set()
        for number in held & self._table.files.keys():
            file = self._table.files[number]
            assert isinstance(file, SlotFile)
            loader.add(file)
        self._queue.wake()
