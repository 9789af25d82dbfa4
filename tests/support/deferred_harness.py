"""A minimal broker around a deferred queue: topic logs as a list, a controlled clock and disk.

Tests check the log: every message in it has its origin, and a power failure removes the part that
was not synced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from penstock.clock import ManualClock
from penstock.core.ticket import Ticket
from penstock.engine.deferred.counts import Reports
from penstock.engine.deferred.queue import DeferredQueue, Due, Fired
from penstock.storage.slots import SlotStore
from tests.crash.lossy import KEEP, LossyFiles

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
FOLDER = "/data/penstock/deferred"


class StepDisk:
    """Runs submitted work in order, on request; a crash drops work that has not run."""

    def __init__(self) -> None:
        self.queue: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[..., None]) -> None:
        self.queue.append((work, done))

    def step(self) -> bool:
        if not self.queue:
            return False
        work, done = self.queue.pop(0)
        try:
            result = work()
        except (OSError, RuntimeError) as error:
            done(None, error)
        except Exception as error:
            if type(error).__name__ == "Crashed":
                raise
            done(None, error)
        else:
            done(result, None)
        return True

    def drain(self) -> None:
        for _ in range(100_000):
            if not self.step():
                return
        raise AssertionError("the disk never becomes idle")


class Logged:
    """A message in a topic log."""

    def __init__(self, due: Due) -> None:
        self.due = due
        self.origin: tuple[int, int] | None = (due.slot, due.ordinal) if due.slot else None
        self.synced = False


class World:
    """A deferred queue with everything it needs."""

    def __init__(self, files: LossyFiles | None = None, **options: Any) -> None:
        self.files = files or LossyFiles()
        self.files.make_folder("/data/penstock")
        for folder in ("", "/data", "/data/penstock"):
            self.files.sync_folder(folder)
        self.clock = ManualClock()
        self.options = {"near_count_max": 1000, "piece_size": 512 * 1024} | options
        self.stamps = itertools.count(1)
        self.generations: Iterator[int] = itertools.count(1)
        self.void: dict[int, int] = {}
        self.log: list[Logged] = []
        self.failures: list[BaseException] = []
        self.damages: list[tuple[str, str, int | None]] = []
        self.failing: dict[str, str] = {}
        self.dirty_count = 0
        self.wake_count = 0
        self.start()

    def start(self) -> None:
        options = dict(self.options)
        self.failing = {}
        self.disk = StepDisk()
        self.store = SlotStore(self.files, FOLDER, options.pop("piece_size"))
        self.queue = DeferredQueue(
            self.store,
            self.disk,
            self.clock,
            void_before=lambda instance: self.void.get(instance, 0),
            health=self.failures.append,
            reports=Reports(self._damaged, self._failed, self._works),
            dirty=self._dirty,
            wake=self._wake,
            generation=lambda: next(self.generations),
            **options,
        )
        found = self.queue.opening.find()
        fired: dict[int, list[int]] = {}
        for logged in self.log:
            if logged.origin is not None and logged.origin[0] in found:
                fired.setdefault(logged.origin[0], []).append(logged.origin[1])
        self.queue.recover(fired)

    def restart(self, mode: str = KEEP, seed: int = 0) -> None:
        """Stop immediately, and start again; only ``KEEP`` keeps what was not synced."""
        if mode != KEEP:
            self.log = [logged for logged in self.log if logged.synced]
        self.files.crash(mode, seed)
        self.start()

    def _damaged(self, text: str, path: str, messages: int | None) -> None:
        if (text, path, messages) not in self.damages:
            self.damages.append((text, path, messages))

    def _failed(self, source: str, error: BaseException | str) -> None:
        self.failing[source] = str(error)

    def _works(self, source: str) -> None:
        self.failing.pop(source, None)

    @property
    def lost_count(self) -> int:
        """Messages that were reported as lost."""
        return sum(messages or 0 for _, _, messages in self.damages)

    def _dirty(self) -> None:
        self.dirty_count += 1

    def _wake(self) -> None:
        self.wake_count += 1

    @property
    def now_ns(self) -> int:
        return self.clock.wall_ns()

    def defer(self, delay_ns: int, body: bytes = b"body", instance: int = 1) -> Ticket:
        return self.defer_stamped(delay_ns, body, instance)[0]

    def defer_stamped(
        self, delay_ns: int, body: bytes = b"body", instance: int = 1
    ) -> tuple[Ticket, int]:
        stamp = next(self.stamps)
        now_ns = self.now_ns
        ticket = self.queue.writer.defer(
            f"topic{instance}", instance, body, now_ns, now_ns + delay_ns, stamp
        )
        return ticket, stamp

    def flush(self) -> None:
        """Write accepted messages; the disk creates new files, many of them in several turns."""
        for _ in range(1000):
            self.queue.writer.flush()
            self.disk.drain()
            if self.queue.writer.idle:
                return
        raise AssertionError("never written")

    def put(self, delay_ns: int, body: bytes = b"body", instance: int = 1) -> None:
        """Accept one message and write it."""
        ticket = self.defer(delay_ns, body, instance)
        self.flush()
        assert ticket.done and ticket.error is None

    def take(self, count_max: int = 1000, size_max: int = 1 << 30) -> list[Due]:
        """The messages due now, after the disk has run all work."""
        for _ in range(1000):
            taken = self.queue.take(self.now_ns, count_max, size_max)
            if taken or not self.disk.queue:
                return taken
            self.disk.drain()
        raise AssertionError("the disk never becomes idle")

    def fire(self, count_max: int = 1000) -> list[bytes]:
        """Fire everything that is due; returns the bodies in order."""
        bodies = []
        for _ in range(100_000):
            taken = self.take(count_max)
            if not taken:
                return bodies
            assert all(due.due_ns <= self.now_ns for due in taken), "early"
            self.log.extend(Logged(due) for due in taken)
            bodies += [due.body for due in taken]
            self.queue.fired(taken)
        raise AssertionError("never done")

    def checkpoint(self) -> list[Fired]:
        due = self.queue.checkpoints.due()
        for logged in self.log:
            logged.synced = True
        self.queue.checkpoints.write(due)
        self.disk.drain()
        self.queue.checkpoints.write([])
        self.disk.drain()
        return due

    def forget_origins(self) -> None:
        """Let the logs drop every segment that is not pinned by an open slot."""
        pinned = self.queue.checkpoints.open_slots()
        for logged in self.log:
            if logged.synced and logged.origin is not None and logged.origin[0] not in pinned:
                logged.origin = None

    def file_names(self) -> list[str]:
        return self.files.list(FOLDER)

    @property
    def bodies(self) -> list[bytes]:
        return [logged.due.body for logged in self.log]
