"""Retention: finished segments that are kept for readers who come later (R21).

    age     |<------------ retain ------------>|<- a quarter ->|
    kept    certainly                           until its whole segment is older

Rule 1: at least what the policy says is kept, in whole segments: a segment goes when its newest
        message is older than ``retain``, or when the newer finished ones hold ``retain_bytes``
        without it.  Those that may go are always the oldest ones.
Rule 2: an active segment is sealed before it spans a quarter of ``retain``, also on an idle topic;
        with ``retain_bytes`` it is full at an eighth of that.
Rule 3: a wrong clock makes nothing go early.  The age is the smaller of two: by the wall clock
        now; and by the wall clock when this process first saw its newest message, plus the
        monotonic time since.  It is at least that monotonic time, so a clock that was fast once
        does not keep a segment forever.  For a while after a start nothing goes by its age: a
        machine may boot with a wrong clock.
Rule 4: a topic costs nothing until its next segment is due; the rolls that come due for many topics
        at once are begun one after another.
"""

from __future__ import annotations

from typing import Protocol

from penstock.core.deadlines import NEVER_NS
from penstock.core.ticket import Ticket, settled
from penstock.core.window import Window
from penstock.engine.context import Context
from penstock.engine.retention.stragglers import (
    buried_size,
    is_removable,
    movable,
    tables_of,
)
from penstock.engine.retention.wakes import Retention
from penstock.engine.writer import TopicWriter
from penstock.settings.policy import Policy
from penstock.storage.log_reader import locate
from penstock.storage.segment import Segment
from penstock.storage.topic_log import TopicLog

# Parts of ``retain``.  An active segment is rolled after ROLL_PART of it, and up to SPREAD_PART
# later, so that topics that began together do not roll together.  After a start nothing goes by its
# age for START_PART, but at most START_NS.
ROLL_PART = 8
SPREAD_PART = 16
START_PART = 32
START_NS = 60_000_000_000
SPREAD = 1 << 16

# The greatest age of a segment when it is first seen with a new batch.
FRESH_NS = 2_000_000_000

# How often the segments above the low-water mark are searched for stragglers.
SEARCH_INTERVAL_NS = 5_000_000_000

# A segment is full at this part of ``retain_bytes``, but not below this size.
SEGMENT_PART = 8
SEGMENT_SIZE_MIN = 256 * 1024


class RetainingTopic(Protocol):
    """A topic as retention sees it."""

    name: str
    instance: int
    closed: bool
    log: TopicLog
    writer: TopicWriter

    @property
    def released(self) -> int: ...
    def low(self) -> int: ...
    def passed(self) -> int: ...
    def retire(self) -> bool: ...
    def windows(self) -> list[Window]: ...


