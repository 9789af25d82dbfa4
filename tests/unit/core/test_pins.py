"""Users of something that may be given up meanwhile."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.pins import Pins


class PinsMachine(RuleBasedStateMachine):
    """It is released exactly once: when it is neither kept nor used."""

    def __init__(self) -> None:
        super().__init__()
        self.pins = Pins()
        self.users = 0
        self.kept = True
        self.releases = 0

    @rule()
    def take(self) -> None:
        assert self.pins.take() == self.kept
        self.users += self.kept

    @precondition(lambda self: self.users)
    @rule()
    def give(self) -> None:
        self.users -= 1
        self.releases += self.pins.give()

    @rule(only_unused=st.booleans())
    def drop(self, only_unused: bool) -> None:
        released = self.pins.drop_unused() if only_unused else self.pins.drop()
        if not (only_unused and self.users):
            self.kept = False
        self.releases += released

    @invariant()
    def released_once(self) -> None:
        assert self.pins.users == self.users and self.pins.kept == self.kept
        assert self.releases == (not self.kept and not self.users)


TestPins = PinsMachine.TestCase


def test_it_remembers_having_been_used() -> None:
    pins = Pins()
    assert not pins.recent
    pins.take()
    pins.give()
    assert pins.recent
    pins.recent = False
    assert not pins.recent
