"""The node's identity (R7), and the indexes it may assign (R1).

A floor is kept on disk that is above every index assigned so far, by a wide margin; it is raised
before the margin is used up.  So an index is never reused, even if a power cut lost the end of a
log and the clock was set back.

The clock is used in case node.json is lost: indexes follow it while it is plausible.  A clock that
jumps ahead must not use up the 54 bits of an index, so it counts only up to ``CLOCK_MAX``.
"""

from __future__ import annotations

import errno
import logging

from penstock.engine.context import Context
from penstock.engine.damage import DamageLog
from penstock.engine.health import Health
from penstock.storage.damage import DamageKind
from penstock.storage.node import Node, load_node
from penstock.wire.ids import INDEX_MAX

log = logging.getLogger(__name__)

# At two million messages a second a margin lasts half an hour; 54 bits hold two million margins.
MARGIN = 1 << 32
# While the clock is above the limit, stamps count up from it.
STAMP_MARGIN = 1_000_000_000
# An index from the clock is its milliseconds shifted left by 12: 54 bits are full in May 2109.
# The clock counts up to August 2100; the indexes left then last 35 years at a million messages a
# second.
CLOCK_MAX = INDEX_MAX + 1 - (1 << 50)

IDS = "message ids"


class Identity:
    """The node's UUID and index floor, and the stamps of deferred publishes."""

    def __init__(self, context: Context, health: Health, damage: DamageLog) -> None:
        self._disk = context.disk
        self._files = context.files
        self._data = context.data
        self._clock = context.clock
        self._health = health
        self._damage = damage
        self._stamp = 0
        self._node: Node | None = None
        self._highest = 0
        self._raising = False
        self._clock_reported = False
        self.used = False  # a node has run on this data path before

    @property
    def uuid(self) -> str:
        return self._node.uuid if self._node is not None else ""

    def open(self) -> int:
        """Load or create the identity; return the lowest index to assign.  Blocking."""
        node = self._node = load_node(self._files, self._data.node, self._data.node_copy)
        self.used = node.used
        for problem in node.problems:
            self._damage.report(DamageKind.NODE, problem, path=node.path)
        if node.made and self._data.topic_folders():
            self._damage.report(
                DamageKind.NODE,
                f"{node.path} and its copy are missing: this node has a new identity,"
                f" {node.uuid}; Spark queries see it as another node",
                path=node.path,
            )
        self._highest = max(node.index_floor, self._by_clock())
        # The floor stays ahead of the clock, so the time it encodes is later than every stamp
        # assigned before this start, even if the clock was set back since.
        self.raise_stamp((self._highest >> 12) * 1_000_000)
        return self._highest

    def lease(self, end: int) -> None:
        """Persist a floor above ``end`` before any index is assigned.  Blocking."""
        assert self._node is not None
        self._highest = max(self._highest, end)
        self._node.raise_floor(self._files, self._highest + MARGIN)
        self._check_room()

    def next_base(self) -> int:
        """The first index of a new topic, above those of all other topics, deleted ones included.

        As with stamps, a clock that runs ahead must not raise it above the floor.
        """
        assert self._node is not None
        by_clock = min(self._by_clock(), self._node.index_floor - MARGIN // 2)
        self._highest = max(self._highest, by_clock)
        return self._highest

    def stamp(self) -> int:
        """A number that ascends over all deferred publishes and purges, across restarts."""
        assert self._node is not None
        # A clock that runs ahead for a moment must not raise the stamps above the floor.
        limit_ns = (self._node.index_floor >> 12) * 1_000_000 - STAMP_MARGIN
        self._stamp = max(self._stamp + 1, min(self._clock.wall_ns(), limit_ns))
        return self._stamp

    def raise_stamp(self, stamp: int) -> None:
        self._stamp = max(self._stamp, stamp)

    def reached(self, end: int) -> None:
        """A topic has reached ``end``; 0 only keeps the floor ahead of the clock."""
        assert self._node is not None
        node = self._node
        self._highest = max(self._highest, end)
        reached = max(self._highest, self._by_clock())
        if reached > node.index_floor - MARGIN // 2 and not self._raising:
            floor = min(reached + MARGIN, INDEX_MAX)
            if floor > node.index_floor:
                self._raising = True
                self._disk.submit(lambda: node.raise_floor(self._files, floor), self._raised)
        self._check_room()

    def refusal(self) -> Exception | None:
        """The error if all message ids are used up (decades away), or None."""
        if self._highest <= INDEX_MAX - MARGIN:
            return None
        return OSError(errno.EOVERFLOW, "all message ids of this data path are used up")

    def _check_room(self) -> None:
        refusal = self.refusal()
        if refusal is not None:
            self._health.refuse(IDS, refusal)

    def _raised(self, _: None, error: Exception | None) -> None:
        self._raising = False
        self._health.record_journal("node.json", error)

    def _by_clock(self) -> int:
        wall_ns = self._clock.wall_ns()
        index = wall_ns // 1_000_000 << 12
        if index <= CLOCK_MAX:
            self._clock_reported = False
            return max(0, index)
        if not self._clock_reported:
            self._clock_reported = True
            log.warning(
                "NSQ: the clock is at %d s after 1970, later than August 2100: message ids do not"
                " follow it.  Correct it: timestamps and delays depend on it",
                wall_ns // 1_000_000_000,
            )
        return CLOCK_MAX
