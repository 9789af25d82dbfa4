"""Removes what all channels of a topic have finished, in whole segments (R5, R21).

    log   [ given back ][ retained ][ stragglers ][ unfinished ][ active ]
                                 kept_from                           |
                                  rolled when it is full, or old (retained.py)

A finished segment is kept while it is retained.  A straggler keeps no segment longer than that: it
is copied to a side file.

Rule 1: journal first: where the log is whole is synced before a removal (R18), and so is the new
        list of files before a file is unlinked.
Rule 2: one removal of a topic at a time, of a few segments; the next follows when it is done.
Rule 3: files of all topics are unlinked one after another, on one thread: thousands of topics may
        have something to remove at once.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from penstock.core.deadlines import NEVER_NS
from penstock.core.ticket import Ticket, settled
from penstock.engine.catalog.journal import JournalKeeper
from penstock.engine.disk import report
from penstock.engine.retention.retained import Retained, RetainingTopic
from penstock.engine.retention.stragglers import searchable, stragglers_of, tables_of
from penstock.engine.retention.unfinished import Unfinished
from penstock.engine.shared import Shared
from penstock.errors import StorageError
from penstock.storage import journal as records
from penstock.storage.damage import DamageKind
from penstock.storage.log_reader import Damage
from penstock.storage.relocation import Relocation
from penstock.storage.segment import Segment

# How often an old segment with few unfinished messages is searched for.
STRAGGLER_INTERVAL_NS = 5_000_000_000


class RemovingTopic(RetainingTopic, Protocol):
    """A topic as removal sees it."""

    keeper: JournalKeeper

    @property
    def leaving(self) -> bool: ...
    def journal_files(self) -> bool: ...
    def removed(self, end: int) -> None: ...


class Removal:
    """The finished segments of one topic."""

    def __init__(self, topic: RemovingTopic, shared: Shared) -> None:
        self._topic = topic
        self._shared = shared
        self._clock = shared.context.clock
        self._disk = shared.context.disk
        self._log = topic.log
        self.retained = Retained(topic, shared.context, shared.retention)
        self.unfinished = Unfinished(topic, self.retained, shared.context.clock)
        # At and above it no message was ever removed; journaled before a removal.
        self.whole_from = 0
        self._removed_end = 0
        self._removed_journaled = 0
        self._removing = False
        self._straggler_ns = 0
        self._relocation_failed = False
        self._recovered_ns: int | None = None  # monotonic; if some were removed before the start
        self._rewind_count = 0  # channels that went back
        self._given_up_end = 0

    def recover(self, whole_from: int) -> None:
        """Restore what the journal has."""
        self.whole_from = self._removed_end = self._removed_journaled = whole_from
        if whole_from:
            self._log.removed_ns = self._clock.wall_ns()
            self._recovered_ns = self._clock.monotonic_ns()

    @property
    def safe_from(self) -> int:
        """``whole_from``, or what it will be after a removal that is in progress."""
        return max(self.whole_from, self._removed_end) if self._removing else self.whole_from

    @property
    def removed_ns(self) -> int:
        """No message appended later than this was removed; 0: none was.

        When those came that were removed before the start is unknown: before it, also by a clock
        that was slow then and is right now.
        """
        if self._recovered_ns is None:
            return self._log.removed_ns
        past_ns = self._clock.monotonic_ns() - self._recovered_ns
        return max(self._log.removed_ns, self._clock.wall_ns() - past_ns)

    def rewound(self) -> None:
        """A channel went back: which stragglers a relocation in progress has to move is unknown."""
        self._rewind_count += 1
        self.retained.rewound()

    def records(self) -> list[bytes]:
        """For a snapshot of the journal."""
        return [records.encode_removed(self._removed_end)] if self._removed_end else []

    def run(self) -> bool:
        """Remove finished segments, and relocate the stragglers of old ones.

        Returns whether to check again later even if nothing happens on this topic.
        """
        topic, log = self._topic, self._log
        if self._removing or topic.leaving:
            return not topic.closed
        damages = log.take_damage()
        if damages:
            self.keep_evidence(damages)
            return True
        low = topic.low()
        log.pinned_slots = self._shared.deferred.checkpoints.open_slots()
        log.buried = tables_of(topic.windows())
        rolling = self.retained.roll(low)
        kept_from = self.retained.kept_from()
        end = log.retire_end(min(low, kept_from))
        if end > self._removed_journaled:
            self._journal_removed(end)
            return True
        if end:
            size = log.size
            self.retained.removing(log.first, end)
            paths = log.retire(min(low, kept_from))
            self.whole_from = max(self.whole_from, end)
            topic.removed(end)
            self._unlink(paths, size - log.size)
            return True
        if self.retained.given_up_end > self._given_up_end:
            self._given_up_end = self.retained.given_up_end
            if not self._relocation_failed:
                self._straggler_ns = 0  # the disk cannot wait for the next search
        early = self._clock.monotonic_ns() < self._straggler_ns
        segment, stragglers = self._find_stragglers(kept_from)
        if segment is None and self._relocation_failed and not early:
            self._relocation_failed = False  # what could not be moved is finished now
            self._shared.retries.worked(self._relocating)
        if segment is not None:
            if segment.visible.end > self._removed_journaled:
                self._journal_removed(segment.visible.end)
                return True
            self._removing = True
            self._disk.submit(
                partial(log.relocate, segment.base, stragglers),
                partial(self._relocated, self._rewind_count),
            )
        # A segment below the mark still exists because a deferred slot pins it.
        oldest = log.files[0] if log.files else None
        finished = (
            oldest is not None and oldest.sealed and oldest.visible.end <= min(low, kept_from)
        )
        # One with buried messages is checked again after a kick or a discard.
        pinned = finished and oldest is not None and not log.has_buried(oldest)
        return rolling or early or segment is not None or pinned

    def _journal_removed(self, end: int) -> None:
        """Journal first: a reader must not take a range with removed messages for whole (R18)."""
        self._removing = True
        self._removed_end = max(self._removed_end, end)
        keeper = self._topic.keeper
        keeper.add(records.encode_removed(end))

        def journaled(ticket: Ticket) -> None:
            self._removing = False
            if ticket.error is None:
                self._removed_journaled = max(self._removed_journaled, end)
                self.run()

        keeper.flush(sync=True).add(journaled)

    def _unlink(self, paths: list[str], size: int) -> None:
        """Unlink files that the log dropped, after the journal no longer lists them."""
        self._removing = True
        topic = self._topic
        journaled = topic.keeper.flush(sync=True) if topic.journal_files() else settled()
        journaled.add(partial(self._unlink_journaled, paths, size))

    def _unlink_journaled(self, paths: list[str], size: int, journaled: Ticket) -> None:
        if journaled.error is not None:
            if not self._topic.closed:
                self._shared.context.retry(partial(self._unlink, paths, size))
            return
        retention = self._shared.retention
        retention.unlinking_size += size

        def unlink() -> None:
            for path in paths:
                self._shared.context.files.unlink(path)

        retention.unlinks.submit(unlink, partial(self._unlinked, size))

    def _unlinked(self, size: int, _: None, error: Exception | None) -> None:
        self._removing = False
        self._shared.retention.unlinking_size -= size
        if error is not None:
            self._report(error)
        else:
            # There may be more: moving a stuck message frees everything after it.
            self.run()

    # ---- damage

    def keep_evidence(self, damages: list[Damage]) -> Ticket:
        """Reads found corrupt bytes: treat them as gaps and keep copies as evidence (R3).

        The ticket is settled when the copies are made.
        """
        for damage in damages:
            size, last = damage.end - damage.offset, damage.index_end - 1
            where = f"{damage.path} at {damage.offset}, {size} bytes"
            lost = f"messages {damage.index_start} to {last} are lost"
            self._shared.damage.report(
                DamageKind.SIDE if damage.path.endswith(".side") else DamageKind.LOG,
                f"corrupt: {where}; {lost}",
                topic=self._topic.name,
                path=damage.path,
                messages=damage.message_count,
            )
        self._removing = True  # the files stay until the copies are made

        ticket = Ticket()

        def keep() -> None:
            for damage in damages:
                self._log.keep_evidence(damage)

        def kept(_: None, error: Exception | None) -> None:
            self._removing = False
            if error is not None:
                self._report(error)
            ticket.settle()

        self._disk.submit(keep, kept)
        return ticket

    def _report(self, error: Exception) -> None:
        if not self._topic.leaving:
            report(f"topic={self._topic.name}", error)

    # ---- stragglers

    def _relocated(
        self, rewind_count: int, moved: Relocation | None, error: Exception | None
    ) -> None:
        self._removing = False
        if self._topic.closed:
            return
        if moved is None:
            self._not_relocated(error if error is not None else OSError("not written"))
            return
        old, side = moved.segment, moved.side
        paths = [side.path] if side is not None else []
        # Otherwise a channel was created meanwhile that starts in this segment, or went back.
        if old.visible.end <= self._topic.passed() and rewind_count == self._rewind_count:
            try:
                first, end = old.first, old.visible.end
                self.retained.removing(first, end, len(moved.indexes))
                paths = self._log.relocated(moved)
            except StorageError as error:
                self._not_relocated(error)
            else:
                self._relocation_failed = False
                self._shared.retries.worked(self._relocating)
            if old.path in paths:
                self.whole_from = max(self.whole_from, old.visible.end)
                self._topic.removed(old.visible.end)
        self._unlink(paths, 0)

    @property
    def _relocating(self) -> str:
        return f"topic={self._topic.name}: moving unfinished messages of an old segment"

    def _not_relocated(self, error: Exception) -> None:
        """Keep the segment and retry after a pause, as for a failed read."""
        self._shared.health.needs_room(error)
        self._relocation_failed = True
        self._straggler_ns = NEVER_NS

        def again() -> None:
            self._straggler_ns = 0
            if self._topic.closed:
                self._shared.retries.worked(self._relocating)
            else:
                self._shared.rounds.used.add(self._topic)

        self._shared.retries.failed(self._relocating, error, again)

    def _find_stragglers(self, kept_from: int) -> tuple[Segment | None, list[int]]:
        """A segment that all cursors have passed with few unfinished messages; and those.

        Only below ``kept_from``: a segment that is retained anyway keeps its stragglers.
        """
        now_ns = self._clock.monotonic_ns()
        windows = self._topic.windows()
        if now_ns < self._straggler_ns or not searchable(windows):
            return None, []
        log, passed = self._log, min(self._topic.passed(), kept_from)
        for segment in log.files:
            if not segment.sealed or segment.visible.end > passed:
                break
            if not log.unpinned(segment):
                continue
            alive = stragglers_of(windows, segment)
            if alive is not None:
                # Messages lost to damage may still be in flight; they cannot be moved.
                return segment, [i for i in alive if log.count_between(i, i + 1)]
        self._straggler_ns = now_ns + STRAGGLER_INTERVAL_NS
        return None, []
