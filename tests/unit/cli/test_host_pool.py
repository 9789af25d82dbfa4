"""Which host comes next, with a clock and chance under control."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.cli.host_pool import EPSILON_MIN, EpsilonGreedy, HostPool, RoundRobin, make_pool


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def take(pool: HostPool | RoundRobin, count: int) -> str:
    return "".join(pool.take() for _ in range(count))


def test_hosts_take_turns() -> None:
    assert take(RoundRobin("abc"), 7) == "abcabca"
    assert take(HostPool("abc"), 7) == "abcabca"


def test_round_robin_forgives_everything() -> None:
    pool = RoundRobin("ab")
    pool.report("a", 1.0, False)
    assert take(pool, 4) == "abab"


def test_a_host_that_fails_rests_twice_as_long_each_time() -> None:
    clock = Time()
    pool = HostPool("ab", clock)
    pool.report("a", 0.1, False)
    for retry_s in (30, 60, 120, 240, 480, 900, 900):
        assert set(take(pool, 4)) == {"b"}
        clock.now_s += retry_s - 1
        assert set(take(pool, 4)) == {"b"}
        clock.now_s += 2
        assert take(pool, 4).count("a") == 1
        pool.report("a", 0.1, False)
    pool.report("a", 0.1, True)
    assert take(pool, 4).count("a") == 2


def test_when_all_rest_all_are_tried_again() -> None:
    pool = HostPool("abc", Time())
    for name in "abc":
        pool.report(name, 0.1, False)
    assert take(pool, 4) == "abca"


def test_one_host_is_always_taken() -> None:
    for pool in (RoundRobin("a"), HostPool("a"), EpsilonGreedy("a")):
        for _ in range(5):
            assert pool.take() == "a"
            pool.report("a", 0.1, False)


def test_greedy_prefers_the_fast_one_and_explores_less_and_less() -> None:
    clock = Time()
    pool = EpsilonGreedy("ab", clock, random.Random(7))
    counts: Counter[str] = Counter()
    for _ in range(3000):
        clock.now_s += 0.1
        name = pool.take()
        counts[name] += 1
        pool.report(name, {"a": 0.010, "b": 0.090}[name], True)
    assert pool.epsilon == EPSILON_MIN
    assert 0.85 < counts["a"] / 3000 < 0.95  # nine times as fast


def test_greedy_forgets_what_is_older_than_five_minutes() -> None:
    clock = Time()
    pool = EpsilonGreedy("ab", clock, random.Random(1))
    pool.report("a", 0.001, True)
    clock.now_s += 301
    pool.take()
    assert all(sum(host.counts) == 0 for host in pool.hosts)


def test_greedy_leaves_out_a_host_that_rests() -> None:
    pool = EpsilonGreedy("ab", Time(), random.Random(1))
    for name in "ab":
        pool.report(name, 0.01, True)
    pool.report("a", 0.01, False)
    assert set(take(pool, 100)) == {"b"}


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("hostpool", HostPool),
        ("epsilon-greedy", EpsilonGreedy),
        ("round-robin", RoundRobin),
        ("anything", RoundRobin),
    ],
)
def test_a_mode_names_its_pool(mode: str, kind: type) -> None:
    assert type(make_pool(mode, ["a"])) is kind
