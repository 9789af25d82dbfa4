"""Finding what is due: in order of deadline, and by nsqd's sampling.

Rows of the seed notes: S1-1 to S1-7, A-1; R4 and R12.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import cast

import pytest

from penstock.clock import ManualClock
from penstock.core.deadlines import NEVER_NS
from penstock.core.window import Window
from penstock.engine.options import Options
from penstock.engine.scan import (
    VISIT_COUNT_MAX,
    WALL_POLL_NS,
    DeadlineScan,
    SampleScan,
    Scan,
    pool_size,
)

MS = 1_000_000
SECOND = 1000 * MS


@dataclass
class Times:
    """Of a window, the two times that the scan asks for."""

    next_deadline_ns: int = NEVER_NS
    next_deferral_ns: int = NEVER_NS


@dataclass
class FakeChannel:
    """Has at most one message in flight and one deferred, and counts its visits."""

    number: int
    clock: ManualClock
    times: Times = field(default_factory=Times)
    closed: bool = False
    visit_count: int = 0
    late_ns: list[int] = field(default_factory=list)
    always_dirty: bool = False

    @property
    def window(self) -> Window:
        return cast(Window, self.times)

    def expire(self, now_ns: int) -> bool:
        assert not self.closed
        self.visit_count += 1
        due = self.times.next_deadline_ns <= now_ns
        if due:
            self.late_ns.append(now_ns - self.times.next_deadline_ns)
            self.times.next_deadline_ns = NEVER_NS
        return due or self.always_dirty

    def fire(self, wall_ns: int) -> bool:
        assert not self.closed
        self.visit_count += 1
        due = self.times.next_deferral_ns <= wall_ns
        if due:
            self.late_ns.append(wall_ns - self.times.next_deferral_ns)
            self.times.next_deferral_ns = NEVER_NS
        return due


def make_channels(scan: Scan, clock: ManualClock, count: int) -> list[FakeChannel]:
    channels = [FakeChannel(number, clock) for number in range(1, count + 1)]
    for channel in channels:
        scan.watch(channel)
    return channels


def run_round(scan: Scan, clock: ManualClock) -> int:
    """Run until the scan wants to wait; return how often it ran."""
    steps = 0
    while scan.next_ns <= clock.monotonic_ns():
        scan.run()
        steps += 1
        assert steps < 100_000
    return steps


def run_for(scan: Scan, clock: ManualClock, duration_ns: int) -> None:
    """Call the scan whenever it wants to be called."""
    end_ns = clock.monotonic_ns() + duration_ns
    while scan.next_ns <= end_ns:
        clock.advance(max(0, scan.next_ns - clock.monotonic_ns()))
        scan.run()
    clock.advance(end_ns - clock.monotonic_ns())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_ns=5 * SECOND)


# In order of deadline


def test_the_deadline_scan_sleeps_while_nothing_is_in_flight(clock: ManualClock) -> None:
    scan = DeadlineScan(clock)
    assert scan.next_ns == NEVER_NS
    make_channels(scan, clock, 10)
    assert scan.next_ns == NEVER_NS
    scan.run()


def test_the_deadline_scan_visits_exactly_what_is_due(clock: ManualClock) -> None:
    """S1-1: 10,000 channels cost nothing while they are not due."""
    scan = DeadlineScan(clock)
    channels = make_channels(scan, clock, 10_000)
    now_ns = clock.monotonic_ns()
    for channel in channels:
        channel.times.next_deadline_ns = now_ns + channel.number * MS
        scan.watch(channel)
    assert scan.next_ns == now_ns + MS
    clock.advance(3 * MS)
    scan.run()
    assert [channel.number for channel in channels if channel.visit_count] == [1, 2, 3]
    assert scan.next_ns == now_ns + 4 * MS


def test_the_deadline_scan_is_on_time_over_many_channels(clock: ManualClock) -> None:
    """A-1, S1-6: none late, where sampling takes N/200 s on average."""
    scan = DeadlineScan(clock)
    channels = make_channels(scan, clock, 1000)
    for channel in channels:
        channel.times.next_deadline_ns = clock.monotonic_ns() + channel.number * 7 * MS
        scan.watch(channel)
    run_for(scan, clock, 8 * SECOND)
    assert [channel.late_ns for channel in channels] == [[0]] * 1000


def test_a_deadline_that_moved_on_costs_one_visit(clock: ManualClock) -> None:
    """Finishing and touching tell the scan nothing; it finds out when it comes round."""
    scan = DeadlineScan(clock)
    (channel,) = make_channels(scan, clock, 1)
    began_ns = clock.monotonic_ns()
    channel.times.next_deadline_ns = began_ns + SECOND
    scan.watch(channel)
    channel.times.next_deadline_ns = began_ns + 3 * SECOND
    scan.watch(channel)
    assert scan.next_ns == began_ns + SECOND
    clock.advance(SECOND)
    scan.run()
    assert (channel.visit_count, channel.late_ns) == (1, [])
    assert scan.next_ns == began_ns + 3 * SECOND
    clock.advance(2 * SECOND)
    scan.run()
    assert channel.late_ns == [0]
    assert scan.next_ns == NEVER_NS


def test_an_earlier_deadline_comes_first(clock: ManualClock) -> None:
    scan = DeadlineScan(clock)
    (channel,) = make_channels(scan, clock, 1)
    began_ns = clock.monotonic_ns()
    for at_ns in (9 * SECOND, 2 * SECOND):
        channel.times.next_deadline_ns = began_ns + at_ns
        scan.watch(channel)
    assert scan.next_ns == began_ns + 2 * SECOND


def test_a_run_visits_a_bounded_number_of_channels(clock: ManualClock) -> None:
    scan = DeadlineScan(clock)
    channels = make_channels(scan, clock, 2 * VISIT_COUNT_MAX + 1)
    for channel in channels:
        channel.times.next_deadline_ns = clock.monotonic_ns()
        scan.watch(channel)
    scan.run()
    assert sum(channel.visit_count for channel in channels) == VISIT_COUNT_MAX
    assert scan.next_ns <= clock.monotonic_ns()
    run_round(scan, clock)
    assert all(channel.late_ns for channel in channels)


def test_deferrals_are_due_by_the_wall_clock(clock: ManualClock) -> None:
    """R4: a step ahead is noticed within a moment, a step back makes them wait."""
    scan = DeadlineScan(clock)
    (channel,) = make_channels(scan, clock, 1)
    channel.times.next_deferral_ns = clock.wall_ns() + 3600 * SECOND
    scan.watch(channel)
    assert scan.next_ns == clock.monotonic_ns() + WALL_POLL_NS
    scan.run()
    assert not channel.visit_count
    clock.step_wall(3600 * SECOND)
    scan.run()
    assert channel.late_ns == [0]
    channel.times.next_deferral_ns = clock.wall_ns() + SECOND
    scan.watch(channel)
    clock.step_wall(-10 * SECOND)
    clock.advance(SECOND)
    scan.run()
    assert channel.late_ns == [0]


def test_a_deleted_channel_is_forgotten(clock: ManualClock) -> None:
    """S1-7."""
    scan = DeadlineScan(clock)
    gone, kept = make_channels(scan, clock, 2)
    for channel in (gone, kept):
        channel.times.next_deadline_ns = clock.monotonic_ns() + SECOND
        channel.times.next_deferral_ns = clock.wall_ns() + SECOND
        scan.watch(channel)
    scan.forget(gone)
    gone.closed = True
    scan.forget(gone)
    clock.advance(SECOND)
    scan.run()
    assert (gone.visit_count, kept.visit_count) == (0, 2)


# By sampling


def sample_scan(clock: ManualClock, seed: int = 1, **options: object) -> SampleScan:
    return SampleScan(clock, Options(**options), seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "channel_count, size", [(0, 1), (1, 1), (7, 1), (8, 2), (16, 4), (100, 4), (10_000, 4)]
)
def test_pool_size(channel_count: int, size: int) -> None:
    """S1-4."""
    assert pool_size(channel_count, 4) == size


def test_the_pool_is_resized_with_the_refresh(clock: ManualClock) -> None:
    """S1-4: up as channels come, down as they go; so many are visited in one step."""
    scan = sample_scan(clock)
    channels = make_channels(scan, clock, 16)
    run_for(scan, clock, SECOND)
    assert scan.slot_count == 4
    for channel in channels[8:]:
        scan.forget(channel)
    run_for(scan, clock, 5 * SECOND)
    assert scan.slot_count == 2


def test_a_round_picks_so_many_distinct_channels(clock: ManualClock) -> None:
    """S1-1, S1-2: without replacement, whatever the number of channels."""
    for count, picked in ((5, 5), (20, 20), (21, 20), (1000, 20)):
        scan = sample_scan(clock)
        channels = make_channels(scan, clock, count)
        clock.advance(100 * MS)
        run_round(scan, clock)
        # A visit is one look at what is in flight and one at what is deferred.
        assert Counter(channel.visit_count for channel in channels)[2] == picked
        assert {channel.visit_count for channel in channels} <= {0, 2}


def test_every_channel_has_the_same_chance(clock: ManualClock) -> None:
    """S1-2: 4000 rounds of 20 out of 100; five standard deviations around 800."""
    scan = sample_scan(clock)
    channels = make_channels(scan, clock, 100)
    run_for(scan, clock, 400 * SECOND)
    visits = [channel.visit_count // 2 for channel in channels]
    assert sum(visits) == 4000 * 20
    assert all(670 < count < 930 for count in visits), (min(visits), max(visits))


@pytest.mark.parametrize("dirty_count, again", [(0, False), (5, False), (6, True), (20, True)])
def test_more_than_a_quarter_dirty_is_scanned_again_at_once(
    clock: ManualClock, dirty_count: int, again: bool
) -> None:
    """S1-3: strictly more; 5 of 20 is not."""
    scan = sample_scan(clock)
    channels = make_channels(scan, clock, 20)
    clock.advance(100 * MS)
    for channel in channels[:dirty_count]:
        channel.times.next_deadline_ns = clock.monotonic_ns()
    run_round(scan, clock)
    assert {channel.visit_count for channel in channels} == {4 if again else 2}
    assert scan.next_ns == clock.monotonic_ns() + 100 * MS


def test_a_scan_that_never_gets_clean_leaves_the_loop_to_others(clock: ManualClock) -> None:
    """S1-3: every run ends after one step, and the list is still refreshed."""
    scan = sample_scan(clock)
    channels = make_channels(scan, clock, 40)
    for channel in channels:
        channel.always_dirty = True
    clock.advance(100 * MS)
    for _ in range(1000):
        before = sum(channel.visit_count for channel in channels)
        scan.run()
        assert sum(channel.visit_count for channel in channels) - before <= 2 * 4
        assert scan.next_ns == clock.monotonic_ns()
    late = FakeChannel(99, clock)
    scan.watch(late)
    clock.advance(5 * SECOND)
    for _ in range(1000):
        scan.run()
    assert late.visit_count


def test_a_new_channel_is_scanned_after_the_refresh(clock: ManualClock) -> None:
    """S1-6: up to 5 s later, as in nsqd; the deadline scan is there to do better."""
    scan = sample_scan(clock)
    make_channels(scan, clock, 1)
    run_for(scan, clock, SECOND)
    late = FakeChannel(99, clock)
    late.times.next_deadline_ns = clock.monotonic_ns()
    scan.watch(late)
    run_for(scan, clock, 4 * SECOND)
    assert not late.visit_count
    run_for(scan, clock, SECOND)
    assert len(late.late_ns) == 1


def test_deleted_channels_are_passed_over(clock: ManualClock) -> None:
    """S1-7: also between the picking and the visit; closed ones assert that nobody comes."""
    scan = sample_scan(clock)
    channels = make_channels(scan, clock, 40)
    clock.advance(100 * MS)
    scan.run()
    for channel in channels[::2]:
        scan.forget(channel)
        channel.closed = True
        channel.visit_count = 0
    run_for(scan, clock, 20 * SECOND)
    assert all(not channel.visit_count for channel in channels[::2])
    assert all(channel.visit_count for channel in channels[1::2])


def test_without_channels_sampling_ticks_on(clock: ManualClock) -> None:
    scan = sample_scan(clock)
    run_for(scan, clock, SECOND)
    assert scan.next_ns == clock.monotonic_ns() + 100 * MS


def test_sampling_is_late_as_the_formula_says(clock: ManualClock) -> None:
    """A-1: 1000 channels, one message each; the mean is N/200 s, 5 s, without repeats."""
    scan = sample_scan(clock, queue_scan_dirty_percent=1.0)
    channels = make_channels(scan, clock, 1000)
    run_for(scan, clock, SECOND)
    for channel in channels:
        channel.times.next_deadline_ns = clock.monotonic_ns()
    run_for(scan, clock, 100 * SECOND)
    late_s = [channel.late_ns[0] / SECOND for channel in channels]
    assert 4.0 < sum(late_s) / len(late_s) < 6.0
    assert 20 < max(late_s) < 80
