"""Episodes: states that may change with every message, and are logged when they begin and end.

A topic at its bound refuses a publish, accepts the next one after a finish, and refuses again.
That is one episode, until nothing was refused for a while.
"""

from __future__ import annotations

from typing import Protocol

from penstock.engine.context import Context

# Time that the checks may use in one turn of the loop: thousands of topics may have a bound.
SLICE_NS = 1_000_000


class Episode(Protocol):
    """What may end."""

    def check(self) -> bool:
        """Whether it continues; called once a second."""


class Episodes:
    """The episodes of a broker that have begun and not ended."""

    def __init__(self, context: Context) -> None:
        self._turns = context.turns
        self._clock = context.clock
        self._supervisor = context.supervisor
        self._open: set[Episode] = set()
        self._unchecked: list[Episode] = []

    def add(self, episode: Episode) -> None:
        self._open.add(episode)

    def run(self) -> None:
        """Called once a second: begin with all of them, unless the last pass is still running."""
        if not self._unchecked:
            self._unchecked = list(self._open)
            self._check()

    def _check(self) -> None:
        end_ns = self._clock.monotonic_ns() + SLICE_NS
        while self._unchecked:
            episode = self._unchecked.pop()
            self._supervisor.guard("bounds", self._check_one, episode)
            if self._clock.monotonic_ns() >= end_ns:
                self._turns.soon(self._check)
                return

    def _check_one(self, episode: Episode) -> None:
        if not episode.check():
            self._open.discard(episode)
