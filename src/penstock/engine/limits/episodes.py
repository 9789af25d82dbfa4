"""Episodes: states that come and go with every message, and are logged when they begin and end.

A topic at its bound refuses a publish, accepts the next one after a finish, and refuses again.
That is one episode, until nothing was refused for a while.
"""

from __future__ import annotations

from typing import Protocol


class Episode(Protocol):
    """What may end."""

    def check(self) -> bool:
        """Whether it goes on; called once a second."""


class Episodes:
    """Those of a broker that have begun and not ended."""

    def __init__(self) -> None:
        self._open: set[Episode] = set()

    def add(self, episode: Episode) -> None:
        self._open.add(episode)

    def run(self) -> None:
        """Called once a second."""
        self._open = {episode for episode in self._open if episode.check()}
