"""Counts of pending messages, against a plain list."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.core.tally import Tallies

HOUR = 3_600_000_000_000


def test_counts_follow_a_list_through_cuts_purges_and_removals() -> None:
    """D-12, R17: counts by instance, by stamp and by hour stay true."""
    chance = random.Random(5)
    for _ in range(30):
        void: dict[int, int] = {}
        tallies = Tallies(lambda instance, void=void: void.get(instance, 0))
        pending: list[tuple[int, int, int]] = []
        cuts: list[tuple[int, int]] = []
        for stamp in range(1, 200):
            instance = chance.randint(1, 3)
            action = chance.random()
            if action < 0.5:
                due_ns = chance.randrange(5) * HOUR + chance.randrange(HOUR)
                pending.append((instance, due_ns, stamp))
                tallies.add(instance, due_ns, stamp)
            elif action < 0.8 and pending:
                gone = pending.pop(chance.randrange(len(pending)))
                tallies.remove(*gone)
            elif action < 0.9:
                tallies.cut(instance, stamp, True)
                cuts.append((instance, stamp))
            else:
                kept = [item for item in pending if item[0] != instance]
                void[instance] = stamp
                assert tallies.purge(instance, stamp) == len(pending) - len(kept)
                pending = kept
            compare(tallies, pending, cuts)


def compare(
    tallies: Tallies, pending: list[tuple[int, int, int]], cuts: list[tuple[int, int]]
) -> None:
    assert tallies.total == len(pending)
    for instance in (1, 2, 3):
        assert tallies.count(instance) == sum(item[0] == instance for item in pending)
    for instance, cut in cuts:
        expected = sum(item[0] == instance and item[2] < cut for item in pending)
        assert tallies.before(instance, cut) == expected
    for instance in (1, 2, 3):
        hours = Counter(due_ns // HOUR for other, due_ns, _ in pending if other == instance)
        assert tallies.due_hours(instance) == dict(sorted(hours.items()))


def test_what_is_void_is_never_counted() -> None:
    tallies = Tallies(lambda instance: 10)
    tallies.add(1, HOUR, 9)
    tallies.add(1, HOUR, 10)
    assert tallies.count(1) == 1
    tallies.remove(1, HOUR, 9)
    assert tallies.count(1) == 1


def test_a_purge_at_an_older_cut_keeps_what_came_after_it() -> None:
    """The journal may need a while to hold a void stamp; messages are accepted meanwhile."""
    tallies = Tallies(lambda instance: 0)
    tallies.add(1, HOUR, 1)
    tallies.cut(1, 2, True)
    tallies.add(1, HOUR, 3)
    assert tallies.purge(1, 2) == 1
    assert (tallies.count(1), tallies.total) == (1, 1)


def test_a_cut_below_what_is_counted_is_refused() -> None:
    tallies = Tallies(lambda instance: 0)
    tallies.add(1, HOUR, 5)
    with pytest.raises(ValueError):
        tallies.cut(1, 5, True)


def test_cuts_after_a_restart_come_in_any_order() -> None:
    tallies = Tallies(lambda instance: 0)
    for cut in (30, 10, 20):
        tallies.cut(1, cut, False)
    for stamp in (5, 15, 15, 25, 35):
        tallies.add(1, HOUR, stamp)
    assert [tallies.before(1, cut) for cut in (10, 20, 30)] == [1, 3, 4]


def test_instances_without_messages_are_forgotten() -> None:
    tallies = Tallies(lambda instance: 0)
    for instance in range(5000):
        tallies.add(instance, HOUR, 1)
        tallies.remove(instance, HOUR, 1)
    assert tallies.total == 0 and tallies.due_hours(1) == {}
