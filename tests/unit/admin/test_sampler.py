"""The sampler: who is asked, who is down, what is remembered, and what nonsense does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.admin.cluster import Cluster
from penstock.admin.details import CLIENT_COUNT_MAX, Details
from penstock.admin.history import History
from penstock.admin.sample import Sample
from penstock.admin.sampler import (
    INACTIVE_QUERIED_MAX,
    INACTIVE_S,
    NODE_COUNT_MAX,
    REFRESH_S,
    REMEMBER_S,
    Sampler,
)
from penstock.clock import ManualClock
from tests.unit.admin.fakes import FakeUpstream
from tests.unit.admin.test_sample import channel, topic

SECOND = 1_000_000_000
A, B, C = "10.0.0.1:4151", "10.0.0.2:4151", "10.0.0.3:4151"
L, M = "10.0.1.1:4161", "10.0.1.2:4161"


class World:
    def __init__(self, *, lookupds: tuple[str, ...] = (), nsqds: tuple[str, ...] = ()) -> None:
        self.upstream = FakeUpstream()
        self.clock = ManualClock()
        self.history = History(5.0)
        cluster = Cluster(self.upstream, lambda: lookupds, lambda: nsqds)  # type: ignore[arg-type]
        self.sampler = Sampler(cluster, self.history, 5.0, self.clock)

    def sample(self) -> Sample:
        self.clock.advance(5 * SECOND)
        return asyncio.run(self.sampler.sample())


def test_nodes_are_found_through_nsqlookupds_and_asked() -> None:
    world = World(lookupds=(L, M))
    world.upstream.add_nsqd(A, topic("t", channel("c", depth=2)))
    world.upstream.add_nsqd(B, topic("t", channel("c", depth=3)), own=False)
    world.upstream.add_lookupd(L, A, B, topics=("inactive",))
    world.upstream.add_lookupd(M, A)
    sample = world.sample()
    assert sample.warnings == []
    assert sample.topics["t"].channels["c"].depth == 5
    assert (sample.nodes[A].own, sample.nodes[B].own) == (True, False)
    assert (sample.nodes[A].lookupds, sample.nodes[B].lookupds) == ((L, M), (L,))
    assert sample.inactive == {"inactive": ["c"]}
    assert [(part.address, part.node_count, part.topic_count) for part in sample.lookupds] == [
        (L, 2, 2),
        (M, 1, 1),
    ]


def test_clients_are_not_asked_for_and_info_only_once() -> None:
    world = World(nsqds=(A,))
    world.upstream.add_nsqd(A, topic("t"))
    for _ in range(3):
        world.sample()
    queries = [query for _, path, query in world.upstream.asked if path == "/stats"]
    assert queries == [{"format": "json", "include_clients": "false"}] * 3
    infos = [path for _, path, _ in world.upstream.asked if path == "/info"]
    assert len(infos) == 2, "who it is, and whether it is ours"
    world.upstream.add_nsqd(A, topic("t"), own=False, start_time=99)
    assert world.sample().nodes[A].own is False, "started anew, it may be another"


def test_a_node_that_falls_is_down_and_comes_back() -> None:
    world = World(lookupds=(L,))
    world.upstream.add_nsqd(A, topic("t"))
    world.upstream.add_nsqd(B, topic("t"))
    world.upstream.add_lookupd(L, A, B)
    world.sample()
    fallen = world.upstream.nsqds.pop(B)
    world.upstream.add_lookupd(L, A)
    sample = world.sample()
    assert sample.warnings == [f"{B}: connection refused"]
    down = sample.nodes[B]
    assert (down.answered, down.error, down.own) == (False, "connection refused", True)
    assert (down.lookupds, down.hostname) == ((), "10.0.0.2.local")
    assert sample.topics["t"].nodes == [A]
    world.upstream.nsqds[B] = fallen
    assert world.sample().nodes[B].answered


def test_a_node_that_stays_away_is_forgotten() -> None:
    world = World(lookupds=(L,))
    world.upstream.add_nsqd(A)
    world.upstream.add_nsqd(B)
    world.upstream.add_lookupd(L, A, B)
    world.sample()
    del world.upstream.nsqds[B]
    world.upstream.add_lookupd(L, A)
    world.clock.advance((REMEMBER_S - 10) * SECOND)
    assert set(world.sample().nodes) == {A, B}
    world.clock.advance(10 * SECOND)
    world.sample()
    assert set(world.sample().nodes) == {A}


def test_a_node_named_by_a_flag_is_never_forgotten() -> None:
    world = World(nsqds=(A, B))
    world.upstream.add_nsqd(A)
    for _ in range(3):
        sample = world.sample()
        assert (sample.nodes[B].answered, sample.nodes[B].error) == (False, "connection refused")
        world.clock.advance(REMEMBER_S * SECOND)


def test_a_nsqlookupd_that_falls_is_a_warning() -> None:
    world = World(lookupds=(L, M))
    world.upstream.add_nsqd(A, topic("t"))
    world.upstream.add_lookupd(L, A)
    sample = world.sample()
    assert sample.warnings == [f"{M}: connection refused"]
    assert [part.answered for part in sample.lookupds] == [True, False]
    assert "t" in sample.topics
    del world.upstream.lookupds[L]
    sample = world.sample()
    assert len(sample.warnings) == 2
    assert "t" in sample.topics, "the nodes are known and still answer"


@pytest.mark.parametrize(
    "nonsense", [None, [], "x", {}, {"topics": 3}, {"topics": [{"topic_name": 3}]}, {"topics": [3]}]
)
def test_nonsense_of_one_daemon_spoils_nothing(nonsense: Any) -> None:
    world = World(nsqds=(A, B))
    world.upstream.add_nsqd(A, topic("t"))
    world.upstream.add_nsqd(B)
    world.upstream.nsqds[B]["/stats"] = nonsense if nonsense is not None else 0
    sample = world.sample()
    assert sample.nodes[A].answered and not sample.nodes[B].answered
    assert sample.warnings[0].startswith(f"{B}: invalid statistics")


def test_nonsense_of_a_nsqlookupd_is_a_warning() -> None:
    for answer in (3, {"producers": 3}, {"producers": [3]}, {"producers": [{"hostname": "x"}]}):
        world = World(lookupds=(L, M))
        world.upstream.add_nsqd(A, topic("t"))
        world.upstream.add_lookupd(L, A)
        world.upstream.add_lookupd(M)
        world.upstream.lookupds[M]["/nodes"] = answer
        sample = world.sample()
        assert "t" in sample.topics
        assert len(sample.warnings) == 1 and "invalid" in sample.warnings[0]


def test_channels_of_inactive_topics_are_asked_for_a_few_at_a_time() -> None:
    world = World(lookupds=(L,))
    names = tuple(f"i{n:03d}" for n in range(2 * INACTIVE_QUERIED_MAX + 5))
    world.upstream.add_lookupd(L, topics=names)

    def asked() -> list[str]:
        found = [q["topic"] for _, path, q in world.upstream.asked if path == "/channels"]
        world.upstream.asked.clear()
        return found

    assert set(world.sample().inactive) == set(names)
    assert asked() == list(names[:INACTIVE_QUERIED_MAX])
    world.sample()
    sample = world.sample()
    assert asked() == list(names[INACTIVE_QUERIED_MAX:])
    assert set(map(tuple, sample.inactive.values())) == {("c",)}
    world.sample()
    assert asked() == []
    world.sampler.refresh("i050")
    world.upstream.lookupds[L]["/channels"] = {"channels": ["c", "new"]}
    assert world.sample().inactive["i050"] == ["c", "new"]
    assert asked() == ["i050"]
    world.clock.advance(INACTIVE_S * SECOND)
    world.sample()
    assert len(asked()) == INACTIVE_QUERIED_MAX


def test_a_crowd_of_nodes_is_bounded() -> None:
    """Whoever reaches nsqlookupd may register, with new addresses every time."""
    world = World(lookupds=(L,))
    for batch in range(3):
        world.upstream.nsqds.clear()
        nodes = [f"10.{batch}.{n >> 8}.{n & 255}:4151" for n in range(600)]
        for node in nodes:
            world.upstream.add_nsqd(node)
        world.upstream.add_lookupd(L, *nodes)
        assert len(world.sample().nodes) == min(NODE_COUNT_MAX, 600 * (batch + 1))


def test_it_goes_on_by_itself_and_hurries_when_told() -> None:
    async def run() -> None:
        upstream = FakeUpstream()
        upstream.add_nsqd(A)
        cluster = Cluster(upstream, tuple, lambda: (A,))  # type: ignore[arg-type]
        sampler = Sampler(cluster, History(60.0), 60.0)
        task = asyncio.create_task(sampler.run())
        async with asyncio.timeout(5):
            first = await sampler.first()
            while sampler.newest is first:
                sampler.refresh("t")
                await asyncio.sleep(REFRESH_S / 10)
        task.cancel()

    asyncio.run(run())


# What is asked for a page alone


def clients(*numbers: int) -> list[dict[str, Any]]:
    return [{"client_id": f"c{n}", "remote_address": f"10.1.1.1:{n}"} for n in numbers]


def test_details_are_asked_once_for_all_who_look() -> None:
    world = World(nsqds=(A, B))
    for node in (A, B):
        world.upstream.add_nsqd(node, topic("t", channel("c", clients=clients(1, 2))))
    sample = world.sample()
    del world.upstream.nsqds[B]
    world.upstream.asked.clear()

    async def run() -> list[Any]:
        details = Details(world.upstream)  # type: ignore[arg-type]
        return await asyncio.gather(*(details.channel(sample, "t", "c") for _ in range(10)))

    found = asyncio.run(run())
    assert len(world.upstream.asked) == 2
    assert all(one is found[0] for one in found)
    assert [client["client_id"] for client in found[0].clients] == ["c1", "c2"]
    assert found[0].warnings == [f"{B}: connection refused"]


def test_a_crowd_of_clients_is_bounded() -> None:
    world = World(nsqds=(A,))
    world.upstream.add_nsqd(A, topic("t", channel("c", clients=clients(*range(1500)))))
    sample = world.sample()
    found = asyncio.run(Details(world.upstream).node(sample, A))  # type: ignore[arg-type]
    assert (len(found.clients), found.left_out) == (CLIENT_COUNT_MAX, 1500 - CLIENT_COUNT_MAX)


def test_a_link_of_a_client_is_no_script() -> None:
    world = World(nsqds=(A,))
    given = [
        {"auth_identity_url": "javascript:alert(1)", "client_id": 5, "user_agent": None},
        {"auth_identity_url": "https://example.com/bob"},
    ]
    world.upstream.add_nsqd(A, topic("t", channel("c", clients=given)))
    sample = world.sample()
    found = asyncio.run(Details(world.upstream).channel(sample, "t", "c"))  # type: ignore[arg-type]
    assert [client["auth_identity_url"] for client in found.clients] == [
        "",
        "https://example.com/bob",
    ]
    assert (found.clients[0]["client_id"], found.clients[0]["user_agent"]) == ("", "")


def test_deferred_messages_of_all_nodes_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_794_718_800  # on the hour
    monkeypatch.setattr("time.time", lambda: float(now_s))
    world = World(nsqds=(A, B, C))
    for node in (A, B):
        world.upstream.add_nsqd(node)
        due = [
            {"start": now_s, "length": 3600, "count": 2},
            {"start": now_s + 7200, "length": 3600, "count": 3},
            {"start": now_s + 90 * 86400, "length": 86400, "count": 1},
        ]
        shown = {"topic_name": "t", "count": 6, "due": due}
        world.upstream.nsqds[node]["/deferred"] = {"total": 6, "topics": [shown]}
    world.upstream.add_nsqd(C, own=False)
    sample = world.sample()
    found = asyncio.run(Details(world.upstream).deferred(sample))  # type: ignore[arg-type]
    assert (found.total, found.silent, found.warnings) == (12, [C], [])
    assert [span["count"] for span in found.spans] == [4, 6, 0, 0, 0, 2]
    [row] = found.topics
    assert (row["topic"], row["count"], row["next_due_ms"]) == ("t", 12, now_s * 1000)
    assert [hour["count"] for hour in found.hours[:4]] == [4, 0, 6, 0]
    assert len(found.hours) == 48
