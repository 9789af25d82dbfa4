"""The lag of channels: the age of the oldest unfinished message.

/stats has counts, not ages.  So a few marks (time, messages that had arrived by then) are kept for
each channel with a backlog.  ``messages - backlog`` are finished; the oldest unfinished message
arrived between the two marks around that count.

    marks     12:00:00 100      12:00:05 180      12:00:10 260
    finished                 ^ 140: the next one arrived at about 12:00:02.5

It is an estimate that assumes messages are finished in order.  If the oldest one arrived before the
first mark, the lag is open: "at least".

Rule 1: marks are kept for each channel of each node, because sums over nodes cannot be compared
        with earlier sums when a node joins or leaves.  The lag is that of the slowest node.
Rule 2: a node that does not respond still has unfinished messages, and they grow older.  Its lag
        counts until the node is dropped (``sampler.REMEMBER_S``).
Rule 3: a restarted node counts from zero, but its unfinished messages are as old as before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.admin.sample import ChannelPart, NodePart, Sample

# Above this every other mark is dropped: the age stays right within a few per cent.
MARK_COUNT_MAX = 32

Key = tuple[str, str]  # topic, channel
Marks = list[tuple[float, int]]  # time, messages that had arrived


@dataclass(slots=True)
class _Node:
    """The state of a node: marks of channels with a backlog, and the counts of the others."""

    start_time: int = 0
    at_s: float = 0.0
    marks: dict[Key, Marks] = field(default_factory=dict)
    idle: dict[Key, int] = field(default_factory=dict)
    oldest: dict[Key, tuple[float, bool]] = field(default_factory=dict)  # when it arrived, open


class Lags:
    """The marks of all channels with a backlog."""

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
            for (topic, channel), (at_s, is_open) in node.oldest.items():
                found = sample.topics.get(topic)
                total = found.channels.get(channel) if found is not None else None
                if total is not None and (now_s - at_s, is_open) > (total.lag_s, total.lag_open):
                    total.lag_s, total.lag_open = now_s - at_s, is_open


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
            _prune(marks, finished)
            now.marks[key] = marks
            now.oldest[key] = _arrival(marks, finished)
    return now


def _marks(key: Key, channel: ChannelPart, before: _Node, now: _Node) -> Marks:
    """The earlier marks of a channel with a backlog; empty if there are none."""
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


def _prune(marks: Marks, finished: int) -> None:
    passed = 0
    while passed + 2 < len(marks) and marks[passed + 1][1] <= finished:
        passed += 1
    del marks[:passed]
    if len(marks) > MARK_COUNT_MAX:
        del marks[1:-1:2]


def _arrival(marks: Marks, finished: int) -> tuple[float, bool]:
    """When the message after ``finished`` arrived, and whether that was before all marks."""
    first_s, first = marks[0]
    if finished < first or len(marks) == 1:
        return first_s, True
    next_s, count = marks[1]
    if count <= first:
        return first_s, False
    return first_s + (next_s - first_s) * min(1.0, (finished - first) / (count - first)), False
