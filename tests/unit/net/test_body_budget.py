"""A budget for bodies that are not here whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.body_budget import (
    HELD_SIZE_MIN,
    JUDGED_S,
    PRESSED_RATE_MIN,
    RATE_MIN,
    STALL_S,
    TIMEOUT_S,
    BodyBudget,
)


class Peer:
    """A connection without a socket."""

    def __init__(self, total: int = 0) -> None:
        self.total = total
        self.size = 0
        self.held = False
        self.ended: list[bool] = []

    def hold(self) -> None:
        assert not self.held
        self.held = True

    def release(self) -> None:
        assert self.held
        self.held = False

    def end_body(self, *, late: bool) -> None:
        self.ended.append(late)

    def grow(self, bodies: BodyBudget, size: int, now_s: float = 0.0) -> None:
        assert not self.held and not self.ended
        self.size += size
        bodies.note(self, self.size, self.total, now_s)

    def complete(self, bodies: BodyBudget, now_s: float = 0.0) -> None:
        assert not self.held and not self.ended
        self.size = 0
        bodies.note(self, 0, 0, now_s)


def test_within_the_budget_everybody_is_read() -> None:
    bodies = BodyBudget(1000)
    peers = [Peer(100) for _ in range(10)]
    for peer in peers:
        peer.grow(bodies, 10)
    assert not any(peer.held for peer in peers)
    peers[0].complete(bodies)
    assert (bodies.read_size, len(bodies)) == (900, 9)


def test_beyond_it_the_newest_are_held_until_there_is_room() -> None:
    bodies = BodyBudget(1000)
    peers = [Peer(400) for _ in range(5)]
    for peer in peers:
        peer.grow(bodies, 10)
    assert [peer.held for peer in peers] == [False, False, True, True, True]
    peers[1].complete(bodies)
    assert [peer.held for peer in peers] == [False, False, False, True, True]
    bodies.check()


def test_a_small_one_finds_room_beside_large_ones() -> None:
    bodies = BodyBudget(1000)
    for peer, held in [(Peer(900), False), (Peer(900), True), (Peer(100), False)]:
        peer.grow(bodies, 10)
        assert peer.held is held


def test_one_is_read_whatever_its_size() -> None:
    bodies = BodyBudget(1000)
    first, second = Peer(5000), Peer(6000)
    first.grow(bodies, 10)
    second.grow(bodies, 10)
    assert not first.held and second.held
    first.grow(bodies, 4000)
    assert not first.held
    first.complete(bodies)
    assert not second.held
    second.grow(bodies, 5990)
    bodies.check()


def test_one_that_is_held_and_keeps_nothing_any_more_is_released() -> None:
    """What it keeps may be whole commands that had to wait, and are executed while it is held."""
    bodies = BodyBudget(1000)
    first, second = Peer(900), Peer(900)
    first.grow(bodies, 10)
    second.grow(bodies, 10)
    assert second.held
    bodies.note(second, 0, 0, 1.0)
    assert not second.held and bodies.held_count == 0
    bodies.check()


def test_one_that_becomes_larger_than_it_said_is_held_too() -> None:
    bodies = BodyBudget(1000)
    first, liar = Peer(500), Peer(10)
    first.grow(bodies, 10)
    liar.grow(bodies, 10)
    assert not liar.held
    liar.grow(bodies, 600)
    assert liar.held and not first.held
    bodies.check()


def test_so_many_are_held_and_no_more() -> None:
    bodies = BodyBudget(1000)
    first = Peer(1000)
    first.grow(bodies, 1)
    held = [Peer(HELD_SIZE_MIN) for _ in range(11)]
    for peer in held:
        peer.grow(bodies, HELD_SIZE_MIN // 10)
    assert [peer.ended for peer in held] == [[]] * 10 + [[False]]
    assert bodies.ended_count == 1
    bodies.check()


def test_a_stalled_body_ends_by_its_time() -> None:
    bodies = BodyBudget(1 << 30)
    stalled, slow = Peer(1 << 20), Peer(1 << 24)
    stalled.grow(bodies, 1)
    slow.grow(bodies, 1)
    for second in range(1, 600):
        slow.grow(bodies, RATE_MIN, float(second))
        bodies.sweep(float(second))
        assert bool(stalled.ended) == (second > TIMEOUT_S)
    assert stalled.ended == [True] and not slow.ended


def test_while_others_are_held_stalled_bodies_end_sooner() -> None:
    bodies = BodyBudget(1000)
    stalled = [Peer(500), Peer(500)]
    waiting = Peer(600)
    for peer in (*stalled, waiting):
        peer.grow(bodies, 100)
    assert waiting.held
    bodies.sweep(STALL_S - 1)
    assert not stalled[0].ended
    bodies.sweep(STALL_S)
    assert [peer.ended for peer in stalled] == [[True]] * 2 and not waiting.held
    # Nobody else waits: it has all the time there is.
    bodies.sweep(STALL_S + JUDGED_S + 5)
    assert not waiting.ended


def test_while_others_are_held_a_trickle_is_not_enough() -> None:
    bodies = BodyBudget(1000)
    trickling, waiting = Peer(1000), Peer(1000)
    trickling.grow(bodies, 1)
    waiting.grow(bodies, 1)
    for second in range(1, int(JUDGED_S) + 1):
        assert not trickling.ended
        trickling.grow(bodies, 1, float(second))
        bodies.sweep(float(second))
    assert trickling.ended == [True] and not waiting.held


def test_a_body_that_comes_at_a_rate_is_not_ended_while_others_are_held() -> None:
    bodies = BodyBudget(1000)
    steady, waiting = Peer(1 << 30), Peer(1000)
    steady.grow(bodies, 1)
    waiting.grow(bodies, 200)
    for second in range(1, 100):
        steady.grow(bodies, PRESSED_RATE_MIN, float(second))
        bodies.sweep(float(second))
    assert not steady.ended and waiting.held


def test_the_time_for_which_a_body_is_held_does_not_count() -> None:
    bodies = BodyBudget(1000)
    steady, held = Peer(1 << 30), Peer(1000)
    steady.grow(bodies, 900)
    held.grow(bodies, 200)
    for second in range(1, 200):
        steady.grow(bodies, PRESSED_RATE_MIN, float(second))
        bodies.sweep(float(second))
    steady.complete(bodies, 200.0)
    assert not held.held
    bodies.sweep(250.0)
    assert not held.ended
    bodies.sweep(265.0)
    assert held.ended == [True]


STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=200)


@given(STEPS, st.integers(1, 5000))
@settings(max_examples=200, deadline=None)
def test_somebody_is_always_read(steps: list[tuple[int, int]], size_max: int) -> None:
    """Whatever comes, the sums add up, and no body waits for ever."""
    bodies = BodyBudget(size_max)
    peers = [Peer(300 * number) for number in range(10)]
    for now_s, (number, step) in enumerate(steps):
        peer = peers[number]
        if peer.ended:
            peers[number] = Peer(300 * number)
        elif step == 0:
            bodies.forget(peer, float(now_s))
            peers[number] = Peer(300 * number)
        elif step == 1:
            bodies.sweep(float(now_s))
        elif not peer.held:
            peer.grow(bodies, 100 * step, float(now_s))
        bodies.check()
    for peer in peers:
        bodies.forget(peer, 1000.0)
    assert (bodies.read_size, bodies.held_size, len(bodies), bodies.held_count) == (0, 0, 0, 0)