class Retained:
    """What is kept of one topic's log although it is finished."""

    def __init__(self, topic: RetainingTopic, context: Context, retention: Retention) -> None:
        self.topic = topic
        self._log = topic.log
        self._clock = context.clock
        self._segment_size = context.options.max_bytes_per_file
        self._retention = retention
        self._retain_ns = self._retain_bytes = 0
        self._start_ns = self._clock.monotonic_ns()
        self._seen = False  # whether the segments were seen since retention began
        self._active: Segment | None = None  # the active segment when it was last seen,
        self._active_ns = 0  # and when it was first seen
        self._sealing: Segment | None = None  # the active segment that was to make room
        self.wake_ns = NEVER_NS  # when the topic is checked again
        self._expired_end = 0  # what the policy keeps begins here
        self.given_up_end = 0  # segments below this have to make room
        self.given_up_count = 0  # messages removed early because the disk was low
        self._found: list[Segment] = []  # see _beside()
        self._beside_until_ns = 0

    @property
    def wanted(self) -> bool:
        """Whether finished segments are retained at all."""
        return bool(self._retain_ns or self._retain_bytes)

    def apply_policy(self, policy: Policy) -> None:
        self._retain_ns, self._retain_bytes = policy.retain_ns, policy.retain_bytes
        size = self._segment_size
        if self._retain_bytes:
            size = min(size, max(SEGMENT_SIZE_MIN, self._retain_bytes // SEGMENT_PART))
        self._log.limit_segments(size)
        if self.wanted:
            self._retention.retained[self] = None
            self._see()
        else:
            self.close()
            self._seen = False
        self._retention.check_soon(self)

    def close(self) -> None:
        """The topic is gone, or retains nothing any more."""
        self.wake_ns = NEVER_NS
        self._retention.forget(self)

    # ---- removing

    def kept_from(self) -> int:
        """The index below which finished segments are not retained, or not any more."""
        log = self._log
        if not self.wanted:
            return log.end
        now_ns = self._see()
        files, place, place_max = log.files, 0, self._sealed_count(self.topic.passed())
        low_place = self._sealed_count(self.topic.low())
        beside = set(self._beside()) if self._retain_bytes and low_place < place_max else set()
        wall_ns, young_ns = self._clock.wall_ns(), now_ns - self._start_ns
        started = young_ns >= min(START_NS, self._retain_ns // START_PART)
        newer_size = self._size_before(low_place) + sum(each.file_size for each in beside)
        while place < place_max:
            segment = files[place]
            left_ns = self._retain_ns - self._age_ns(segment, wall_ns, now_ns)
            if place < low_place or segment in beside:
                newer_size -= segment.file_size
            beyond = newer_size >= self._retain_bytes > 0
            expired = left_ns <= 0 and started and self._retain_ns > 0
            if not beyond and not expired:
                if self._retain_ns:
                    self._retention.wake(self, now_ns + max(left_ns, 0))
                break
            place += 1
        self._expired_end = files[place - 1].visible.end if place else 0
        return max(self._expired_end, self.given_up_end)

    def _see(self) -> int:
        """Note how old the segments are that have changed since the last call; returns the time."""
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        # A topic is checked within a second or so after a batch, whatever the wall clock did.
        age_max_ns = FRESH_NS if self._seen else NEVER_NS
        self._seen = True
        for segment in reversed(self._log.files):
            if segment.seen_ns and segment.seen_end == segment.visible.end:
                if segment.sealed:
                    break
                continue
            segment.seen_ns, segment.seen_end = max(1, now_ns), segment.visible.end
            segment.age_ns = min(max(0, wall_ns - segment.append_ns_last), age_max_ns)
        return now_ns

    def _age_ns(self, segment: Segment, wall_ns: int, now_ns: int) -> int:
        seen_ns = now_ns - segment.seen_ns
        return max(seen_ns, min(wall_ns - segment.append_ns_last, seen_ns + segment.age_ns))

    def _sealed_count(self, end: int) -> int:
        """How many sealed files are entirely below ``end``."""
        files = self._log.files
        count = locate(files, end)
        return count - 1 if count and not files[count - 1].sealed else count

    def _size_before(self, place: int) -> int:
        log = self._log
        return log.size_before(place) if place < len(log.files) else log.size

    # ---- rolling

    def roll(self, low: int) -> bool:
        """Seal the active segment if it is full, old, or finished and in the way; whether it is.

        A finished one is not in the way while it is retained.
        """
        # A full one may be there without a publish: a policy has changed.
        if self.topic.writer.roll_if_finished(0 if self.wanted else low):
            return True
        if not self.wanted:
            return False
        left_ns = self._until_roll()
        if left_ns is None:
            return False
        if left_ns > 0:
            self._retention.wake(self, self._clock.monotonic_ns() + left_ns)
            return False
        self._retention.rolls.add(self._roll)
        return True

    def _until_roll(self) -> int | None:
        files = self._log.files
        if not self._retain_ns or not files or files[-1].sealed:
            return None
        segment, now_ns = files[-1], self._clock.monotonic_ns()
        if segment is not self._active:
            self._active, self._active_ns = segment, now_ns
        age_ns = max(self._clock.wall_ns() - segment.append_ns_first, now_ns - self._active_ns)
        spread = self.topic.instance % SPREAD
        roll_ns = self._retain_ns // ROLL_PART
        return roll_ns + self._retain_ns // SPREAD_PART * spread // SPREAD - age_ns

    def _roll(self) -> Ticket:
        return settled() if self.topic.closed else self.topic.writer.roll_soon()

    # ---- giving up

    def seal_finished(self) -> None:
        """Have the active segment sealed if it is finished, so that it can be given up.

        One that is small stays: it is not worth it.
        """
        files = self._log.files
        if not files or files[-1].sealed or files[-1] is self._sealing:
            return
        if files[-1].visible.end <= self.topic.low() and files[-1].file_size >= SEGMENT_SIZE_MIN:
            self._sealing = files[-1]
            self._retention.rolls.add(self._roll)

    def oldest_ns(self) -> int | None:
        """When the newest message of the oldest retained segment was appended, if there is one."""
        oldest = self.oldest()
        return None if oldest is None else oldest.append_ns_last

    def give_up(self) -> Segment:
        """Give up the oldest segment that only retention keeps."""
        oldest = self.oldest()
        assert oldest is not None
        self.given_up_end = oldest.visible.end
        return oldest

    def holds(self, segment: Segment) -> bool:
        """Whether the segment is still there."""
        files = self._log.files
        place = locate(files, segment.first)
        return place < len(files) and files[place] is segment

    def removing(self, start: int, end: int, moved_count: int = 0) -> None:
        """The messages in [start, end) go now, but for those moved; count what had time left."""
        start = max(start, self._expired_end)
        if start < end and self.wanted:
            self.given_up_count += self._log.count_between(start, end) - moved_count

    def oldest(self) -> Segment | None:
        """The oldest segment that only retention keeps; None if there is none."""
        if not self.wanted:
            return None
        log, files, windows = self._log, self._log.files, self.topic.windows()
        low_place = self._sealed_count(self.topic.low())
        whole = not tables_of(windows)  # nothing of what is below the low-water mark is needed
        for place in range(
            locate(files, self.given_up_end), self._sealed_count(self.topic.passed())
        ):
            finished = place < low_place
            if log.unpinned(files[place]) and (
                (finished and whole) or is_removable(windows, files[place], finished=finished)
            ):
                return files[place]
        return None

    # ---- what is shown

    def stats(self) -> dict[str, int]:
        """For /stats; nothing if nothing is retained."""
        if not self.wanted:
            return {}
        return {
            "retained_bytes": self.size,
            "retained_oldest_ms": self.oldest_age_ns // 1_000_000,
            "given_up_count": self.given_up_count,
        }

    @property
    def oldest_age_ns(self) -> int:
        """The age of the oldest message that retention keeps; 0 if there is none."""
        oldest = self.oldest()
        return max(0, self._clock.wall_ns() - oldest.append_ns_first) if oldest is not None else 0

    @property
    def size(self) -> int:
        """Bytes of the segments that are kept by retention alone."""
        if not self.wanted:
            return 0
        low = self.topic.low()
        size = self._size_before(self._sealed_count(low))
        size -= buried_size(self.topic.windows(), self._log, low)
        return size + sum(segment.file_size for segment in self.beside())

    def rewound(self) -> None:
        """A channel went back: what was found may be unfinished again."""
        self._found = []

    def beside(self) -> frozenset[Segment]:
        """The segments above the low-water mark that only retention keeps."""
        return frozenset(self._beside()) if self.wanted else frozenset()

    def _beside(self) -> list[Segment]:
        """Segments above the low-water mark that only retention keeps.

        Their few unfinished messages would otherwise be in side files.  Searched for rarely: a
        search walks all unfinished messages.
        """
        topic, files, now_ns = self.topic, self._log.files, self._clock.monotonic_ns()
        low, passed = topic.low(), topic.passed()
        place, place_max = self._sealed_count(low), self._sealed_count(passed)
        if place >= place_max:
            return []
        if now_ns >= self._beside_until_ns:
            self._beside_until_ns = now_ns + SEARCH_INTERVAL_NS
            self._found = movable(topic.windows(), files[place:place_max])
        first = files[0].first
        return [s for s in self._found if s.first >= first and low < s.visible.end <= passed]
