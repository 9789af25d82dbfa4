"""Admission control: which connections are accepted, and which are closed to make room for them.

Connections are of several kinds (TCP, HTTP), each with a quota.  All of them share ``count_max``
slots; a quota may reserve some, and may have a maximum of its own.  When there is no free slot for
a new connection, one is freed by closing

1. the oldest of the connections that have sent no command yet, then
2. the connection that has been idle longest of those that may be closed between two requests.

If there is neither, the new connection is refused.

Rule 1: no sockets, no clock, no logging.  The caller accepts and closes.
Rule 2: a connection costs nothing while it is served: whether it has sent a command is checked only
        when a slot is needed, and not again once it has.
Rule 3: a connection that arrives when all slots are taken costs O(1) amortized; a search through
        all connections runs at most once in SEARCH_SPACING_S.

Invariants (``check``): the quotas' counts add up to the connections; silent connections are
admitted ones; no quota exceeds its maximum; and all together do not exceed ``count_max``.
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


class Evictable(Protocol):
    """A connection."""

    @property
    def sent_command(self) -> bool:
        """Whether a whole command or request has been received; never false again after true."""

    @property
    def idle_since_s(self) -> float:
        """Since when it is between two requests and may be closed; ``inf`` if it may not."""

    def evict(self) -> None:
        """Close at once, to make room."""


class Quota:
    """The connections of one kind.  Made by ``Admission.add_quota``."""

    def __init__(self, name: str, reserved_count: int, count_max: int) -> None:
        self.name = name
        self.reserved_count = reserved_count
        self.count_max = count_max
        self.count = 0
        self.admitted_count = 0
        self.refused_count = 0
        self.evicted_count = 0
        # Connections that have sent no command, with the time they arrived, in that order.  One
        # that has sent a command since is removed when a search meets it.
        self.silent: dict[Evictable, float] = {}
        self._reported_count = 0
        self._report_after_s = -inf

    @property
    def full(self) -> bool:
        return self.count >= self.count_max

    def oldest_silent(self) -> tuple[float, Evictable] | None:
        """The oldest connection that has sent no command, after the time it arrived."""
        while self.silent:
            connection, since_s = next(iter(self.silent.items()))
            if not connection.sent_command:
                return since_s, connection
            del self.silent[connection]
        return None

    def report(self, now_s: float) -> str | None:
        """The log line about refused connections, if one is due."""
        count = self.refused_count - self._reported_count
        if not count or now_s < self._report_after_s:
            return None
        self._reported_count = self.refused_count
        self._report_after_s = now_s + REPORT_SPACING_S
        noun = "connection" if count == 1 else "connections"
        return f"{self.name}: {count} {noun} refused, {self.count} are open and in use"


class Admission:
    """Slots for ``count_max`` connections."""

    def __init__(self, count_max: int) -> None:
        self.count_max = max(1, count_max)
        self.quotas: list[Quota] = []
        self._admitted: dict[Evictable, Quota] = {}
        # What the last search found, longest idle first, with since when.
        self._idle: deque[tuple[float, Evictable]] = deque()
        self._search_after_s = -inf

    def add_quota(
        self, name: str, *, reserved_count: int = 0, count_max: int | None = None
    ) -> Quota:
        """Add a kind of connection; others cannot take its last ``reserved_count`` slots."""
        slots = self.count_max if count_max is None else min(count_max, self.count_max)
        quota = Quota(name, reserved_count, slots)
        self.quotas.append(quota)
        return quota

    def __len__(self) -> int:
        return len(self._admitted)

    def admit(self, quota: Quota, connection: Evictable, now_s: float) -> bool:
        """Whether ``connection`` gets a slot; another one may be evicted for it."""
        if not self._has_slot(quota) and not self._free_slot(quota, now_s):
            quota.refused_count += 1
            return False
        self._admitted[connection] = quota
        quota.silent[connection] = now_s
        quota.count += 1
        quota.admitted_count += 1
        return True

    def remove(self, connection: Evictable) -> None:
        """Free the slot of ``connection``; a second call does nothing."""
        quota = self._admitted.pop(connection, None)
        if quota is not None:
            quota.count -= 1
            quota.silent.pop(connection, None)

    def evict_any(self, now_s: float) -> bool:
        """Evict one connection of any kind, for its descriptor; return whether there was one."""
        return self._evict_one(None, now_s)

    def _has_slot(self, quota: Quota) -> bool:
        """Whether there is a slot that is neither taken nor reserved for others than ``quota``."""
        others = (other for other in self.quotas if other is not quota)
        reserved = sum(max(0, other.reserved_count - other.count) for other in others)
        return not quota.full and self.count_max - len(self._admitted) > reserved

    def _free_slot(self, quota: Quota, now_s: float) -> bool:
        return self._evict_one(quota, now_s) and self._has_slot(quota)

    def _evict_one(self, quota: Quota | None, now_s: float) -> bool:
        connection = self._oldest_silent(quota) or self._longest_idle(quota, now_s)
        if connection is None:
            return False
        self._admitted[connection].evicted_count += 1
        self.remove(connection)
        connection.evict()
        return True

    def _donors(self, quota: Quota | None) -> list[Quota]:
        """The quotas whose slots ``quota`` may take; all of them for None."""
        if quota is None:
            return self.quotas
        if quota.full:
            return [quota]
        return [own for own in self.quotas if own is quota or own.count > own.reserved_count]

    def _oldest_silent(self, quota: Quota | None) -> Evictable | None:
        found = [each for own in self._donors(quota) if (each := own.oldest_silent())]
        return min(found, key=lambda each: each[0])[1] if found else None

    def _longest_idle(self, quota: Quota | None, now_s: float) -> Evictable | None:
        if not self._idle and now_s >= self._search_after_s:
            self._search_after_s = now_s + SEARCH_SPACING_S
            idle = [(connection.idle_since_s, connection) for connection in self._admitted]
            long_idle = [each for each in idle if each[0] <= now_s - IDLE_MIN_S]
            self._idle.extend(sorted(long_idle, key=lambda each: each[0]))
        donors = self._donors(quota)
        while self._idle:
            since_s, connection = self._idle.popleft()
            # It may be closed, or have been used since.
            if self._admitted.get(connection) in donors and connection.idle_since_s == since_s:
                return connection
        return None

    def check(self) -> None:
        """The invariants, for tests."""
        assert sum(quota.count for quota in self.quotas) == len(self._admitted)
        for quota in self.quotas:
            assert all(self._admitted.get(connection) is quota for connection in quota.silent)
        assert all(0 <= quota.count <= quota.count_max for quota in self.quotas)
        assert len(self._admitted) <= self.count_max


def tcp_and_http(admission: Admission) -> tuple[Quota, Quota]:
    """(TCP, HTTP): neither can starve the other, and an operator reaches a node that is full."""
    reserved_count = min(HTTP_RESERVED_COUNT, admission.count_max // 4)
    return (
        admission.add_quota("TCP", reserved_count=admission.count_max // 2),
        admission.add_quota("HTTP", reserved_count=reserved_count, count_max=HTTP_COUNT_MAX),
    )
