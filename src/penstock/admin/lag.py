"""How far channels are behind: how long ago the oldest message came that is not finished.

/stats tells counts, not ages.  So a few marks (time, messages that had arrived by then) are kept
for each channel with a backlog.  Finished are ``messages - backlog``; the oldest unfinished one
came between the two marks around that count.

    marks     12:00:00 100      12:00:05 180      12:00:10 260
    finished                 ^ 140: the next one came at about 12:00:02.5

It is an estimate: messages are taken to be finished in their order.  When more have arrived than
were ever seen to, the age is open: "at least".

Rule 1: marks are kept for each channel of each node, because counts of several nodes cannot be
        compared with earlier ones when a node comes or goes.  The slowest node's lag counts.
Rule 2: a node that does not answer still has its unfinished messages, and they grow older.  Its lag
        counts until it is forgotten (``sampler.REMEMBER_S``).
Rule 3: a node that was started anew counts from zero, but what was unfinished is as old as before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.admin.sample import ChannelPart, NodePart, Sample

# Beyond this every other mark goes: the age stays right within a few per cent.
MARK_COUNT_MAX = 32

Key = tuple[str, str]  # topic, channel
Marks = list[tuple[float, int]]  # time, messages that had arrived


@dataclass(slots=True)
class _Node:
    """What is kept of a node: its channels that are behind, and the counts of all others."""

    start_time: int = 0
    at_s: float = 0.0
    marks: dict[Key, Marks] = field(default_factory=dict)
    idle: dict[Key, int] = field(default_factory=dict)
    oldest: dict[Key, tuple[float, bool]] = field(default_factory=dict)  # when it came, open


class Lags:
    """Marks of all channels that are behind."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def measure(self, sample: Sample) -> None:
        """Set ``lag_s`` and ``lag_open`` of every channel of a sample."""
        now_s = sample.at_ns / 1e9
        nodes: dict[str, _Node] = {}
        for name, part in sample.nodes.items():
            known = self._nodes.get(name)
            if part.answered:
                nodes[name] = _measured(part, known or _Node(), now_s)
            elif known is not None:
                nodes[name] = known
        self._nodes = nodes
        for node in nodes.values():
            for (topic, channel), (came_s, is_open) in node.oldest.items():
                found = sample.topics.get(topic)
                total = found.channels.get(channel) if found is not None else None
                if total is not None and (now_s - came_s, is_open) > (total.lag_s, total.lag_open):
                    total.lag_s, total.lag_open = now_s - came_s, is_open


def _measured(part: NodePart, before: _Node, now_s: float) -> _Node:
    now = _Node(part.start_time, now_s)
    for topic, found in part.topics.items():
        for name, channel in found.channels.items():
            if not channel.depth and not channel.in_flight:
                now.idle[topic, name] = channel.messages
                continue
            key = (topic, name)
            finished = channel.messages - channel.depth - channel.in_flight
            marks = _marks(key, channel, before, now)
            marks.append((now_s, channel.messages))
            _forget(marks, finished)
            now.marks[key] = marks
            now.oldest[key] = _came(marks, finished)
    return now


def _marks(key: Key, channel: ChannelPart, before: _Node, now: _Node) -> Marks:
    """What is known of a channel that is behind; empty if nothing is."""
    marks = before.marks.get(key)
    if before.start_time != now.start_time:
        if marks is None:
            return []
        return [(before.oldest[key][0], channel.messages - channel.depth - channel.in_flight)]
    if marks is not None:
        return marks if marks[-1][1] <= channel.messages else []
    idle = before.idle.get(key)
    if idle is not None and idle <= channel.messages:
        return [(before.at_s, idle)]
    return []


def _forget(marks: Marks, finished: int) -> None:
    passed = 0
    while passed + 2 < len(marks) and marks[passed + 1][1] <= finished:
        passed += 1
    del marks[:passed]
    if len(marks) > MARK_COUNT_MAX:
        del marks[1:-1:2]


def _came(marks: Marks, finished: int) -> tuple[float, bool]:
    """When the message after ``finished`` came, and whether it came before all marks."""
    first_s, first = marks[0]
    if finished < first or len(marks) == 1:
        return first_s, True
    next_s, count = marks[1]
    if count <= first:
        return first_s, False
    return first_s + (next_s - first_s) * min(1.0, (finished - first) / (count - first)), False
