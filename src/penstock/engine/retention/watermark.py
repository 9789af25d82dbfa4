"""Room on the disk: below --disk-low-watermark, retained segments go early, oldest first (R21).

    free    0 ......... low ........ enough ............................ total
            an episode begins below low and ends at enough

A disk that was full has to have room for the reserve again, or publishes stay refused (R8): on a
small disk that is more than the watermark, and low until then.

Rule 1: only what retention alone keeps is given up, over all topics by age, and only as much as is
        missing; each segment is counted, each episode is logged.  The active segment of a topic
        that has nothing else is sealed for that, if it is finished.
Rule 2: publishes are refused only if the flag was set by hand, and only when nothing is left to
        give up, or below half of it: they are faster than room is made.  Without the flag they are
        refused when the disk is full (R8).
Rule 3: the disk is measured once a second, and more often while it fills fast; not at all if it
        would change nothing.  A measurement gives up a bounded number of segments, and what is
        on its way out counts as free.
Rule 4: with thousands of topics the search for the oldest segments takes a millisecond of a turn
        of the loop at a time; what it found is used for a second.
"""

from __future__ import annotations

import errno
import heapq
import logging
from collections.abc import Iterator
from functools import partial

from penstock.engine.context import Context
from penstock.engine.health import Health
from penstock.engine.options import LOW_PERCENT
from penstock.engine.retention.wakes import Keeping, Retention
from penstock.engine.rounds import SLICE_NS
from penstock.storage.segment import Segment

log = logging.getLogger(__name__)

SOURCE = "disk"
INTERVAL_NS = 1_000_000_000
INTERVAL_MIN_NS = 50_000_000
# Bytes a second at which a disk may be filled.
FILL_RATE = 256 << 20
# An episode ends a quarter above the watermark, so that it does not begin again at once.
MARGIN_PART = 4
GIVE_UP_COUNT_MAX = 64
# What was given up and is still there after this long is kept by something else.
GIVEN_UP_NS = 10_000_000_000
# How long the topics found to have something to give up are used.
FOUND_NS = 1_000_000_000


