"""Actions on a cluster of which some nodes are NSQ's own."""

from __future__ import annotations

import asyncio

import pytest

from penstock.admin.actions import Actions, Outcome
from penstock.admin.cluster import Cluster
from penstock.admin.results import describe
from tests.unit.admin.fakes import FakeUpstream
from tests.unit.admin.test_sample import topic

OURS, NSQS, LOOKUPD = "10.0.0.1:4151", "10.0.0.2:4151", "10.0.1.1:4161"


@pytest.mark.parametrize("lookupds", [(LOOKUPD,), ()], ids=["found", "given"])
def test_a_start_that_a_node_ignores_is_a_failure(lookupds: tuple[str, ...]) -> None:
    upstream = FakeUpstream()
    for address in (OURS, NSQS):
        upstream.add_nsqd(address, topic("t"), own=address == OURS)
    upstream.add_lookupd(LOOKUPD, OURS, NSQS)
    known = upstream.lookupds[LOOKUPD]
    known["/lookup"] = known["/nodes"]
    cluster = Cluster(upstream, lambda: lookupds, lambda: (OURS, NSQS))  # type: ignore[arg-type]
    actions = Actions(cluster, None)  # type: ignore[arg-type]  # finds no node by its name

    def created(start: str) -> Outcome:
        return asyncio.run(actions.create("t", "c", start=start, foreign={NSQS}))

    outcome = created("-1h")
    made = [(to, query.get("start")) for to, path, query in upstream.posted if "channel" in path]
    assert [entry for entry in made if entry[0] != LOOKUPD] == [(OURS, "-1h"), (NSQS, "-1h")]
    (failure,) = outcome.failures
    assert failure.startswith(f"{NSQS}: the channel begins with the next message there")
    result = describe({"action": "create", "topic": "t", "channel": "c"}, outcome)
    assert not result.done and result.text.endswith(", but failed on others:")
    assert created("").warning == ""
