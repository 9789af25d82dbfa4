"""Staging and publishing over HTTP against a real daemon (R19)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.support.daemon import RESPONSE, Nsqd
from tests.support.staging import ATTEMPT, HttpQuery, deferred, plain

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
        "size": 81,
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


def test_the_newest_decision_is_told_with_its_note(query: HttpQuery) -> None:
    """R43: a note is kept with the decision, across kill -9 and a snapshot of the ledger."""
    nsqd = query.nsqd
    node = nsqd.get("/info").json["node_uuid"]
    target = "/staging/decision?query=q"
    missing = nsqd.get(target)
    assert (missing.status, missing.json) == (404, {"message": "NO_DECISION"})
    assert query.put(0, "t", plain(b"a")).status == 200
    assert query.seal(1, 1).status == 200
    assert nsqd.get(target).status == 404
    note = json.dumps({"ends": {"t": 1}, "text": 'ä "\u2028'})
    winner = {"node": node, "partition": 0, "attempt": ATTEMPT, "count": 1}
    assert query.post("decide", batch=0, winners=[winner], note=note).status == 200
    assert query.post("decide", batch=0, winners=[winner], note="other").status == 200
    nsqd.kill()
    nsqd.start()
    told = {"query": "q", "batch": 0, "note": note, "published": False, "winners": [winner]}
    assert nsqd.get(target).json == told
    assert query.publish(0, (0, ATTEMPT)).status == 200
    assert nsqd.get(target).json == {**told, "published": True}
    elsewhere = {**winner, "node": "00000000-0000-0000-0000-000000000001"}
    assert query.post("decide", batch=1, winners=[elsewhere], note="x").status == 200
    assert nsqd.get(target).json["published"] is False, "the other node may not have published it"
    big = "y" * 700_000
    for batch in (2, 3, 4, 5):
        assert query.post("decide", batch=batch, winners=[], note=big + str(batch)).status == 200
    nsqd.kill()
    assert (nsqd.data_path / "penstock/staging/ledger").stat().st_size < 3 * len(big)
    nsqd.start()
    newest = nsqd.get(target).json
    assert (newest["batch"], newest["note"], newest["published"]) == (5, big + "5", True)
    assert query.post("decide", batch=6, winners=[]).status == 200
    assert nsqd.get(target).json["note"] is None
    assert query.post("reset").status == 200
    assert nsqd.get(target).status == 404


@pytest.mark.parametrize("note", [1, True, ["x"], {"a": 1}, "\ud800"])
def test_a_note_that_is_no_text_is_refused(query: HttpQuery, note: object) -> None:
    reply = query.post("decide", batch=0, winners=[], note=note)
    assert (reply.status, reply.json["message"]) == (400, "INVALID_NOTE")
    assert query.nsqd.get("/staging/decision?query=q").status == 404


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


# Wrong requests

GOOD = {"query": "q", "batch": "0", "partition": "0", "attempt": ATTEMPT}
PART = {**GOOD, "part": "0", "topic": "t"}
SEAL = {**GOOD, "parts": "1", "count": "1"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd with small limits."""
    folder = tmp_path_factory.mktemp("staging")
    with Nsqd(folder, "--max-msg-size=1000", "--max-staging-bytes=5000") as daemon:
        yield daemon


def ask(nsqd: Nsqd, method: str, path: str, fields: dict[str, str], body: bytes = b"") -> str:
    """Status and code of an error."""
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    reply = nsqd.http(method, f"{path}?{query}", body)
    return f"{reply.status} {reply.json['message']}"


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("query", None, "MISSING_ARG_QUERY"),
        ("query", "", "INVALID_ARG_QUERY"),
        ("query", "a%20b", "INVALID_ARG_QUERY"),
        ("query", "a" * 201, "INVALID_ARG_QUERY"),
        ("batch", None, "MISSING_ARG_BATCH"),
        ("batch", "-1", "INVALID_ARG_BATCH"),
        ("batch", str(1 << 63), "INVALID_ARG_BATCH"),
        ("batch", "x", "INVALID_ARG_BATCH"),
        ("partition", None, "MISSING_ARG_PARTITION"),
        ("partition", str(1 << 31), "INVALID_ARG_PARTITION"),
        ("attempt", None, "MISSING_ARG_ATTEMPT"),
        ("attempt", "abc", "INVALID_ARG_ATTEMPT"),
        ("attempt", "g" * 32, "INVALID_ARG_ATTEMPT"),
    ],
)
def test_a_staging_must_be_named_well(
    small: Nsqd, name: str, value: str | None, error: str
) -> None:
    for method, path, good in (("PUT", "part", PART), ("POST", "seal", SEAL)):
        fields = {key: given for key, given in good.items() if key != name}
        if value is not None:
            fields[name] = value
        assert ask(small, method, f"/staging/{path}", fields, plain(b"a")) == f"400 {error}"


