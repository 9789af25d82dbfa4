"""NSQ's objects over several nodes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.admin import api_objects
from tests.unit.admin.test_sample import channel, topic

HERE = {"node": "a:1", "hostname": "a", "topology_zone": "z1", "topology_region": "r1"}
THERE = {"node": "b:1", "hostname": "b"}


def parts(*topics: tuple[dict[str, Any], dict[str, Any]]) -> list[api_objects.Object]:
    return [api_objects.topic_part(found, place, 1000.0) for found, place in topics]


def test_sums_leave_the_parts_as_they_are() -> None:
    """NSQ writes the sum over the first node's part."""
    two = parts(
        (topic("t", channel("c", depth=1)), HERE), (topic("t", channel("c", depth=2)), THERE)
    )
    summed = api_objects.topic_sum("t", reversed(two))
    assert [part["node"] for part in summed["nodes"]] == ["a:1", "b:1"]
    assert [part["channels"][0]["depth"] for part in summed["nodes"]] == [1, 2]
    assert summed["channels"][0]["depth"] == 3
    assert [part["depth"] for part in summed["channels"][0]["nodes"]] == [1, 2]


def test_percentiles_are_weighted_by_their_counts() -> None:
    def timed(count: int, value: float) -> dict[str, Any]:
        return topic(
            "t",
            e2e_processing_latency={
                "count": count,
                "percentiles": [{"quantile": 0.99, "value": value}],
            },
        )

    summed = api_objects.topic_sum("t", parts((timed(30, 10.0), HERE), (timed(10, 50.0), THERE)))
    assert summed["e2e_processing_latency"] == {
        "count": 40,
        "percentiles": [
            {"average": 20, "count": 40, "max": 50, "min": 10, "quantile": 0.99, "value": 20}
        ],
        "topic": "t",
        "channel": "",
        "host": "*",
    }


def test_deliveries_by_nearness_are_told_where_there_are_any() -> None:
    near = channel("c", zone_local_msg_count=5, global_msg_count=2)
    summed = api_objects.topic_sum("t", parts((topic("t", near), HERE), (topic("t", near), THERE)))
    found = summed["channels"][0]
    assert summed["delivery_msg_count"] == 14
    assert (found["delivery_msg_count"], found["zone_local_msg_count"]) == (14, 10)
    assert found["global_msg_count"] == 4 and "region_local_msg_count" not in found
    plain = api_objects.topic_sum("t", parts((topic("t", channel("c")), HERE)))
    assert "delivery_msg_count" not in plain["channels"][0]


def test_clients_stand_by_node_and_the_nearest_first() -> None:
    def client(name: str, region: str, zone: str) -> dict[str, Any]:
        return {"client_id": name, "topology_region": region, "topology_zone": zone}

    here = [client("far", "r2", "z1"), client("zone", "r1", "z1"), client("region", "r1", "z2")]
    there = [client("other", "r1", "z1")]
    summed = api_objects.channel_sum(
        "t",
        [
            api_objects.channel_part(channel("c", clients=there), "t", THERE, 1000.0),
            api_objects.channel_part(channel("c", clients=here), "t", HERE, 1000.0),
        ],
    )
    assert [c["client_id"] for c in summed["clients"]] == ["zone", "region", "far", "other"]
    assert summed["clients"][0]["node_topology_zone"] == "z1"


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic_name": 3},
        {"depth": "x"},
        {"depth": True},
        {"channels": {}},
        {"channels": [3]},
        {"channels": [{}]},
        {"e2e_processing_latency": {"count": 1, "percentiles": [{"quantile": "x", "value": 1}]}},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        api_objects.topic_part(topic("t") | wrong, HERE, 0.0)
