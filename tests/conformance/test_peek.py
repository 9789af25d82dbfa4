"""GET /channel/peek and /deferred of a running nsqd."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Nsqd

HOUR_S = 3600


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("data")) as running:
        yield running


def test_messages_are_shown_and_still_delivered(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=seen")
    nsqd.post("/channel/create?topic=seen&channel=c")
    before_ns = time.time_ns()
    nsqd.post("/pub?topic=seen", b"hello")
    nsqd.post("/pub?topic=seen", b"\x00\xff" * 3000)
    reply = nsqd.get("/channel/peek?topic=seen&channel=c")
    assert reply.status == 200
    first, second = reply.json["messages"]
    assert before_ns <= first.pop("timestamp") <= time.time_ns()
    id = first.pop("id")
    body = base64.b64encode(b"hello").decode()
    assert first == {"attempts": 0, "state": "queued", "size": 5, "body": body}
    assert second["size"] == 6000
    assert len(base64.b64decode(second["body"])) == 4096
    with nsqd.connect() as raw:
        raw.command(b"SUB seen c\n")
        raw.send(b"RDY 1\n")
        message = raw.message()
        assert (message.id.decode(), message.attempts, message.body) == (id, 1, b"hello")
        shown = nsqd.get("/channel/peek?topic=seen&channel=c&count=1").json["messages"]
        assert [(m["id"], m["state"], m["attempts"]) for m in shown] == [(id, "in_flight", 1)]
        raw.send(b"REQ " + message.id + b" 60000\n", b"RDY 0\n", b"NOP\n")
        deadline_s = time.monotonic() + 5
        while shown[0]["state"] != "deferred" and time.monotonic() < deadline_s:
            shown = nsqd.get("/channel/peek?topic=seen&channel=c&count=1").json["messages"]
        assert abs(shown[0]["due"] - time.time_ns() - 60_000_000_000) < 10_000_000_000


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("", 400, "MISSING_ARG_TOPIC"),
        ("topic=seen", 400, "MISSING_ARG_CHANNEL"),
        ("topic=!&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("topic=seen&channel=!", 400, "INVALID_ARG_CHANNEL"),
        ("topic=never&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("topic=seen&channel=never", 404, "CHANNEL_NOT_FOUND"),
        ("topic=seen&channel=c&count=0", 400, "INVALID_ARG_COUNT"),
        ("topic=seen&channel=c&count=101", 400, "INVALID_ARG_COUNT"),
        ("topic=seen&channel=c&count=-1", 400, "INVALID_ARG_COUNT"),
        ("topic=seen&channel=c&size_max=65537", 400, "INVALID_ARG_SIZE_MAX"),
        ("topic=seen&channel=c&size_max=x", 400, "INVALID_ARG_SIZE_MAX"),
    ],
)
def test_what_is_wrong_is_refused(nsqd: Nsqd, query: str, status: int, text: str) -> None:
    nsqd.post("/topic/create?topic=seen")
    nsqd.post("/channel/create?topic=seen&channel=c")
    reply = nsqd.get(f"/channel/peek?{query}")
    assert (reply.status, reply.json) == (status, {"message": text})


def test_deferred_messages_are_counted_by_topic_and_due_time(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        assert nsqd.get("/deferred").json == {"total": 0, "counted": True, "topics": []}
        now_s = int(time.time())
        for topic, delay_s in (("a", 30), ("b", 30), ("a", 30 * HOUR_S), ("a", 90 * 24 * HOUR_S)):
            assert nsqd.post(f"/pub?topic={topic}&defer={delay_s * 1000}", b"x").status == 200
        shown = nsqd.get("/deferred").json
        assert (shown["total"], [t["topic_name"] for t in shown["topics"]]) == (4, ["a", "b"])
        a, b = shown["topics"]
        assert (a["count"], b["count"]) == (3, 1)
        assert [(d["length"], d["count"]) for d in a["due"]] == [
            *((HOUR_S, 1), (HOUR_S, 1)),
            (24 * HOUR_S, 1),
        ]
        for due, delay_s in zip(a["due"], (30, 30 * HOUR_S, 90 * 24 * HOUR_S), strict=True):
            assert due["start"] <= now_s + delay_s + 60
            assert now_s + delay_s < due["start"] + due["length"]
        nsqd.post("/topic/empty?topic=a")
        assert nsqd.get("/deferred").json["total"] == 1
