"""Who may connect, and who has to leave for it: places for connections, shared by several doors.

A door is a kind of connection (TCP, HTTP).  All doors share ``count_max`` places; each may have
some reserved, and a maximum of its own.  When a newcomer finds no place, one is made by closing

1. the connection that has waited longest of those that have sent no command, then
2. the connection that has been idle longest of those that may be closed between two requests.

Everybody else stays, and the newcomer is refused.

Rule 1: no sockets, no clock, no logging.  Whoever accepts connections asks and does it.
Rule 2: a connection costs nothing while it is served: whether it has sent a command is asked only
        when a place is needed, and once it has, it is not asked again.
Rule 3: a newcomer to full doors costs O(1) in the long run; a search through all connections is
        made at most once in SEARCH_SPACING_S.

Invariants (``check``): the doors' counts add up to the guests; who waits is inside; no door has
more than its maximum; and all together have no more than ``count_max``.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Protocol

# How long a peer may take for its first request, for the magic, and for its first command.
FIRST_COMMAND_TIMEOUT_S = 10.0
# A connection that was used a moment ago may be about to be used again.
IDLE_MIN_S = 1.0
# With 4,096 connections a search takes about a millisecond.
SEARCH_SPACING_S = 0.1
# As many as NSQ's users need; each takes some 10 KB.
HTTP_COUNT_MAX = 4096
# For /ping, /metrics and nsqadmin, however many clients there are.
HTTP_RESERVED_COUNT = 64
# Refusals are logged no more often than this.
REPORT_SPACING_S = 10.0


class Guest(Protocol):
    """A connection."""

    @property
    def spoke(self) -> bool:
        """Whether a whole command or request has come; once true it stays so."""

    @property
    def idle_since_s(self) -> float:
        """Since when it could be closed without harm, between two requests; ``inf``: it cannot."""

    def evict(self) -> None:
        """Close at once, to make room."""


class Door:
    """Connections of one kind.  Made by ``Doors.open``."""

    def __init__(self, name: str, reserved_count: int, count_max: int) -> None:
        self.name = name
        self.reserved_count = reserved_count
        self.count_max = count_max
        self.count = 0
        self.entered_count = 0
        self.refused_count = 0
        self.evicted_count = 0
        # Who has sent no command, with the time of arrival, in that order.  Those that have spoken
        # meanwhile are taken out when they are met.
        self.waiting: dict[Guest, float] = {}
        self._reported_count = 0
        self._report_after_s = -inf

    @property
    def full(self) -> bool:
        return self.count >= self.count_max

    def longest_waiting(self) -> tuple[float, Guest] | None:
        """Who has waited longest of those that have sent no command, and since when."""
        while self.waiting:
            guest, since_s = next(iter(self.waiting.items()))
            if not guest.spoke:
                return since_s, guest
            del self.waiting[guest]
        return None

    def report(self, now_s: float) -> str | None:
        """What to log about connections that were refused, if it is time to."""
        count = self.refused_count - self._reported_count
        if not count or now_s < self._report_after_s:
            return None
        self._reported_count = self.refused_count
        self._report_after_s = now_s + REPORT_SPACING_S
        noun = "connection" if count == 1 else "connections"
        return f"{self.name}: {count} {noun} refused, {self.count} are open and in use"


class Doors:
    """Places for ``count_max`` connections."""

    def __init__(self, count_max: int) -> None:
        self.count_max = max(1, count_max)
        self.doors: list[Door] = []
        self._guests: dict[Guest, Door] = {}
        # What the last search found, longest idle first, with since when.
        self._idle: deque[tuple[float, Guest]] = deque()
        self._search_after_s = -inf

    def open(self, name: str, *, reserved_count: int = 0, count_max: int | None = None) -> Door:
        """A further door; others cannot take its last ``reserved_count`` places."""
        places = self.count_max if count_max is None else min(count_max, self.count_max)
        door = Door(name, reserved_count, places)
        self.doors.append(door)
        return door

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self, door: Door, guest: Guest, now_s: float) -> bool:
        """Whether ``guest`` may come in; somebody else may have to leave for it."""
        if not self._has_place(door) and not self._make_place(door, now_s):
            door.refused_count += 1
            return False
        self._guests[guest] = door
        door.waiting[guest] = now_s
        door.count += 1
        door.entered_count += 1
        return True

    def leave(self, guest: Guest) -> None:
        """``guest`` is gone; a second time changes nothing."""
        door = self._guests.pop(guest, None)
        if door is not None:
            door.count -= 1
            door.waiting.pop(guest, None)

    def relieve(self, now_s: float) -> bool:
        """Close one connection of any door because descriptors ran out; whether there was one."""
        return self._evict_one(None, now_s)

    def _has_place(self, door: Door) -> bool:
        return not door.full and self._free_count(door) > 0

    def _free_count(self, door: Door) -> int:
        """Places that are neither taken nor reserved for another door."""
        reserved = sum(
            max(0, other.reserved_count - other.count) for other in self.doors if other is not door
        )
        return self.count_max - len(self._guests) - reserved

    def _make_place(self, door: Door, now_s: float) -> bool:
        return self._evict_one(door, now_s) and self._has_place(door)

    def _evict_one(self, door: Door | None, now_s: float) -> bool:
        guest = self._longest_waiting(door) or self._longest_idle(door, now_s)
        if guest is None:
            return False
        self._guests[guest].evicted_count += 1
        self.leave(guest)
        guest.evict()
        return True

    def _giving(self, door: Door | None) -> list[Door]:
        """The doors whose places ``door`` may have; all of them for None."""
        if door is None:
            return self.doors
        if door.full:
            return [door]
        return [own for own in self.doors if own is door or own.count > own.reserved_count]

    def _longest_waiting(self, door: Door | None) -> Guest | None:
        found = [each for own in self._giving(door) if (each := own.longest_waiting())]
        return min(found, key=lambda each: each[0])[1] if found else None

    def _longest_idle(self, door: Door | None, now_s: float) -> Guest | None:
        if not self._idle and now_s >= self._search_after_s:
            self._search_after_s = now_s + SEARCH_SPACING_S
            idle = [(guest.idle_since_s, guest) for guest in self._guests]
            long_idle = [each for each in idle if each[0] <= now_s - IDLE_MIN_S]
            self._idle.extend(sorted(long_idle, key=lambda each: each[0]))
        giving = self._giving(door)
        while self._idle:
            since_s, guest = self._idle.popleft()
            # It may be gone, or have been used since.
            if self._guests.get(guest) in giving and guest.idle_since_s == since_s:
                return guest
        return None

    def check(self) -> None:
        """The invariants, for tests."""
        assert sum(door.count for door in self.doors) == len(self._guests)
        for door in self.doors:
            assert all(self._guests.get(guest) is door for guest in door.waiting)
        assert all(0 <= door.count <= door.count_max for door in self.doors)
        assert len(self._guests) <= self.count_max


def open_doors(doors: Doors) -> tuple[Door, Door]:
    """(TCP, HTTP): neither can shut the other, and whoever operates a full node finds a place."""
    reserved_count = min(HTTP_RESERVED_COUNT, doors.count_max // 4)
    return (
        doors.open("TCP", reserved_count=doors.count_max // 2),
        doors.open("HTTP", reserved_count=reserved_count, count_max=HTTP_COUNT_MAX),
    )
