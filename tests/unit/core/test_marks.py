"""Items marked for later: each once, in order, until they are taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.marks import Marks


@given(st.lists(st.one_of(st.integers(0, 5), st.just("take"))))
def test_each_item_is_taken_once_in_the_order_it_came(steps: list[int | str]) -> None:
    marks, waiting = Marks(), dict[int | str, None]()
    for step in steps:
        if step == "take":
            assert marks.take() == list(waiting)
            waiting.clear()
        else:
            marks.add(step)
            waiting[step] = None
        assert len(marks) == len(waiting)
        assert all((item in marks) == (item in waiting) for item in range(6))
