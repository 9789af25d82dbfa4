"""Staging and publishing over HTTP against a real daemon (R19)."""

from __future__ import annotations

import time

import pytest

from penstock.wire import commands
from tests.daemon import RESPONSE, Nsqd
from tests.staging import ATTEMPT, HttpQuery, deferred, plain

OTHER = "f" * 32


@pytest.fixture
def query(nsqd: Nsqd) -> HttpQuery:
    return HttpQuery(nsqd)


def make_channel(nsqd: Nsqd, topic: str) -> None:
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    assert nsqd.post(f"/channel/create?topic={topic}&channel=c").status == 200


def consume(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    with nsqd.connect() as raw:
        assert raw.command(commands.sub(topic, "c")) == (RESPONSE, b"OK")
        raw.send(commands.rdy(2500))
        found = []
        for _ in range(count):
            message = raw.message()
            found.append(message.body)
            raw.send(commands.fin(message.id))
        assert raw.silent(0.1)
        return found


def test_a_batch_is_staged_decided_published_and_consumed(query: HttpQuery) -> None:
    """R19: the way of a batch, twice through each step."""
    nsqd = query.nsqd
    make_channel(nsqd, "t")
    for _ in range(2):
        assert query.put(0, "t", plain(b"a", b"b")).json == {"part": 0, "count": 2}
    assert query.put(1, "t", plain(b"c")).json == {"part": 1, "count": 1}
    assert nsqd.get("/staging").json[0]["sealed"] is False
    node = nsqd.get("/info").json["node_uuid"]
    for _ in range(2):
        assert query.seal(2, 3).json == {"node": node, "count": 3}
    (staged,) = nsqd.get("/staging").json
    assert staged.pop("age_ms") >= 0
    assert staged == {
        "query": "q",
        "batch": 0,
        "partition": 0,
        "attempt": ATTEMPT,
        "size": 23,
        "count": 3,
        "sealed": True,
    }
    winner = {"node": node, "partition": 0, "attempt": ATTEMPT, "count": 3}
    told = query.post("decide", batch=0, winners=[winner])
    assert told.json == {"winners": [winner], "recorded": True}
    told = query.post("decide", batch=0, winners=[])
    assert told.json == {"winners": [winner], "recorded": False}
    assert nsqd.channel("t", "c")["depth"] == 0
    assert query.publish(0, (0, ATTEMPT)).json == {"count": 3, "already": False}
    assert query.publish(0, (0, ATTEMPT)).json == {"count": 3, "already": True}
    assert nsqd.get("/staging").json == []
    assert consume(nsqd, "t", 3) == [b"a", b"b", b"c"]


def test_rows_of_many_partitions_and_topics_come_in_order(query: HttpQuery) -> None:
    """R19: in order of (partition, part); topics that are missing are made."""
    for partition in (1, 0):
        for part in (1, 0):
            for topic in ("x", "y"):
                number = 2 * part + (topic == "y")
                body = plain(*(f"{topic}{partition}{part}{i}".encode() for i in range(3)))
                assert query.put(number, topic, body, partition=partition).status == 200
        assert query.seal(4, 12, partition=partition).status == 200
    assert query.publish(0, (1, ATTEMPT), (0, ATTEMPT)).json == {"count": 24, "already": False}
    for topic in ("x", "y"):
        make_channel(query.nsqd, topic)
        wanted = [
            f"{topic}{p}{part}{i}".encode() for p in (0, 1) for part in (0, 1) for i in (0, 1, 2)
        ]
        assert consume(query.nsqd, topic, 12) == wanted


def test_deferred_rows_come_when_they_are_due(query: HttpQuery) -> None:
    """R16, R19."""
    make_channel(query.nsqd, "t")
    now_ns = time.time_ns()
    body = deferred((now_ns + 700_000_000, b"later"), (now_ns - 5, b"now"))
    assert query.put(0, "t", body, deferred="true").json == {"part": 0, "count": 2}
    assert query.seal(1, 2).status == 200
    assert query.publish(0, (0, ATTEMPT)).json == {"count": 2, "already": False}
    assert consume(query.nsqd, "t", 2) == [b"now", b"later"]
    assert time.time_ns() >= now_ns + 700_000_000


def test_what_is_not_published_goes_with_the_batch(query: HttpQuery) -> None:
    """R19: other attempts, and lower batches, are discarded; late ones are refused."""
    for batch, attempt in ((0, ATTEMPT), (1, ATTEMPT), (1, OTHER), (2, ATTEMPT)):
        assert query.put(0, "t", plain(b"x"), batch=batch, attempt=attempt).status == 200
        assert query.seal(1, 1, batch=batch, attempt=attempt).status == 200
    assert query.publish(1, (0, OTHER)).json == {"count": 1, "already": False}
    assert [staged["batch"] for staged in query.nsqd.get("/staging").json] == [2]
    late = query.put(0, "t", plain(b"x"), batch=1)
    assert (late.status, late.json["message"]) == (409, "BATCH_PUBLISHED")
    assert query.publish(0, (0, ATTEMPT)).json == {"count": 0, "already": True, "old": True}
    differs = query.publish(1, (0, ATTEMPT))
    assert (differs.status, differs.json["message"]) == (409, "WINNERS_DIFFER")
    old = query.post("decide", batch=3, winners=[]).json
    assert old == {"winners": [], "recorded": True}
    old = query.post("decide", batch=2, winners=[]).json
    assert old == {"winners": [], "recorded": False, "old": True}


def test_the_first_coordinator_stays_also_over_a_restart(query: HttpQuery) -> None:
    """R19."""
    nsqd = query.nsqd
    node = nsqd.get("/info").json["node_uuid"]
    assert nsqd.get("/staging/coordinator?query=q").status == 404
    first = {"coordinator": node, "address": "a:1"}
    assert query.post("coordinator", **first).json == first
    other = "00000000-0000-0000-0000-000000000001"
    assert query.post("coordinator", coordinator=other, address="b:2").json == first
    nsqd.kill()
    nsqd.start()
    assert nsqd.get("/staging/coordinator?query=q").json == first
    elsewhere = HttpQuery(nsqd, "elsewhere")
    elsewhere.post("coordinator", coordinator=other, address="b:2")
    refused = elsewhere.post("decide", batch=0, winners=[])
    assert (refused.status, refused.json["message"]) == (409, "NOT_COORDINATOR")


def test_an_aborted_staging_is_gone_but_never_a_decided_one(query: HttpQuery) -> None:
    """R19."""
    nsqd = query.nsqd
    node = nsqd.get("/info").json["node_uuid"]
    for partition in (0, 1):
        assert query.put(0, "t", plain(b"x"), partition=partition).status == 200
        assert query.seal(1, 1, partition=partition).status == 200
    winner = {"node": node, "partition": 0, "attempt": ATTEMPT, "count": 1}
    query.post("decide", batch=0, winners=[winner])
    names = [{"partition": p, "attempt": ATTEMPT} for p in (0, 1, 2)]
    assert query.post("abort", batch=0, stagings=names).json == {"discarded": 1}
    assert [staged["partition"] for staged in nsqd.get("/staging").json] == [0]
