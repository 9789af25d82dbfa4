"""The backoff machine: the walk through its states, and any walk against go-nsq's own words."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import given

from penstock.client.backoff import Backoff, State


def paused(backoff: Backoff) -> float:
    assert backoff.state is State.PAUSED
    return backoff.pause_s


def test_recovery_from_three_failures_takes_three_successes_with_a_pause_before_each() -> None:
    backoff = Backoff()
    pauses = []
    for _ in range(3):
        assert backoff.fail()
        pauses.append(paused(backoff))
        backoff.test()
    assert pauses == [2.0, 4.0, 8.0]
    assert backoff.succeed() and paused(backoff) == 4.0
    backoff.test()
    assert backoff.succeed() and paused(backoff) == 2.0
    backoff.test()
    assert backoff.succeed() and backoff.state is State.NORMAL


def test_signals_during_a_pause_are_ignored() -> None:
    backoff = Backoff()
    backoff.fail()
    for signal in (backoff.fail, backoff.succeed, backoff.pass_over):
        assert not signal()
    assert backoff.level == 1 and backoff.state is State.PAUSED


def test_success_in_normal_state_is_nothing() -> None:
    backoff = Backoff()
    assert not backoff.succeed() and not backoff.pass_over()
    assert backoff.state is State.NORMAL


def test_a_message_that_says_nothing_repeats_the_pause() -> None:
    backoff = Backoff()
    backoff.fail()
    backoff.test()
    assert backoff.pass_over() and paused(backoff) == 2.0 and backoff.level == 1


def test_the_level_stops_at_the_longest_pause() -> None:
    backoff = Backoff(1.0, 120.0)
    for _ in range(50):
        backoff.fail()
        backoff.test()
    assert backoff.level == 6 and backoff.pause_s == 64.0


def test_zero_means_no_backoff() -> None:
    backoff = Backoff(1.0, 0.0)
    assert not backoff.fail()
    assert backoff.state is State.NORMAL


def test_a_random_pause_is_within_the_exponential_one() -> None:
    backoff = Backoff(strategy="full_jitter", choose=random.Random(1))
    pauses = []
    for _ in range(6):
        backoff.fail()
        pauses.append(backoff.pause_s)
        backoff.test()
    assert all(0 <= pause <= 2.0 ** (n + 1) for n, pause in enumerate(pauses))
    assert len(set(pauses)) == 6


def test_a_strategy_of_the_programs_own() -> None:
    backoff = Backoff(duration_max_s=10.0, strategy=lambda level: 3.0 * level)
    for _ in range(5):
        backoff.fail()
        backoff.test()
    assert backoff.level == 3 and backoff.pause_s == 9.0


class GoNsq:
    """go-nsq's counter and timer, word for word from the reference."""

    def __init__(self, longest_s: float) -> None:
        self.counter = 0
        self.timer = False
        self.longest_s = longest_s

    def signal(self, kind: str) -> None:
        if self.timer:
            return
        before = self.counter
        if kind == "fail" and 2.0 ** (self.counter + 1) <= self.longest_s:
            self.counter += 1
        elif kind == "succeed" and self.counter:
            self.counter -= 1
        if self.counter > 0 and (before or kind == "fail"):
            self.timer = True


@given(
    st.sampled_from([0.0, 1.0, 2.0, 10.0, 120.0]),
    st.lists(st.sampled_from(["fail", "succeed", "pass_over", "end of pause"]), max_size=60),
)
def test_any_walk_is_the_one_of_go_nsq(longest_s: float, signals: list[str]) -> None:
    backoff, go = Backoff(1.0, longest_s), GoNsq(longest_s)
    for signal in signals:
        if signal != "end of pause":
            before = backoff.state, backoff.level
            changed = getattr(backoff, signal)()
            go.signal(signal)
            assert changed or (backoff.state, backoff.level) == before
        elif backoff.state is State.PAUSED:
            backoff.test()
            go.timer = False
        backoff.check()
        assert backoff.level == go.counter
        assert (backoff.state is State.PAUSED) == go.timer
