"""How far channels are behind: how long ago the oldest message came that is not finished.

/stats tells counts, not ages.  So a few marks (time, messages that had arrived by then) are kept
for each channel with a backlog.  Finished are ``messages - backlog``; the oldest unfinished one
came between the two marks around that count.

    marks     12:00:00 100      12:00:05 180      12:00:10 260
    finished                 ^ 140: the next one came at about 12:00:02.5

It is an estimate: messages are taken to be finished in their order.  When more have arrived than
were ever seen to, the age is open: "at least".
"""

from __future__ import annotations

from penstock.admin.sample import Sample

# Beyond this every other mark goes: the age stays right within a few per cent.
MARK_COUNT_MAX = 32


class Lags:
    """Marks of all channels that are behind."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, str], list[tuple[float, int]]] = {}
        self._idle: dict[tuple[str, str], int] = {}
        self._before_s = 0.0

    def measure(self, sample: Sample) -> None:
        """Set ``lag_s`` and ``lag_open`` of every channel of a sample."""
        now_s = sample.at_ns / 1e9
        marks: dict[tuple[str, str], list[tuple[float, int]]] = {}
        idle: dict[tuple[str, str], int] = {}
        for topic in sample.topics.values():
            for channel in topic.channels.values():
                key = (topic.name, channel.name)
                backlog = channel.depth + channel.in_flight
                if not backlog:
                    idle[key] = channel.messages
                    continue
                own = self._marks.get(key)
                if own is None or own[-1][1] > channel.messages:
                    own = self._begin(key, channel.messages)
                own.append((now_s, channel.messages))
                _forget(own, channel.messages - backlog)
                came_s, channel.lag_open = _came(own, channel.messages - backlog)
                channel.lag_s = now_s - came_s
                marks[key] = own
        self._marks, self._idle, self._before_s = marks, idle, now_s

    def _begin(self, key: tuple[str, str], messages: int) -> list[tuple[float, int]]:
        """A channel that had nothing to do a moment ago, or of which that is not known."""
        before = self._idle.get(key)
        if before is None or before > messages:
            return []
        return [(self._before_s, before)]


def _forget(marks: list[tuple[float, int]], finished: int) -> None:
    passed = 0
    while passed + 2 < len(marks) and marks[passed + 1][1] <= finished:
        passed += 1
    del marks[:passed]
    if len(marks) > MARK_COUNT_MAX:
        del marks[1:-1:2]


def _came(marks: list[tuple[float, int]], finished: int) -> tuple[float, bool]:
    """When the message after ``finished`` came, and whether it came before all marks."""
    first_s, first = marks[0]
    if finished < first or len(marks) == 1:
        return first_s, True
    next_s, count = marks[1]
    if count <= first:
        return first_s, False
    return first_s + (next_s - first_s) * min(1.0, (finished - first) / (count - first)), False
