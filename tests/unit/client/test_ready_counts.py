"""How max_in_flight is spread: fixed cases, and a machine that does everything in any order."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.ready_counts import Change, Ready, Share


def ready_with(max_in_flight: int, connections: int, rdy_max: int = 2500) -> Ready:
    ready = Ready(max_in_flight)
    for _ in range(connections):
        ready.add(Share(rdy_max), 0.0)
    return ready


def counts(ready: Ready) -> list[int]:
    return sorted(share.rdy for share in ready.shares)


@given(st.integers(0, 5000), st.integers(1, 40))
def test_all_of_max_in_flight_is_given_in_equal_parts(max_in_flight: int, connections: int) -> None:
    ready = ready_with(max_in_flight, connections)
    assert ready.total == min(max_in_flight, 2500 * connections)
    assert counts(ready)[-1] - counts(ready)[0] <= 1


def test_what_one_connection_may_not_take_goes_to_the_others() -> None:
    ready = Ready(100)
    for rdy_max in (10, 2500, 2500):
        ready.add(Share(rdy_max), 0.0)
    assert counts(ready) == [10, 45, 45]


def test_a_new_connection_lowers_the_others_first() -> None:
    ready = ready_with(10, 1)
    old, new = ready.shares[0], Share(2500)
    assert ready.add(new, 1.0) == [(old, 5), (new, 5)]


def test_a_new_connection_waits_for_what_is_in_flight_elsewhere() -> None:
    ready = ready_with(10, 1)
    old, new = ready.shares[0], Share(2500)
    old.in_flight = 10
    assert ready.add(new, 1.0) == [(old, 5)]
    assert ready.waiting
    old.in_flight = 7
    assert ready.settle(2.0) == [(new, 3)]
    old.in_flight = 2
    assert ready.settle(3.0) == [(new, 5)]
    assert not ready.waiting


def test_a_lost_connection_leaves_its_part_to_the_others() -> None:
    ready = ready_with(10, 2)
    first, second = ready.shares
    assert ready.remove(first, 1.0) == [(second, 10)]


def test_an_unchanged_count_is_not_sent() -> None:
    ready = ready_with(10, 2)
    assert ready.settle(1.0) == []
    assert ready.resize(10, 2.0) == []
    assert ready.rotate(100.0) == []


def test_zero_pauses_and_another_number_goes_on() -> None:
    ready = ready_with(10, 2)
    assert {count for _, count in ready.resize(0, 1.0)} == {0}
    assert sorted(count for _, count in ready.resize(4, 2.0)) == [2, 2]


def test_in_backoff_one_connection_at_a_time_is_tested() -> None:
    ready = ready_with(10, 3)
    assert [count for _, count in ready.pause(1.0)] == [0, 0, 0]
    changes = ready.test(2.0)
    assert changes is not None and [count for _, count in changes] == [1]
    assert ready.total == 1
    ready.resume(3.0)
    assert ready.total == 10


def test_a_lost_probe_is_replaced() -> None:
    ready = ready_with(10, 2)
    ready.pause(1.0)
    ready.test(2.0)
    assert ready.probe is not None
    ready.remove(ready.probe, 3.0)
    assert ready.probe is ready.shares[0] and ready.total == 1


def test_without_connections_there_is_nothing_to_test() -> None:
    ready = ready_with(10, 0)
    ready.pause(1.0)
    assert ready.test(2.0) is None


@pytest.mark.parametrize("in_backoff", [False, True])
def test_an_idle_place_passes_on_after_ten_seconds(in_backoff: bool) -> None:
    ready = ready_with(1, 3)
    if in_backoff:
        ready.pause(0.0)
        ready.test(0.0)
    (holder,) = [share for share in ready.shares if share.rdy]
    assert ready.rotate(9.9) == []
    changes = ready.rotate(10.0)
    assert changes[0] == (holder, 0)
    assert changes[1][0] is not holder and changes[1][1] == 1


def test_a_busy_place_passes_on_after_thirty_seconds() -> None:
    ready = ready_with(1, 2)
    (holder,) = [share for share in ready.shares if share.rdy]
    for now_s in range(30):
        holder.received_s = float(now_s)
        assert ready.rotate(float(now_s)) == []
    holder.received_s = 30.0
    assert ready.rotate(30.0)[0] == (holder, 0)


@given(st.integers(1, 12), st.integers(1, 12))
def test_nobody_waits_longer_than_its_turn(places: int, more: int) -> None:
    """Checklist 3: max_in_flight below the number of connections."""
    ready = ready_with(places, places + more)
    last_s = dict.fromkeys(map(id, ready.shares), 0.0)
    rounds = -(-(places + more) // places)
    for tick in range(1, 200):
        now_s = tick * 5.0
        ready.rotate(now_s)
        assert ready.total == places
        for share in ready.shares:
            if share.rdy:
                last_s[id(share)] = now_s
            assert now_s - last_s[id(share)] <= rounds * 15.0


class AnyOrder(RuleBasedStateMachine):
    """Rule 2 of the module after every single change, whatever happens in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = Ready(5)
        self.sent: dict[int, int] = {}
        self.now_s = 0.0

    def apply(self, changes: list[Change] | None) -> None:
        for share, count in changes or ():
            assert self.sent[id(share)] != count, "sent what nsqd knows already"
            assert 0 <= count <= share.rdy_max
            raised = count > self.sent[id(share)]
            self.sent[id(share)] = count
            assert not raised or sum(self.sent.values()) <= self.ready.max_in_flight
        assert sum(self.sent.values()) <= self.ready.max_in_flight

    @rule(rdy_max=st.integers(1, 12))
    @precondition(lambda self: len(self.ready.shares) < 8)
    def connect(self, rdy_max: int) -> None:
        share = Share(rdy_max)
        self.sent[id(share)] = 0
        self.apply(self.ready.add(share, self.now_s))

    @rule(data=st.data())
    @precondition(lambda self: self.ready.shares)
    def disconnect(self, data: st.DataObject) -> None:
        share = data.draw(st.sampled_from(self.ready.shares))
        del self.sent[id(share)]
        self.apply(self.ready.remove(share, self.now_s))

    @rule(count=st.integers(0, 20))
    def resize(self, count: int) -> None:
        self.apply(self.ready.resize(count, self.now_s))

    @rule(what=st.sampled_from(["pause", "test", "resume", "rotate", "settle"]))
    def decide(self, what: str) -> None:
        self.apply(getattr(self.ready, what)(self.now_s))

    @rule(data=st.data())
    @precondition(lambda self: any(s.in_flight < s.rdy for s in self.ready.shares))
    def deliver(self, data: st.DataObject) -> None:
        able = [share for share in self.ready.shares if share.in_flight < share.rdy]
        share = data.draw(st.sampled_from(able))
        before = sum(each.charge for each in self.ready.shares)
        share.in_flight = share.rdy
        share.received_s = self.now_s
        assert sum(each.charge for each in self.ready.shares) == before

    @rule(data=st.data())
    @precondition(lambda self: any(s.in_flight for s in self.ready.shares))
    def finish(self, data: st.DataObject) -> None:
        share = data.draw(st.sampled_from([s for s in self.ready.shares if s.in_flight]))
        share.in_flight -= data.draw(st.integers(1, share.in_flight))
        if self.ready.waiting:
            self.apply(self.ready.settle(self.now_s))

    @rule(seconds=st.sampled_from([0.1, 5.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def holds(self) -> None:
        self.ready.check()
        assert {id(share): share.rdy for share in self.ready.shares} == self.sent

    @invariant()
    def nothing_is_held_back_for_no_reason(self) -> None:
        ready = self.ready
        if ready.paused or ready.probe or any(share.in_flight for share in ready.shares):
            return
        possible = sum(share.rdy_max for share in ready.shares)
        assert ready.waiting or ready.total == min(ready.max_in_flight, possible)

    def teardown(self) -> None:
        for share in self.ready.shares:
            share.in_flight = 0
        self.ready.resume(self.now_s)
        possible = sum(share.rdy_max for share in self.ready.shares)
        assert self.ready.total == min(self.ready.max_in_flight, possible)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
