"""Who this node is (R7), and the indexes it may give (R1).

A floor is persisted that lies above every index given so far, by a wide margin; it is raised
before the margin is used up.  So an index never comes back, even when a power cut took the log's
end and the clock was set back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.node import Node, load_node

if TYPE_CHECKING:
    from penstock.engine.broker import Broker

# At two million messages a second a margin lasts half an hour; 54 bits hold two million margins.
MARGIN = 1 << 32
# Stamps given while the clock stands above the limit count up from it.
STAMP_MARGIN = 1_000_000_000


class Identity:
    """The node's UUID and index floor."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._node: Node | None = None
        self._highest = 0
        self._raising = False

    @property
    def uuid(self) -> str:
        return self._node.uuid if self._node is not None else ""

    def open(self) -> int:
        """Load or make the identity; return the lowest index to give.  Blocking."""
        self._node = load_node(self._broker.files, self._broker.data.node)
        self._highest = max(self._node.index_floor, self._by_clock())
        return self._highest

    def lease(self, end: int) -> None:
        """Persist a floor above ``end`` before anything is given.  Blocking."""
        assert self._node is not None
        self._highest = max(self._highest, end)
        self._node.raise_floor(self._broker.files, self._highest + MARGIN)

    def next_base(self) -> int:
        """Where a new topic starts: above all that other topics, also deleted ones, reached.

        A clock that runs ahead must not take it past the floor, as with stamps.
        """
        assert self._node is not None
        by_clock = min(self._by_clock(), self._node.index_floor - MARGIN // 2)
        self._highest = max(self._highest, by_clock)
        return self._highest

    @property
    def stamp_floor(self) -> int:
        """A time (ns) above every stamp that was given before this start.

        The floor stays ahead of the clock, so the time it stands for is later than anything the
        clock has shown, also when it was set back since.
        """
        return (self._highest >> 12) * 1_000_000

    @property
    def stamp_limit(self) -> int:
        """A clock that runs ahead for a moment must not take the stamps past the floor."""
        assert self._node is not None
        return (self._node.index_floor >> 12) * 1_000_000 - STAMP_MARGIN

    def saw(self, end: int) -> None:
        """A topic has reached ``end``; or 0, just to keep the floor ahead of the clock."""
        assert self._node is not None
        node = self._node
        self._highest = max(self._highest, end)
        reached = max(self._highest, self._by_clock())
        if reached > node.index_floor - MARGIN // 2 and not self._raising:
            self._raising = True
            floor = reached + MARGIN
            self._broker.disk.submit(
                lambda: node.raise_floor(self._broker.files, floor), self._raised
            )

    def _raised(self, _: None, error: BaseException | None) -> None:
        self._raising = False
        if error is not None:
            self._broker.set_journal_health(error)

    def _by_clock(self) -> int:
        return self._broker.clock.wall_ns() // 1_000_000 << 12
