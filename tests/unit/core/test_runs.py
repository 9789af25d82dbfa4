"""Sets of indexes as dense runs, against plain sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.runs import Runs

Edit = tuple[str, int, int]
edits = st.lists(st.tuples(st.sampled_from(["add", "cut", "swap"]), *[st.integers(0, 8)] * 2))


@given(edits, st.integers(0, 60), st.integers(0, 60))
def test_runs_answer_as_a_set_does(changes: list[Edit], start: int, end: int) -> None:
    runs, model = Runs(), set[int]()
    for kind, a, b in changes:
        if kind == "add":
            at = max(model, default=0) + 1 + a
            runs.add(at, at + b + 1)
            model |= set(range(at, at + b + 1))
        elif kind == "cut":
            runs.replace(a * 5, a * 5 + b)
            model -= set(range(a * 5, a * 5 + b))
        else:
            runs.replace(a * 5, a * 5 + 8, [(a * 5 + 1, a * 5 + 3), (a * 5 + 6, a * 5 + 7)])
            model -= set(range(a * 5, a * 5 + 8))
            model |= {a * 5 + 1, a * 5 + 2, a * 5 + 6}
        runs.check()
    assert runs.count == len(model)
    assert runs.first == min(model, default=None)
    assert runs.count_between(start, end) == sum(start <= i < end for i in model)
    assert runs.next(start) == min((i for i in model if i >= start), default=None)
    inside = [i for a, b in runs.between(start, end) for i in range(a, b)]
    assert inside == sorted(i for i in model if start <= i < end)


def test_runs_that_touch_are_one() -> None:
    runs = Runs([(1, 5), (5, 9), (12, 13)])
    assert len(runs) == 2
    assert list(runs.between(0, 100)) == [(1, 9), (12, 13)]
    runs.replace(9, 12, [(9, 12)])
    assert list(runs.between(0, 100)) == [(1, 13)]