@pytest.mark.parametrize(
    ("fields", "body", "error"),
    [
        ({"part": "65536"}, plain(b"a"), "400 INVALID_ARG_PART"),
        ({"part": ""}, plain(b"a"), "400 INVALID_ARG_PART"),
        ({"topic": "no!"}, plain(b"a"), "400 INVALID_TOPIC"),
        ({"topic": "t%23ephemeral"}, plain(b"a"), "400 INVALID_TOPIC"),
        ({}, b"", "400 BAD_BODY"),
        ({}, plain(b"a") + b"x", "400 BAD_BODY"),
        ({}, plain(b""), "400 BAD_MESSAGE"),
        ({}, plain(b"abcdef", b""), "400 BAD_MESSAGE"),
        ({}, plain(b"x" * 1001), "413 MSG_TOO_BIG"),
        ({"deferred": "true"}, deferred((-1, b"a")), "400 INVALID_DEFER"),
        ({"deferred": "true"}, deferred((1 << 62, b"a")), "400 INVALID_DEFER"),
        ({"deferred": "true"}, plain(b"a"), "400 BAD_BODY"),
        ({}, bytes((8 << 20) + 1), "413 BODY_TOO_BIG"),
        ({}, plain(*[b"x"] * 500_000), "413 PART_TOO_BIG"),
        ({}, plain(*[b"x" * 900] * 6), "507 STAGING_FULL"),
    ],
)
def test_a_wrong_part_is_refused(
    small: Nsqd, fields: dict[str, str], body: bytes, error: str
) -> None:
    assert ask(small, "PUT", "/staging/part", {**PART, **fields}, body) == error
    assert small.get("/staging").json == []


WINNER = {"node": "00000000-0000-0000-0000-000000000001", "partition": 0, "attempt": ATTEMPT}
DECIDED = {**WINNER, "count": 1}


@pytest.mark.parametrize(
    ("path", "told", "error"),
    [
        ("decide", b"", "400 INVALID_BODY"),
        ("decide", b"[]", "400 INVALID_BODY"),
        ("decide", {"query": 1, "batch": 0, "winners": []}, "400 INVALID_QUERY"),
        ("decide", {"batch": 0, "winners": []}, "400 INVALID_QUERY"),
        ("decide", {"query": "q", "winners": []}, "400 INVALID_BATCH"),
        ("decide", {"query": "q", "batch": True, "winners": []}, "400 INVALID_BATCH"),
        ("decide", {"query": "q", "batch": -1, "winners": []}, "400 INVALID_BATCH"),
        ("decide", {"query": "q", "batch": 0}, "400 INVALID_WINNERS"),
        ("decide", {"query": "q", "batch": 0, "winners": [1]}, "400 INVALID_WINNERS"),
        ("decide", {"query": "q", "batch": 0, "winners": [WINNER]}, "400 INVALID_COUNT"),
        ("decide", {"query": "q", "batch": 0, "winners": [DECIDED] * 2}, "400 INVALID_WINNERS"),
        (
            "decide",
            {"query": "q", "batch": 0, "winners": [{**DECIDED, "node": "x"}]},
            "400 INVALID_NODE",
        ),
        (
            "publish",
            {"query": "q", "batch": 0, "winners": [{"partition": 0, "attempt": "x"}]},
            "400 INVALID_ATTEMPT",
        ),
        (
            "publish",
            {"query": "q", "batch": 0, "winners": [{"attempt": ATTEMPT}]},
            "400 INVALID_PARTITION",
        ),
        ("publish", {"query": "q", "batch": 0, "winners": [WINNER] * 2}, "400 INVALID_WINNERS"),
        ("publish", {"query": "q", "batch": 0, "winners": [WINNER]}, "404 STAGING_NOT_FOUND"),
        ("abort", {"query": "q", "batch": 0}, "400 INVALID_STAGINGS"),
        ("coordinator", {"query": "q"}, "400 INVALID_COORDINATOR"),
        (
            "coordinator",
            {"query": "q", "coordinator": WINNER["node"], "address": 5},
            "400 INVALID_ADDRESS",
        ),
    ],
)
def test_a_wrong_body_is_refused(small: Nsqd, path: str, told: object, error: str) -> None:
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    assert ask(small, "POST", f"/staging/{path}", {}, body) == error


def test_errors_of_stagings_say_what_is_wrong(query: HttpQuery) -> None:
    assert query.put(1, "t", plain(b"a")).status == 200
    reply = query.seal(2, 2)
    assert (reply.status, reply.json) == (409, {"message": "MISSING_PARTS", "detail": "parts [0]"})


def test_staging_needs_the_role_publish(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("publish token-of-a-publisher\nmetrics token-of-a-watcher\n")
    with Nsqd(tmp_path / "nsqd", f"--http-auth-token-file={tokens}") as nsqd:
        for path in ("/staging", "/staging/coordinator?query=q"):
            for token, status in (("publisher", (200, 404)), ("watcher", (403,)), ("", (401,))):
                headers = {"Authorization": f"Bearer token-of-a-{token}"}
                assert nsqd.http("GET", path, headers=headers).status in status


def test_staging_is_seen_in_the_metrics(query: HttpQuery) -> None:
    assert query.put(0, "t", plain(b"a", b"b")).status == 200
    page = query.nsqd.get("/metrics").text
    assert "penstock_stagings 1\n" in page
    assert "penstock_staging_bytes 43\n" in page
    assert query.seal(1, 2).status == 200
    assert query.publish(0, (0, ATTEMPT)).status == 200
    page = query.nsqd.get("/metrics").text
    assert "penstock_stagings 0\n" in page
    assert "penstock_staged_messages_total 2\n" in page
    assert "penstock_staging_published_messages_total 2\n" in page
