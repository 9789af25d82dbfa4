"""What policies did, from the counters of samples; and the changes of a form."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.admin.effects import MINUTE_MS, Effects, bounds
from penstock.admin.policies import changes_of
from penstock.admin.sample import NodePart, Sample, read_node


def stats(
    topic: dict[str, Any] | None = None, channel: dict[str, Any] | None = None, start_time: int = 1
) -> dict[str, Any]:
    latency = {"e2e_processing_latency": None}
    numbers = dict.fromkeys(
        (
            *("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count"),
            *("requeue_count", "timeout_count", "client_count"),
        ),
        0,
    )
    one = {"channel_name": "c", "paused": False, **latency, **numbers, **(channel or {})}
    return {
        "version": "1.3.0",
        "health": "OK",
        "start_time": start_time,
        "topics": [
            {
                "topic_name": "t",
                "depth": 0,
                "backend_depth": 0,
                "message_count": 0,
                "paused": False,
                **latency,
                "channels": [one],
                **(topic or {}),
            }
        ],
    }


def node(name: str, **told: Any) -> NodePart:
    part = NodePart(node=name)
    read_node(part, stats(**told), 0)
    return part


def sample(minute: float, *nodes: NodePart) -> Sample:
    found = Sample(number=1, tick=1, at_ms=int(minute * MINUTE_MS), at_ns=0)
    found.nodes = {part.node: part for part in nodes}
    return found


def refused(count: int, start_time: int = 1, name: str = "a") -> NodePart:
    told = {"policy": {"max_messages": 10}, "refused_count": count}
    return node(name, topic=told, start_time=start_time)


def test_increases_are_counted_for_an_hour() -> None:
    effects = Effects()
    # What was counted before the first sample is not of this hour.
    effects.record(sample(0, refused(100)))
    assert effects.hour("t") == []
    effects.record(sample(1, refused(103), refused(5, name="b")))
    effects.record(sample(2, refused(103), refused(6, name="b")))
    assert effects.hour("t") == [{"count": 4, "what": "refused"}]
    # Counters of a restarted node, and of a topic that was created again, begin at zero.
    effects.record(sample(30, refused(2, start_time=2), refused(6, name="b")))
    effects.record(sample(31, refused(1, start_time=2), refused(6, name="b")))
    assert effects.hour("t") == [{"count": 7, "what": "refused"}]
    effects.record(sample(62, refused(1, start_time=2)))
    assert effects.hour("t") == [{"count": 3, "what": "refused"}]
    effects.record(sample(95, refused(1, start_time=2)))
    assert effects.hour("t") == []


def test_a_topic_has_what_its_channels_did() -> None:
    effects = Effects()
    for count in (0, 4):
        told = {"policy": {"max_attempts": 5}, "moved_total": 2 * count}
        told["buried_total"] = {"attempts": count - count // 2, "bury": count // 2}
        effects.record(sample(1, node("a", channel=told)))
    assert effects.hour("t", "c") == [
        {"count": 4, "what": "buried"},
        {"count": 8, "what": "moved"},
    ]
    assert effects.hour("t") == effects.hour("t", "c")
    assert effects.hour("t", "d") == effects.hour("u") == []


def test_what_was_counted_before_there_was_a_policy_is_not_of_this_hour() -> None:
    effects = Effects()
    plain = node("a")
    effects.record(sample(0, plain))
    told = {"policy": {"max_attempts": 5}, "buried_total": {"bury": 1000}}
    effects.record(sample(1, node("a", channel=told)))
    assert effects.hour("t") == []
    # The policy was taken away, and set again.
    effects.record(sample(2, plain))
    told["buried_total"] = {"bury": 1001}
    effects.record(sample(3, node("a", channel=told)))
    told["buried_total"] = {"bury": 1003}
    effects.record(sample(4, node("a", channel=told)))
    assert effects.hour("t", "c") == [{"count": 2, "what": "buried"}]
    # A topic that is new, as with a rule of the file, has counted from zero.
    plain.topics = {}
    effects.record(sample(5, plain))
    told["buried_total"] = {"bury": 7}
    effects.record(sample(6, node("a", channel=told)))
    assert effects.hour("t", "c") == [{"count": 9, "what": "buried"}]


def test_a_bound_is_that_of_the_fullest_node() -> None:
    def part(used: int, limit: str) -> NodePart:
        told = {"policy": {"max_bytes": limit, "max_messages": 10}, "unfinished_bytes": used}
        return node("a", topic=told)

    nodes = (part(50, "1KB"), part(80, "100"), part(900, "1MB"))
    parts = [(name, each.topics["t"]) for name, each in zip("abc", nodes, strict=True)]
    assert bounds(parts) == [
        {
            "name": "max_bytes",
            "used": 80,
            "limit": 100,
            "unit": "bytes",
            "set": "100",
            "node": "b",
        },
    ]
    wrong = node("a", topic={"policy": {"max_bytes": "x"}, "unfinished_bytes": 1})
    assert bounds([("a", wrong.topics["t"])]) == []


@pytest.mark.parametrize(
    "told",
    [
        {"policy": 5},
        {"policy": {}, "refused_count": -1},
        {"policy": {}, "refused_count": 1.5},
        {"policy": {}, "refused_count": True},
        {"policy": {}, "buried_total": {"bury": "5"}},
        {"policy": {}, "unfinished_bytes": 1 << 70},
    ],
)
def test_wrong_counts_are_refused(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        node("a", topic=told)


def test_a_form_sends_what_was_changed() -> None:
    fields = {
        "set.retain": " 7d ",
        "was.retain": "",
        "set.max_bytes": "",
        "was.max_bytes": "1GB",
        "set.max_messages": "5",
        "was.max_messages": "5",
        "set.overflow": "",
        "unset.msg_ttl": "true",
        "set.msg_ttl": "1m",
        "set.max_attempts": "5",
        "set.nothing": "5",
    }
    assert changes_of(fields, "") == {"retain": "7d", "max_bytes": None, "msg_ttl": None}
    assert changes_of(fields, "c") == {"msg_ttl": None, "max_attempts": "5"}
