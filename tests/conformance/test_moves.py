"""Moving buried messages over HTTP, on a real nsqd: POST /channel/move (R25)."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Client, publish
from tests.support.daemon import Nsqd
from tests.support.waits import eventually


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("moves")) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def set_policy(nsqd: Nsqd, place: str, **keys: object) -> None:
    assert nsqd.http("PUT", f"/policy?{place}", json.dumps(keys).encode()).status == 200


def poison(nsqd: Nsqd, topic: str, count: int, **keys: object) -> list[str]:
    """``count`` messages that fail once, and are buried unless the policy says else; their ids."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    set_policy(nsqd, f"topic={topic}&channel=c", max_attempts=1, **keys)
    publish(nsqd, topic, *[b"%d" % i for i in range(count)])
    with Client.of(nsqd).sub(topic, "c", ready=2500) as client:
        messages = client.messages(count)
        for message in messages:
            client.req(message)
        eventually(lambda: waiting(nsqd, topic) == 0)
    return [message.id.decode() for message in messages]


def waiting(nsqd: Nsqd, topic: str) -> int:
    (channel,) = nsqd.stats(f"&topic={topic}")["topics"][0]["channels"]
    return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])


def buried(nsqd: Nsqd, topic: str) -> int:
    return int(nsqd.get(f"/channel/dead?topic={topic}&channel=c&count=1").json["count"])


def move(nsqd: Nsqd, topic: str, query: str = "", ids: list[str] | None = None) -> Any:
    body = json.dumps({"ids": ids}).encode() if ids is not None else b""
    return nsqd.post(f"/channel/move?topic={topic}&channel=c&to={topic}.other{query}", body)


