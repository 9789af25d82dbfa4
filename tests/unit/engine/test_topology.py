from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.core.window import Consumer
from penstock.engine.options import Options
from penstock.engine.topology import EXPERIMENT, GLOBAL, REGION, ZONE, NearestFirst, locality

NODE = Options(topology_zone="z", topology_region="r", enable_experiment=(EXPERIMENT,))


@dataclass
class Said:
    topology_zone: str
    topology_region: str


def consumer(near: int) -> Consumer:
    made = Consumer(None, 1)
    made.locality = near
    return made


@pytest.mark.parametrize(
    ("zone", "region", "near"),
    [("z", "r", ZONE), ("z", "other", ZONE), ("y", "r", REGION), ("y", "q", GLOBAL)],
)
def test_a_zone_is_nearer_than_a_region(zone: str, region: str, near: int) -> None:
    assert locality(NODE, Said(zone, region)) == near


def test_two_empty_names_are_equal() -> None:
    node = Options(enable_experiment=(EXPERIMENT,))
    assert locality(node, Said("", "")) == ZONE
    assert locality(NODE, Said("", "")) == GLOBAL


def test_without_the_experiment_or_an_identify_all_are_global() -> None:
    assert locality(Options(topology_zone="z"), Said("z", "")) == GLOBAL
    assert locality(NODE, None) == GLOBAL


def test_the_nearest_is_taken_first_and_equals_take_turns() -> None:
    ready = NearestFirst()
    far, region, zone, other = map(consumer, (GLOBAL, REGION, ZONE, ZONE))
    for one in (far, region, zone, other):
        ready.append(one)
    assert len(ready) == 2, "those of the zone share what waits"
    assert ready.popleft() is zone
    ready.append(zone)
    assert ready.popleft() is other
    ready.remove(zone)
    assert ready.popleft() is region
    assert len(ready) == 1
    ready.appendleft(region)
    assert [ready.popleft(), ready.popleft()] == [region, far]
    assert not ready and len(ready) == 0
