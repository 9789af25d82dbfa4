"""Ready counts: how a consumer's ``max_in_flight`` is distributed over its connections.

    connections <= max_in_flight    each gets an equal part, up to nsqd's max_rdy_count
    connections >  max_in_flight    that many have RDY 1; their places rotate
    paused                          all have RDY 0
    testing (backoff)               one has RDY 1

RDY is an upper limit that nsqd remembers, so it is sent only when it changes.

Rule 1: no I/O, no clock.  Every call returns the changes to send, in order.
Rule 2: after each single change, the sum of RDY over all connections is at most max_in_flight,
        and no RDY is above its connection's max_rdy_count.
Rule 3: messages in flight count even after RDY was lowered.  So raising other connections may have
        to wait for finishes: ``waiting`` is set, and ``settle`` tries again.  (go-nsq counts RDY
        only, and exceeds max_in_flight for as long as handlers take.)
Rule 4: a place moves to the connection that has waited longest, so with n connections and m places
        none waits longer than about n/m times ``low_rdy_timeout``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Change = tuple["Share", int]


@dataclass(eq=False, slots=True)
class Share:
    """One connection's part.  The reader of messages updates ``in_flight`` and ``received_s``."""

    rdy_max: int
    rdy: int = 0
    in_flight: int = 0
    received_s: float = 0.0  # when the last message was received
    given_s: float = 0.0  # when RDY rose from 0
    taken_s: float = 0.0  # when RDY fell to 0, or the connection was opened
    placed: bool = False  # has one of the places, if there are fewer than connections

    @property
    def charge(self) -> int:
        """How much of max_in_flight it uses."""
        return max(self.rdy, self.in_flight)

    @property
    def starved(self) -> bool:
        """Whether its in-flight limit is nearly reached, so a batch should not wait for more."""
        return self.in_flight > 0 and self.in_flight >= 0.85 * self.rdy


@dataclass(slots=True)
class Ready:
    """All shares of a consumer."""

    max_in_flight: int
    low_rdy_idle_timeout_s: float = 10.0
    low_rdy_timeout_s: float = 30.0
    shares: list[Share] = field(default_factory=list)
    paused: bool = False
    probe: Share | None = None  # the one connection that tests, in backoff
    waiting: bool = False

    @property
    def total(self) -> int:
        return sum(share.rdy for share in self.shares)

    def add(self, share: Share, now_s: float) -> list[Change]:
        share.taken_s = now_s
        self.shares.append(share)
        return self.settle(now_s)

    def remove(self, share: Share, now_s: float) -> list[Change]:
        self.shares.remove(share)
        if self.probe is share:
            self.probe = self._longest_waiting(self.shares)
            self.paused = self.probe is None
        return self.settle(now_s)

    def resize(self, max_in_flight: int, now_s: float) -> list[Change]:
        self.max_in_flight = max_in_flight
        return self.settle(now_s)

    def pause(self, now_s: float) -> list[Change]:
        """Set RDY 0 for all connections."""
        self.paused, self.probe = True, None
        return self.settle(now_s)

    def test(self, now_s: float) -> list[Change] | None:
        """Set RDY 1 for the connection that has waited longest; None if there is none."""
        self.probe = self._longest_waiting(self.shares)
        if self.probe is None:
            return None
        self.paused = False
        return self.settle(now_s)

    def resume(self, now_s: float) -> list[Change]:
        """Return to normal operation."""
        self.paused, self.probe = False, None
        return self.settle(now_s)

    def rotate(self, now_s: float) -> list[Change]:
        """Move places to waiting connections, if there are fewer places than connections."""
        places = min(1, self.max_in_flight) if self.probe else self.max_in_flight
        if self.paused or len(self.shares) <= places:
            return []
        holders = [share for share in self.shares if self._holds(share)]
        idle = [share for share in self.shares if not self._holds(share)]
        for share in holders:
            successor = self._longest_waiting(idle)
            if successor is None:
                break
            if share.rdy and self._may_lose_place(share, now_s):
                idle.remove(successor)
                share.placed, successor.placed = False, True
                if self.probe is share:
                    self.probe = successor
        return self.settle(now_s)

    def settle(self, now_s: float) -> list[Change]:
        """Change every share towards its target, lowering before raising."""
        changes: list[Change] = []
        wanted = self._wanted()
        for share, count in wanted:
            if count < share.rdy:
                self._set(share, count, now_s, changes)
        room = self.max_in_flight - sum(share.charge for share in self.shares)
        self.waiting = False
        for share, count in wanted:
            if count > share.rdy:
                possible = min(count, share.charge + max(0, room))
                self.waiting |= possible < count
                if possible > share.rdy:
                    room += share.charge
                    self._set(share, possible, now_s, changes)
                    room -= share.charge
        return changes

    def _set(self, share: Share, count: int, now_s: float, changes: list[Change]) -> None:
        if count and not share.rdy:
            share.given_s = now_s
        elif share.rdy and not count:
            share.taken_s = now_s
        share.rdy = count
        changes.append((share, count))

    def _holds(self, share: Share) -> bool:
        return share is self.probe if self.probe else share.placed

    def _wanted(self) -> list[tuple[Share, int]]:
        """The target of each share, once older messages are finished."""
        if self.paused:
            return [(share, 0) for share in self.shares]
        if self.probe:
            return [
                (share, min(1, self.max_in_flight) if share is self.probe else 0)
                for share in self.shares
            ]
        if len(self.shares) > self.max_in_flight:
            # Connections keep their places; free ones go to those that have waited longest.
            order = sorted(self.shares, key=lambda share: (not share.placed, share.taken_s))
            for at, share in enumerate(order):
                share.placed = at < self.max_in_flight
            return [(share, int(share.placed)) for share in self.shares]
        return self._parts()

    def _parts(self) -> list[tuple[Share, int]]:
        """Equal parts; what exceeds one connection's limit goes to the others."""
        parts = []
        left = self.max_in_flight
        by_limit = sorted(self.shares, key=lambda share: share.rdy_max)
        for at, share in enumerate(by_limit):
            count = min(share.rdy_max, -(-left // (len(by_limit) - at)))
            left -= count
            share.placed = True
            parts.append((share, count))
        return parts

    def _may_lose_place(self, share: Share, now_s: float) -> bool:
        """Whether a share has had its place for too long, or is idle."""
        idle_s = now_s - max(share.given_s, share.received_s)
        return (
            idle_s >= self.low_rdy_idle_timeout_s or now_s - share.given_s >= self.low_rdy_timeout_s
        )

    @staticmethod
    def _longest_waiting(shares: Iterable[Share]) -> Share | None:
        return min(shares, key=lambda share: share.taken_s, default=None)

    def check(self) -> None:
        """Check Rule 2, and that RDY is 0 while paused."""
        assert self.total <= self.max_in_flight
        assert all(0 <= share.rdy <= share.rdy_max for share in self.shares)
        if self.paused:
            assert self.total == 0
        if self.probe:
            assert self.total <= 1