def consumed(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    with Client.of(nsqd).sub(topic, "again", ready=2500) as client:
        messages = client.finish_all(count)
        assert client.quiet(0.1)
        return [message.body for message in messages]


def test_failed_messages_are_consumed_from_the_dead_topic(nsqd: Nsqd) -> None:
    poison(nsqd, "auto", 3, on_max_attempts="topic")
    eventually(lambda: buried(nsqd, "auto") == 0)
    assert consumed(nsqd, "auto.c.dead", 3) == [b"0", b"1", b"2"]
    page = nsqd.get("/metrics").body.decode()
    assert 'penstock_channel_moved_total{topic="auto",channel="c"} 3' in page
    assert 'penstock_channel_move_failures_total{topic="auto",channel="c"} 0' in page


def test_chosen_messages_are_moved_by_hand(nsqd: Nsqd) -> None:
    ids = poison(nsqd, "hand", 5)
    assert move(nsqd, "hand", ids=[ids[3], ids[1], "0" * 16]).json == {"moved": 2, "left": 3}
    assert move(nsqd, "hand", "&count=1").json == {"moved": 1, "left": 2}
    assert move(nsqd, "hand", "&reason=expired").json == {"moved": 0, "left": 2}
    assert move(nsqd, "hand", "&reason=attempts").json == {"moved": 2, "left": 0}
    assert consumed(nsqd, "hand.other", 5) == [b"1", b"3", b"0", b"2", b"4"]


def test_thousands_are_moved_at_once_and_survive_a_kill(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        poison(nsqd, "many", 2400)
        assert move(nsqd, "many").json == {"moved": 2400, "left": 0}
        nsqd.kill()
        nsqd.start()
        assert buried(nsqd, "many") == 0 and waiting(nsqd, "many") == 0
        assert sorted(consumed(nsqd, "many.other", 2400)) == sorted(b"%d" % i for i in range(2400))


def test_kills_in_the_middle_move_each_message_once(tmp_path: Path) -> None:
    """R25, with kill -9: by the policy, and by hand."""
    chosen = random.Random(7)
    with Nsqd(tmp_path) as nsqd:
        for topic, keys in (("policy", {"on_max_attempts": "topic"}), ("byhand", {})):
            poison(nsqd, topic, 1, **keys)
        published = {b"0"}
        for life in range(8):
            bodies = [b"%d.%d" % (life, i) for i in range(300)]
            for topic in ("policy", "byhand"):
                publish(nsqd, topic, *bodies)
            published |= set(bodies)
            until_s = time.monotonic() + chosen.uniform(0.05, 0.6)
            moving = threading.Thread(target=keep_moving, args=(nsqd, until_s))
            moving.start()
            fail_until(nsqd, until_s)
            nsqd.kill()
            moving.join()
            nsqd.start()
        eventually(lambda: fail_until(nsqd, time.monotonic() + 0.3) == 0)
        assert move(nsqd, "byhand").json["left"] == 0
        eventually(lambda: buried(nsqd, "policy") == 0)
        for topic in ("policy.c.dead", "byhand.other"):
            found = consumed(nsqd, topic, len(published))
            assert sorted(found) == sorted(published), topic
        assert "Traceback" not in nsqd.log


def keep_moving(nsqd: Nsqd, until_s: float) -> None:
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError, http.client.HTTPException):
            move(nsqd, "byhand")


def fail_until(nsqd: Nsqd, until_s: float) -> int:
    """Requeue what comes, until a time; returns what is left to be delivered."""
    with Client.of(nsqd) as one, Client.of(nsqd) as other:
        one.sub("policy", "c", ready=50)
        other.sub("byhand", "c", ready=50)
        while time.monotonic() < until_s:
            for client in (one, other):
                for message in client.arrived(0.01, 1):
                    client.req(message)
        return waiting(nsqd, "policy") + waiting(nsqd, "byhand")


def test_a_rate_goes_on_by_itself_and_can_be_stopped(nsqd: Nsqd) -> None:
    poison(nsqd, "slow", 50)
    answer = move(nsqd, "slow", "&rate=20").json
    assert answer["moving"] == answer["left"] == 50
    eventually(lambda: buried(nsqd, "slow") < 48)
    stopped = move(nsqd, "slow", "&stop=true").json
    assert 0 < stopped["moved"] < 50
    assert move(nsqd, "slow").json["left"] == 0
    assert len(consumed(nsqd, "slow.other", 50)) == 50
    (channel,) = nsqd.stats("&topic=slow")["topics"][0]["channels"]
    assert (channel["moved_total"], channel["kicked_total"]) == (50, 0)


def test_a_full_topic_leaves_the_rest_buried(nsqd: Nsqd) -> None:
    """R20, R25: by hand the error has both counts; by policy it is tried again."""
    poison(nsqd, "full", 3)
    nsqd.post("/topic/create?topic=full.other")
    nsqd.post("/channel/create?topic=full.other&channel=again")
    set_policy(nsqd, "topic=full.other", max_messages=1)
    publish(nsqd, "full.other", b"first")
    reply = move(nsqd, "full")
    assert (reply.status, reply.json) == (
        507,
        {
            "message": "TOPIC_FULL",
            "detail": "topic is full (max_messages)",
            "moved": 0,
            "left": 3,
        },
    )
    set_policy(nsqd, "topic=full&channel=c", on_max_attempts="topic", dead_topic="full.other")
    eventually(lambda: "failed messages stay buried: topic is full" in nsqd.log)
    assert buried(nsqd, "full") == 3
    assert consumed(nsqd, "full.other", 1) == [b"first"]
    eventually(lambda: buried(nsqd, "full") == 0)
    assert consumed(nsqd, "full.other", 3) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("topic=bad&channel=c", 400, "MISSING_ARG_TO"),
        ("topic=bad&channel=c&to=", 400, "INVALID_TOPIC"),
        ("topic=bad&channel=c&to=no%20name", 400, "INVALID_TOPIC"),
        ("topic=bad&channel=c&to=" + "x" * 65, 400, "INVALID_TOPIC"),
        ("topic=bad&channel=c&to=bad", 409, "SAME_TOPIC"),
        ("topic=bad&channel=c&to=x%23ephemeral", 409, "EPHEMERAL_TOPIC"),
        ("topic=none&channel=c&to=x", 404, "TOPIC_NOT_FOUND"),
        ("topic=bad&channel=none&to=x", 404, "CHANNEL_NOT_FOUND"),
        ("topic=bad&channel=c&to=x&rate=0", 400, "INVALID_ARG_RATE"),
        ("topic=bad&channel=c&to=x&count=-1", 400, "INVALID_ARG_COUNT"),
        ("topic=bad&channel=c&to=x&reason=none", 400, "INVALID_ARG_REASON"),
        ("topic=bad&channel=c&to=x&stop=maybe", 400, "INVALID_STOP"),
    ],
)
def test_wrong_requests_are_refused(nsqd: Nsqd, query: str, status: int, message: str) -> None:
    nsqd.post("/topic/create?topic=bad")
    nsqd.post("/channel/create?topic=bad&channel=c")
    reply = nsqd.post(f"/channel/move?{query}")
    assert (reply.status, reply.json["message"]) == (status, message)
    assert ("detail" in reply.json) == (
        message in ("INVALID_TOPIC", "SAME_TOPIC", "EPHEMERAL_TOPIC")
    )
    topics = {topic["topic_name"] for topic in nsqd.stats()["topics"]}
    assert not topics & {"x", "x#ephemeral"}


def test_wrong_ids_are_refused(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=bad")
    nsqd.post("/channel/create?topic=bad&channel=c")
    for body in (b"x", b"[]", b'{"ids": []}', b'{"ids": [1]}', b'{"ids": ["zz"]}', b'{"id": []}'):
        reply = nsqd.post("/channel/move?topic=bad&channel=c&to=x", body)
        assert reply.status == 400, body
