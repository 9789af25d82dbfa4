"""Reads that the disk refused, tried again with growing pauses.

An error of the disk is not damage: nothing is given up for it.  Whoever reads comes back after
0.25 s, 0.5 s, 1 s ... 30 s, whether or not a client waits, and /ping fails until it worked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.broker import Broker

PAUSE_FIRST_NS = 250_000_000
PAUSE_MAX_NS = 30_000_000_000


class Retries:
    """What is tried again, by its source: a name for people."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pauses_ns: dict[str, int] = {}

    def failed(self, source: str, error: BaseException, again: Callable[[], None]) -> None:
        """``source`` could not read; ``again`` is called after a pause."""
        broker = self._broker
        pause_ns = self._pauses_ns.get(source, PAUSE_FIRST_NS)
        self._pauses_ns[source] = min(2 * pause_ns, PAUSE_MAX_NS)
        broker.health_of_disk.failing(source, error)

        def call() -> None:
            if broker.exiting:
                return
            broker.guard(source, again)

        broker.turns.after(pause_ns, call)

    def worked(self, source: str) -> None:
        """``source`` could read, or has nothing to read any more."""
        if self._pauses_ns.pop(source, None) is not None:
            self._broker.health_of_disk.working(source)
