"""Finding channels with timed-out or due messages without visiting every channel (R12).

``DeadlineScan`` keeps the channels in order of their earliest deadline and visits exactly those
that are due.  ``SampleScan`` is nsqd's algorithm, kept for comparison: every interval it checks a
few random channels from a list that it refreshes every few seconds.

The turn calls ``run`` at ``next_ns`` (monotonic).
"""

from __future__ import annotations

import random
from typing import Protocol

from penstock.clock import Clock
from penstock.core.deadlines import NEVER_NS, DeadlineQueue
from penstock.core.window import Window
from penstock.engine.options import Options

# Deferrals are due by the wall clock, which may be stepped; it is checked this often (R4).
WALL_POLL_NS = 250_000_000
# Channels visited in one run.
VISIT_COUNT_MAX = 512


class Scanned(Protocol):
    """A channel as the scan sees it."""

    @property
    def number(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def window(self) -> Window: ...

    def expire(self, now_ns: int) -> bool: ...
    def fire(self, wall_ns: int) -> bool: ...


class Scan(Protocol):
    """Finds channels with due messages."""

    @property
    def next_ns(self) -> int:
        """When to call ``run``, monotonic."""

    def watch(self, channel: Scanned) -> bool:
        """Record the channel's earliest deadlines; whether they are earlier than before."""

    def forget(self, channel: Scanned) -> None: ...

    def run(self) -> None: ...


class DeadlineScan:
    """Visits the channels whose earliest deadline has passed.

    A channel's recorded deadline is a lower bound, updated only by a visit, so finishing a
    message costs nothing here.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._channels: dict[int, Scanned] = {}
        self._deadlines = DeadlineQueue()
        self._deferrals = DeadlineQueue()
        self._bounds: dict[int, int] = {}
        self._wall_bounds: dict[int, int] = {}

    @property
    def next_ns(self) -> int:
        next_ns = self._deadlines.next_ns
        if len(self._deferrals):
            wait_ns = self._deferrals.next_ns - self._clock.wall_ns()
            now_ns = self._clock.monotonic_ns()
            next_ns = min(next_ns, now_ns + max(0, min(wait_ns, WALL_POLL_NS)))
        return next_ns

    def watch(self, channel: Scanned) -> bool:
        number = channel.number
        earlier = False
        deadline_ns = channel.window.next_deadline_ns
        if deadline_ns < self._bounds.get(number, NEVER_NS):
            self._bounds[number] = deadline_ns
            self._channels[number] = channel
            self._deadlines.set(number, deadline_ns)
            earlier = True
        deferral_ns = channel.window.next_deferral_ns
        if deferral_ns < self._wall_bounds.get(number, NEVER_NS):
            self._wall_bounds[number] = deferral_ns
            self._channels[number] = channel
            self._deferrals.set(number, deferral_ns)
            earlier = True
        return earlier

    def forget(self, channel: Scanned) -> None:
        self._deadlines.remove(channel.number)
        self._deferrals.remove(channel.number)
        self._bounds.pop(channel.number, None)
        self._wall_bounds.pop(channel.number, None)
        self._channels.pop(channel.number, None)

    def run(self) -> None:
        now_ns = self._clock.monotonic_ns()
        for number in self._deadlines.expire(now_ns, VISIT_COUNT_MAX):
            channel = self._channels[number]
            del self._bounds[number]
            channel.expire(now_ns)
            self.watch(channel)
        wall_ns = self._clock.wall_ns()
        for number in self._deferrals.expire(wall_ns, VISIT_COUNT_MAX):
            channel = self._channels[number]
            del self._wall_bounds[number]
            channel.fire(wall_ns)
            self.watch(channel)


class SampleScan:
    """nsqd's queueScanLoop, with logical slots in place of its worker goroutines."""

    def __init__(self, clock: Clock, options: Options, seed: int | None = None) -> None:
        self._clock = clock
        self._options = options
        self._random = random.Random(seed)
        self._known: dict[int, Scanned] = {}
        self._listed: list[Scanned] = []
        self._picked: list[Scanned] = []
        self._picked_count = 0
        self._dirty_count = 0
        self.slot_count = 1
        now_ns = clock.monotonic_ns()
        self._refresh_ns = now_ns
        self._next_ns = now_ns + options.queue_scan_interval_ns

    @property
    def next_ns(self) -> int:
        return self._next_ns

    def watch(self, channel: Scanned) -> bool:
        self._known[channel.number] = channel
        return False

    def forget(self, channel: Scanned) -> None:
        self._known.pop(channel.number, None)

    def run(self) -> None:
        """One step: as many of the picked channels as there are slots."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._refresh_ns:
            self._refresh(now_ns)
        if not self._picked:
            self._pick()
        for _ in range(min(self.slot_count, len(self._picked))):
            channel = self._picked.pop()
            if not channel.closed:
                expired = channel.expire(now_ns)
                self._dirty_count += channel.fire(self._clock.wall_ns()) or expired
        if self._picked:
            self._next_ns = now_ns
            return
        dirty = self._dirty_count / self._picked_count if self._picked_count else 0.0
        again = dirty > self._options.queue_scan_dirty_percent
        self._next_ns = now_ns if again else now_ns + self._options.queue_scan_interval_ns

    def _refresh(self, now_ns: int) -> None:
        self._listed = list(self._known.values())
        self.slot_count = pool_size(len(self._listed), self._options.queue_scan_worker_pool_max)
        self._refresh_ns = now_ns + self._options.queue_scan_refresh_interval_ns

    def _pick(self) -> None:
        count = min(self._options.queue_scan_selection_count, len(self._listed))
        self._picked = self._random.sample(self._listed, count)
        self._picked_count = count
        self._dirty_count = 0


def pool_size(channel_count: int, pool_max: int) -> int:
    """nsqd's ideal number of scan workers: a quarter of the channels, 1 to ``pool_max``."""
    return max(1, min(int(channel_count * 0.25), pool_max))
