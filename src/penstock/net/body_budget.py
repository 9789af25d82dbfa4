"""One budget for what was received and cannot be executed yet: bodies that are not here whole.

Connections, of TCP and HTTP, note what they keep and how large it will be.  Those that are read may
become ``size_max`` bytes together.  One that comes when there is no room is held: it is not read
on, until others are done; so reading stops for the newest first.  One is read in any case, so a
body of any allowed size gets here, whatever the budget.

    read      sum of what they will be     <= size_max, or only one
    held      sum of what they are         <= held_size_max; one that comes beyond that is ended

While somebody is held, who is read must be worth it: a body is ended that does not grow for
STALL_S, or by less than PRESSED_RATE_MIN on average for JUDGED_S.  Otherwise each has TIMEOUT_S,
and a second more for each RATE_MIN bytes it has; the time for which it is held does not count.

Rule 1: no sockets, no clock.
Rule 2: a note costs O(1), a sweep O(connections that keep something).

Invariants (``check``): both sums are right and within their bounds; if there is any, one is read.
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
# Room for a packet of each of 64 that are held, however small the budget.
HELD_SIZE_MIN = 16 << 20
# How many of the held are looked at to find those for which there is room.
LOOK_COUNT_MAX = 16


class Holder(Protocol):
    """A connection."""

    def hold(self) -> None:
        """Read no more, until ``release``."""

    def release(self) -> None:
        """Read on."""

    def end_body(self, *, late: bool) -> None:
        """Give the body up: it came too late, or there was no room for it."""


@dataclass(slots=True)
class _Body:
    """A body that has not come in whole."""

    since_s: float  # plus the time for which it was held
    size: int = 0
    total: int = 0
    held_s: float | None = None
    grown_s: float = 0.0
    # What there was of it when its growth was last judged.
    judged_s: float = 0.0
    judged_size: int = 0


class Bodies:
    """What all connections keep."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.held_size_max = max(size_max, HELD_SIZE_MIN)
        self.read_size = 0
        self.held_size = 0
        self.ended_count = 0
        self._bodies: dict[Holder, _Body] = {}
        self._held: dict[Holder, None] = {}  # longest held first

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def size(self) -> int:
        """Bytes that are kept; O(connections that keep something)."""
        return sum(body.size for body in self._bodies.values())

    @property
    def held_count(self) -> int:
        return len(self._held)

    def note(self, holder: Holder, size: int, total: int, now_s: float) -> None:
        """``holder`` keeps ``size`` bytes of what will be ``total``; 0: nothing any more."""
        body = self._bodies.get(holder)
        if not size:
            if body is not None:
                self.forget(holder, now_s)
            return
        if body is None:
            body = self._bodies[holder] = _Body(now_s, judged_s=now_s)
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
            self._hold(holder, body, now_s)
        elif smaller:
            self._release_some(now_s)

    def forget(self, holder: Holder, now_s: float) -> None:
        """``holder`` keeps nothing any more; a second time changes nothing."""
        body = self._bodies.pop(holder, None)
        if body is None:
            return
        if body.held_s is None:
            self.read_size -= body.total
        else:
            self.held_size -= body.size
            del self._held[holder]
        self._release_some(now_s)

    def sweep(self, now_s: float) -> None:
        """End those that are too slow; once a second is enough."""
        pressed = bool(self._held)
        late = [holder for holder, body in self._bodies.items() if _late(body, now_s, pressed)]
        for holder in late:
            self._end(holder, now_s, late=True)

    def _hold(self, holder: Holder, body: _Body, now_s: float) -> None:
        self.read_size -= body.total
        self.held_size += body.size
        body.held_s = now_s
        self._held[holder] = None
        if self.held_size > self.held_size_max:
            self._end(holder, now_s, late=False)
        else:
            holder.hold()

    def _release_some(self, now_s: float) -> None:
        """The longest held for whom there is room; the first of them if nobody is read."""
        for holder in list(islice(self._held, LOOK_COUNT_MAX)):
            body = self._bodies[holder]
            alone = len(self._bodies) == len(self._held)
            if alone or self.read_size + body.total <= self.size_max:
                self._release(holder, body, now_s)

    def _release(self, holder: Holder, body: _Body, now_s: float) -> None:
        assert body.held_s is not None
        del self._held[holder]
        self.held_size -= body.size
        self.read_size += body.total
        body.since_s += now_s - body.held_s
        body.held_s = None
        body.judged_s, body.judged_size = now_s, body.size
        body.grown_s = now_s
        holder.release()

    def _end(self, holder: Holder, now_s: float, *, late: bool) -> None:
        self.ended_count += 1
        self.forget(holder, now_s)
        holder.end_body(late=late)

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