class Room:
    """Measures the disk, and makes room."""

    def __init__(self, context: Context, health: Health, retention: Retention) -> None:
        self._context = context
        self._clock = context.clock
        self._health = health
        self._retention = retention
        percent = context.options.disk_low_watermark
        self._refuses = bool(percent)
        self.percent = LOW_PERCENT if percent is None else percent
        self.low = False  # whether an episode is under way
        self._free_size = -1  # at the last measurement
        self._measured_ns = 0
        # Segments that were given up and may still be there, and when that was.
        self._given_up: dict[Segment, tuple[int, Keeping]] = {}
        self._count = 0  # of this episode
        self._exhausted = False
        # Topics with something to give up, by the age of that, in a heap; maybe not any more.
        self._oldest: list[tuple[int, int, Keeping]] = []
        self._found_ns = 0
        self._searching = False

    def start(self) -> None:
        if self.percent:
            self._measure()

    def _measure(self) -> None:
        if self._context.supervisor.exiting:
            return
        if not (self._refuses or self._retention.retained or self.low):
            self._context.turns.after(INTERVAL_NS, self._measure)
            return
        files, path = self._context.files, self._context.data.own

        def measure() -> tuple[int, int]:
            return files.free_size(path), files.total_size(path)

        self._context.disk.submit(measure, self._measured)

    def _measured(self, sizes: tuple[int, int] | None, error: Exception | None) -> None:
        interval_ns = INTERVAL_NS
        if sizes is not None and sizes[1]:
            interval_ns = self._judge(*sizes)
        self._context.turns.after(interval_ns, self._measure)

    def _judge(self, free_size: int, total_size: int) -> int:
        """Begin or end an episode, and make room; returns when to measure again."""
        low_size = total_size * self.percent // 100
        enough_size = low_size + min(low_size // MARGIN_PART, (total_size - low_size) // 2)
        reserve_size = self._health.missing_size
        if not self.low and free_size < max(low_size, reserve_size):
            self._begin(free_size, total_size, free_size < low_size)
        elif self.low and free_size >= max(enough_size, reserve_size):
            self._end(free_size, total_size)
        if self.low:
            wanted_size = max(enough_size, reserve_size)
            self._make_room(wanted_size - free_size - self._leaving_size())
            if 2 * free_size < low_size or (self._exhausted and free_size < enough_size):
                self._refuse(free_size, total_size)
            return INTERVAL_NS if self._exhausted else INTERVAL_MIN_NS
        return self._next_ns(free_size, low_size)

    def _next_ns(self, free_size: int, low_size: int) -> int:
        """Before half of what is left above the watermark is used, at the recent rate."""
        now_ns, used_size = self._clock.monotonic_ns(), self._free_size - free_size
        passed_ns = max(1, now_ns - self._measured_ns)
        self._free_size, self._measured_ns = free_size, now_ns
        # At most the speed of a disk, also if nothing was written recently.
        left_size = free_size - low_size
        interval_ns = left_size * 1_000_000_000 // FILL_RATE
        if used_size > 0:
            interval_ns = min(interval_ns, left_size * passed_ns // used_size // 2)
        return min(INTERVAL_NS, max(INTERVAL_MIN_NS, interval_ns))

    # ---- an episode

    def _begin(self, free_size: int, total_size: int, below: bool) -> None:
        self.low = True
        self._count, self._exhausted = 0, False
        log.warning(
            "disk: %s free, less than %s: retained segments are given up, oldest first",
            _share(free_size, total_size),
            f"--disk-low-watermark ({self.percent} %)" if below else "the reserve needs",
        )

    def _end(self, free_size: int, total_size: int) -> None:
        self.low = False
        self._given_up.clear()
        self._oldest.clear()
        self._free_size = -1
        if self._refuses:
            self._health.accept(SOURCE)
        log.info(
            "disk: %s free again; %d retained segments were given up",
            _share(free_size, total_size),
            self._count,
        )

    def _leaving_size(self) -> int:
        """Bytes that were given up and are still on the disk."""
        since_ns, size = self._clock.monotonic_ns() - GIVEN_UP_NS, self._retention.unlinking_size
        for segment, (at_ns, each) in list(self._given_up.items()):
            if at_ns >= since_ns and each.holds(segment):
                size += segment.file_size
            else:
                del self._given_up[segment]
        return size

    def _make_room(self, missing_size: int) -> None:
        """Give up segments of ``missing_size`` bytes, the oldest of all topics first."""
        if self._searching:
            return
        if missing_size <= 0:
            self._exhausted = False
        elif self._oldest and self._clock.monotonic_ns() - self._found_ns < FOUND_NS:
            self._give_up(missing_size)
        else:
            self._searching = True
            self._oldest.clear()
            self._search(iter(list(self._retention.retained)), missing_size)

    def _search(self, retained: Iterator[Keeping], missing_size: int) -> None:
        """Find what may be given up; the rest of it in the next turns."""
        end_ns = self._clock.monotonic_ns() + SLICE_NS
        for each in retained:
            append_ns = each.oldest_ns()
            if append_ns is None:
                each.seal_finished()
            else:
                self._oldest.append((append_ns, len(self._oldest), each))
            if self._clock.monotonic_ns() >= end_ns:
                self._context.turns.soon(partial(self._search, retained, missing_size))
                return
        self._searching = False
        self._found_ns = self._clock.monotonic_ns()
        if not self.low:
            self._oldest.clear()
            return
        heapq.heapify(self._oldest)
        self._give_up(missing_size)

    def _give_up(self, missing_size: int) -> None:
        oldest = self._oldest
        self._exhausted = not oldest and not self._leaving_size() and self._retention.rolls.idle
        touched: dict[Keeping, None] = {}
        for _ in range(GIVE_UP_COUNT_MAX):
            if not oldest or missing_size <= 0:
                break
            append_ns, number, each = oldest[0]
            kept = each in self._retention.retained  # its topic may be gone
            if kept and each.oldest_ns() == append_ns:
                segment = each.give_up()
                self._given_up[segment] = self._clock.monotonic_ns(), each
                missing_size -= segment.file_size
                self._count += 1
                touched[each] = None
            next_ns = each.oldest_ns() if kept else None
            if next_ns is None:
                heapq.heappop(oldest)
            else:
                heapq.heapreplace(oldest, (next_ns, number, each))
        for each in touched:
            self._context.supervisor.guard(SOURCE, each.topic.retire)

    def _refuse(self, free_size: int, total_size: int) -> None:
        if self._refuses:
            share = _share(free_size, total_size)
            self._health.refuse(
                SOURCE,
                OSError(
                    errno.ENOSPC,
                    f"disk low: {share} free, --disk-low-watermark is {self.percent} %",
                ),
            )


def _share(free_size: int, total_size: int) -> str:
    return f"{100 * free_size / total_size:.1f} %"
