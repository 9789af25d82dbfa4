"""The deadline queue against a dict: they never disagree (S0-5, A-6)."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.core.deadlines import NEVER_NS, DeadlineQueue

ITEMS = st.integers(0, 40)
TIMES = st.integers(-5, 50) | st.sampled_from([NEVER_NS, -(2**63), 2**62])


class DeadlineMachine(RuleBasedStateMachine):
    """Every operation on both; S0-5: heap and places never disagree."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = DeadlineQueue()
        self.model: dict[int, int] = {}

    @rule(item=ITEMS, deadline_ns=TIMES)
    def set(self, item: int, deadline_ns: int) -> None:
        self.queue.set(item, deadline_ns)
        self.model[item] = deadline_ns

    @rule(item=ITEMS)
    def remove(self, item: int) -> None:
        self.queue.remove(item)
        self.model.pop(item, None)

    @rule(now_ns=TIMES, count_max=st.integers(0, 60))
    def expire(self, now_ns: int, count_max: int) -> None:
        expire_both(self.queue, self.model, now_ns, count_max)

    @invariant()
    def agrees(self) -> None:
        self.queue.check()
        assert len(self.queue) == len(self.model)
        assert self.queue.next_ns == min(self.model.values(), default=NEVER_NS)
        for item in range(42):
            assert (item in self.queue) == (item in self.model)


def expire_both(queue: DeadlineQueue, model: dict[int, int], now_ns: int, count_max: int) -> None:
    """Ties may come in any order; everything else is fixed."""
    due = queue.expire(now_ns, count_max)
    deadlines = [model.pop(item) for item in due]
    expected = sorted(d for d in [*deadlines, *model.values()] if d <= now_ns)[:count_max]
    assert deadlines == expected


TestDeadlineMachine = DeadlineMachine.TestCase
TestDeadlineMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_a_hundred_thousand_random_operations_agree_with_a_dict() -> None:
    """A-6 and S0-5: deadlines mostly in order, as in life, some moved and some taken out."""
    choose = random.Random(20)
    queue = DeadlineQueue()
    model: dict[int, int] = {}
    now_ns = 0
    for step in range(100_000):
        kind = choose.random()
        item = choose.randrange(3000)
        if kind < 0.5:
            deadline_ns = now_ns + choose.choice((1000, 1000, 1000, choose.randrange(5000)))
            queue.set(item, deadline_ns)
            model[item] = deadline_ns
        elif kind < 0.8:
            queue.remove(item)
            model.pop(item, None)
        elif kind < 0.99:
            now_ns += choose.randrange(3)
        else:
            expire_both(queue, model, now_ns, choose.choice((1, 10, 10_000)))
        if step % 1000 == 0:
            queue.check()
            assert len(queue) == len(model)
    assert len(model) > 100
    expire_both(queue, model, NEVER_NS, 10_000)
    assert not model and len(queue) == 0
