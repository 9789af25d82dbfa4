"""Readers wait for clients, and for nobody else (R9, R18)."""

from __future__ import annotations

import pytest

from penstock.clock import Clock, ManualClock
from penstock.engine.pull.pace import LOOP_TRANSFERS, SHARE, TRANSFERS, Pace, transfer_cost

MS = 1_000_000
SIZE = 4 << 20
TRANSFER_NS = 0.12


def run(clock: ManualClock, pace: Pace, *, busy: float, size: int = SIZE, reads: int = 20) -> int:
    """Reads, one after the other, of 5 ms each; how long they waited."""
    waited_ns = 0
    for _ in range(reads):
        wait_ns = pace.wait_ns()
        waited_ns += wait_ns
        for span_ns in (wait_ns, 5 * MS):
            clock.work(int(span_ns * busy))
            clock.advance(span_ns - int(span_ns * busy))
        pace.read(size)
    return waited_ns


@pytest.mark.parametrize("busy", [0.0, 0.5, 0.7])
def test_with_time_to_spare_nobody_waits(busy: float) -> None:
    clock = ManualClock()
    assert run(clock, Pace(clock, TRANSFER_NS), busy=busy) == 0


def test_readers_get_their_share_while_the_loop_is_busy() -> None:
    clock = ManualClock()
    pace = Pace(clock, TRANSFER_NS)
    run(clock, pace, busy=1.0)
    start_ns = clock.monotonic_ns()
    run(clock, pace, busy=1.0, reads=100)
    cost_ns = SIZE * TRANSFERS * TRANSFER_NS
    passed_ns = (clock.monotonic_ns() - start_ns) / 100
    assert passed_ns == pytest.approx(cost_ns / SHARE + 5 * MS, rel=0.01)


def test_small_reads_hardly_wait() -> None:
    clock = ManualClock()
    assert run(clock, Pace(clock, TRANSFER_NS), busy=1.0, size=20_000) < 20 * MS // 5


def test_when_clients_are_done_readers_go_on() -> None:
    clock = ManualClock()
    pace = Pace(clock, TRANSFER_NS)
    run(clock, pace, busy=1.0)
    run(clock, pace, busy=0.2, reads=1)
    assert run(clock, pace, busy=0.2) == 0


def test_readers_alone_do_not_wait_for_themselves() -> None:
    """They may well use all of the loop's time."""
    clock = ManualClock()
    pace = Pace(clock, TRANSFER_NS)
    size = int(5 * MS / (LOOP_TRANSFERS * TRANSFER_NS))
    assert run(clock, pace, busy=1.0, size=size) == 0


def test_what_was_long_ago_is_no_reason_to_wait() -> None:
    clock = ManualClock()
    pace = Pace(clock, TRANSFER_NS)
    run(clock, pace, busy=0.0, reads=1)
    clock.work(3_600_000 * MS)
    pace.read(SIZE)
    assert pace.wait_ns() == 0


def test_what_a_byte_costs_is_measured_on_this_machine() -> None:
    assert 0.005 < transfer_cost(Clock()) < 50
    clock = ManualClock()
    assert transfer_cost(clock) == 0, "by the clock that is given"
    pace = Pace(clock)
    assert run(clock, pace, busy=1.0) == 0
