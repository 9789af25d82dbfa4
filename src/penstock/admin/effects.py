"""What policies do: how full topics are, and what was refused, dropped or moved in the last hour.

    /stats      "policy": {"max_bytes": "10GB"}, "unfinished_bytes": 123, "refused_count": 5
    BOUND       name, used, limit, unit ("bytes" or "messages"), set (the limit as it was set),
                node: the one that is fullest
    hour        [{"count": 5, "what": "refused"}]: increases of the counts over all nodes

Rule 1: a node's counters begin at zero with each start.  What was counted before nsqadmin first
        saw the node, or a policy on it, does not belong to this hour.
Rule 2: the last hour is kept in minutes, for TARGET_COUNT_MAX topics and channels at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.settings.kinds import parse_size

if TYPE_CHECKING:
    from penstock.admin.sample import NodePart, Sample, TopicPart

View = dict[str, Any]
Target = tuple[str, ...]  # a topic, or a topic and a channel
Counts = Mapping[str, int]

MINUTES = 60
MINUTE_MS = 60_000
TARGET_COUNT_MAX = 20_000

# Counters of /stats, and their words on the pages; some are numbers by reason.
COUNTERS = {
    "refused_count": "refused",
    "dropped_count": "dropped",
    "dropped_attempts_total": "dropped",
    "expired_count": "expired",
    "buried_total": "buried",
    "kicked_total": "kicked",
    "moved_total": "moved",
    "discarded_total": "discarded",
}
GAUGES = ("unfinished_bytes", "unfinished_count", "retained_bytes", "buried")
NAMES = (*COUNTERS, *GAUGES)
NUMBER_MAX = 1 << 63
TEXT_SIZE_MAX = 32
NOTHING: Mapping[str, Any] = MappingProxyType({})  # of a topic or channel without a policy
NEW: Counts = MappingProxyType({})  # of one that did not exist


def read_policy(stats: Mapping[str, Any]) -> Mapping[str, Any]:
    """The bounds in the policy of a topic in /stats; raises ValueError if they are wrong."""
    policy = stats.get("policy")
    if policy is None:
        return NOTHING
    if not isinstance(policy, dict):
        raise ValueError("a policy is not an object")
    return {key: policy[key] for key in ("max_bytes", "max_messages") if key in policy}


def read_counts(stats: Mapping[str, Any]) -> Counts:
    """What the policy of a topic or channel in /stats did; raises ValueError for wrong numbers."""
    if "policy" not in stats:
        return NOTHING
    return {name: _number(stats[name]) for name in NAMES if name in stats}


def _number(value: object) -> int:
    """A number, or the sum of numbers by reason."""
    if isinstance(value, dict):
        return sum(_number(one) for one in value.values() if not isinstance(one, dict))
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ValueError("not a number")
    return value


def bounds(parts: Iterable[tuple[str, TopicPart]]) -> list[View]:
    """How full a topic is, by its parts on nodes: for each bound the one with the largest share."""
    fullest: dict[str, tuple[float, View]] = {}
    for node, part in parts:
        for key, used_key, unit in (
            ("max_bytes", "unfinished_bytes", "bytes"),
            ("max_messages", "unfinished_count", "messages"),
        ):
            limit, used = _limit(part.policy.get(key)), part.counts.get(used_key)
            if not limit or used is None:
                continue
            share = used / limit
            if key not in fullest or share > fullest[key][0]:
                view = {"name": key, "used": used, "limit": limit, "unit": unit, "node": node}
                fullest[key] = (share, view | {"set": str(part.policy[key])[:TEXT_SIZE_MAX]})
    return [view for _, view in fullest.values()]


def _limit(value: object) -> int:
    if isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError:
            return 0
    return value if isinstance(value, int) else 0


class Effects:
    """The counts of the last hour."""

    def __init__(self) -> None:
        # By target: (minute, increases by counter).
        self._hours: dict[Target, deque[tuple[int, dict[str, int]]]] = {}
        self._before: dict[str, NodePart] = {}  # each node in the sample before

    def record(self, sample: Sample) -> None:
        """Add the increases since the sample before."""
        minute = sample.at_ms // MINUTE_MS
        for name, node in sample.nodes.items():
            if not node.answered:
                continue
            before = self._before.get(name)
            self._before[name] = node
            if before is not None:
                self._compare(minute, node, before)
        for name in self._before.keys() - sample.nodes.keys():
            del self._before[name]
        self._forget(minute)

    def _compare(self, minute: int, node: NodePart, before: NodePart) -> None:
        # A restart sets all counters to zero.
        known = before.topics if before.start_time == node.start_time else {}
        for topic, part in node.topics.items():
            earlier = known.get(topic)
            if part.counts:
                past = NEW if earlier is None else earlier.counts
                self._add((topic,), minute, part.counts, past)
            for channel, each in part.channels.items():
                if each.counts:
                    there = None if earlier is None else earlier.channels.get(channel)
                    past = NEW if there is None else there.counts
                    self._add((topic, channel), minute, each.counts, past)

    def _add(self, target: Target, minute: int, counts: Counts, past: Counts) -> None:
        if past is NOTHING:
            return
        for key in COUNTERS:
            value, before = counts.get(key, 0), past.get(key, 0)
            # A lower value: it was deleted and created again.
            increase = value - before if value >= before else value
            if not increase:
                continue
            if target not in self._hours and len(self._hours) >= TARGET_COUNT_MAX:
                return
            minutes = self._hours.setdefault(target, deque(maxlen=MINUTES + 1))
            if not minutes or minutes[-1][0] != minute:
                minutes.append((minute, {}))
            minutes[-1][1][key] = minutes[-1][1].get(key, 0) + increase

    def _forget(self, minute: int) -> None:
        for target, minutes in list(self._hours.items()):
            while minutes and minutes[0][0] <= minute - MINUTES:
                minutes.popleft()
            if not minutes:
                del self._hours[target]

    def hour(self, *target: str) -> list[View]:
        """What was done in the last hour, in the order of COUNTERS; a topic with its channels."""
        totals: dict[str, int] = {}
        for known, minutes in self._hours.items():
            if known[: len(target)] == target:
                for _, counts in minutes:
                    for key, count in counts.items():
                        totals[COUNTERS[key]] = totals.get(COUNTERS[key], 0) + count
        words = dict.fromkeys(COUNTERS.values())
        return [{"count": totals[what], "what": what} for what in words if what in totals]
