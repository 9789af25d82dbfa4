"""One memory budget for bodies that are received in part and cannot be executed yet.

Connections of TCP and HTTP report how much of a body they keep and how large it will be.  Bodies
that are read may become ``size_max`` bytes together.  If there is no room for another one it is
held: its connection is not read until others are done, so the newest stops first.  One body is
always read, so a body of any allowed size gets through, whatever the budget.

    read      sum of their final sizes     <= size_max, or only one
    held      sum of what is kept          <= held_size_max; a body beyond that is dropped

While bodies are held, those that are read must progress: a body is dropped if it does not grow for
STALL_S, or by less than PRESSED_RATE_MIN on average for JUDGED_S.  Otherwise each has TIMEOUT_S,
and a second more for each RATE_MIN bytes received; the time for which it is held does not count.

Rule 1: no sockets, no clock.
Rule 2: a note costs O(1), a sweep O(connections with an unfinished body).

Invariants (``check``): both sums are right and within their bounds; if there are bodies, at least
one is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Protocol

TIMEOUT_S = 60.0
RATE_MIN = 16 * 1024
STALL_S = 2.0
JUDGED_S = 5.0
PRESSED_RATE_MIN = 64 * 1024
# Room for a packet of each of 64 held connections, however small the budget.
HELD_SIZE_MIN = 16 << 20
# How many held bodies are checked to find those for which there is room.
CHECK_COUNT_MAX = 16


class BodyOwner(Protocol):
    """A connection."""

    def hold(self) -> None:
        """Stop reading until ``release``."""

    def release(self) -> None:
        """Resume reading."""

    def end_body(self, *, late: bool) -> None:
        """Drop the body: it is too slow (``late``), or there is no room for it."""


@dataclass(slots=True)
class _Body:
    """A body that is not complete."""

    since_s: float  # plus the time for which it was held
    size: int = 0
    total: int = 0
    held_s: float | None = None
    grown_s: float = 0.0
    # When its growth was last checked, and its size then.
    judged_s: float = 0.0
    judged_size: int = 0


class BodyBudget:
    """The unfinished bodies of all connections."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.held_size_max = max(size_max, HELD_SIZE_MIN)
        self.read_size = 0
        self.held_size = 0
        self.ended_count = 0
        self._bodies: dict[BodyOwner, _Body] = {}
        self._held: dict[BodyOwner, None] = {}  # longest held first

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def size(self) -> int:
        """Bytes kept; O(connections with an unfinished body)."""
        return sum(body.size for body in self._bodies.values())

    @property
    def held_count(self) -> int:
        return len(self._held)

    def note(self, owner: BodyOwner, size: int, total: int, now_s: float) -> None:
        """``owner`` keeps ``size`` bytes of a body of ``total``; a size of 0 removes its entry."""
        body = self._bodies.get(owner)
        if not size:
            self.forget(owner, now_s)
            if body is not None and body.held_s is not None:
                owner.release()  # what it kept is executed
            return
        if body is None:
            body = self._bodies[owner] = _Body(now_s, judged_s=now_s)
        total = max(size, total)
        body.grown_s = now_s
        if body.held_s is not None:
            self.held_size += size - body.size
            body.size, body.total = size, total
            return
        smaller = total < body.total
        self.read_size += total - body.total
        body.size, body.total = size, total
        if self.read_size > self.size_max and len(self._bodies) - len(self._held) > 1:
            self._hold(owner, body, now_s)
        elif smaller:
            self._release_some(now_s)

    def forget(self, owner: BodyOwner, now_s: float) -> None:
        """Remove the entry of ``owner``; a second call does nothing."""
        body = self._bodies.pop(owner, None)
        if body is None:
            return
        if body.held_s is None:
            self.read_size -= body.total
        else:
            self.held_size -= body.size
            del self._held[owner]
        self._release_some(now_s)

    def sweep(self, now_s: float) -> None:
        """Drop bodies that are too slow; to be called about once a second."""
        pressed = bool(self._held)
        late = [owner for owner, body in self._bodies.items() if _late(body, now_s, pressed)]
        for owner in late:
            self._end(owner, now_s, late=True)

    def _hold(self, owner: BodyOwner, body: _Body, now_s: float) -> None:
        self.read_size -= body.total
        self.held_size += body.size
        body.held_s = now_s
        self._held[owner] = None
        if self.held_size > self.held_size_max:
            self._end(owner, now_s, late=False)
        else:
            owner.hold()

    def _release_some(self, now_s: float) -> None:
        """Release the longest held for which there is room, or the first if none is read."""
        for owner in list(islice(self._held, CHECK_COUNT_MAX)):
            body = self._bodies[owner]
            alone = len(self._bodies) == len(self._held)
            if alone or self.read_size + body.total <= self.size_max:
                self._release(owner, body, now_s)

    def _release(self, owner: BodyOwner, body: _Body, now_s: float) -> None:
        assert body.held_s is not None
        del self._held[owner]
        self.held_size -= body.size
        self.read_size += body.total
        body.since_s += now_s - body.held_s
        body.held_s = None
        body.judged_s, body.judged_size = now_s, body.size
        body.grown_s = now_s
        owner.release()

    def _end(self, owner: BodyOwner, now_s: float, *, late: bool) -> None:
        self.ended_count += 1
        self.forget(owner, now_s)
        owner.end_body(late=late)

    def check(self) -> None:
        """The invariants, for tests."""
        held = [body for body in self._bodies.values() if body.held_s is not None]
        read = [body for body in self._bodies.values() if body.held_s is None]
        assert len(held) == len(self._held)
        assert self.held_size == sum(body.size for body in held) <= self.held_size_max
        assert self.read_size == sum(body.total for body in read)
        assert self.read_size <= self.size_max or len(read) == 1
        assert read or not held


def _late(body: _Body, now_s: float, pressed: bool) -> bool:
    if body.held_s is not None:
        return False
    if now_s - body.since_s > TIMEOUT_S + body.size / RATE_MIN:
        return True
    late = False
    if pressed:
        if now_s - body.grown_s >= STALL_S:
            return True
        passed_s = now_s - body.judged_s
        if passed_s < JUDGED_S:
            return False
        late = body.size - body.judged_size < PRESSED_RATE_MIN * passed_s
    body.judged_s, body.judged_size = now_s, body.size
    return late
