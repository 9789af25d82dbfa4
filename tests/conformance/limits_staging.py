"""Trials of the limits of staged rows."""

from __future__ import annotations

from tests.support.limits import Daemons, trial, tried_by
from tests.support.staging import HttpQuery, plain

NODE = "00000000-0000-0000-0000-000000000001"


@trial("A part of staged rows", "8 MiB, and 16 MiB with 34 bytes around each row")
def _(daemons: Daemons) -> None:
    query = HttpQuery(daemons.nsqd("--max-staging-bytes=20000000"), "parts")
    assert query.put(0, "t", plain(*[b"x" * 1_040_000] * 8)).status == 200
    assert query.put(1, "t", bytes((8 << 20) + 1)).status == 413
    assert query.put(1, "t", plain(*[b"x"] * 500_000)).status == 413


@trial("Staged rows of a node", "10 GiB, 100,000 stagings, a million parts")
def _(daemons: Daemons) -> None:
    query = HttpQuery(daemons.nsqd("--max-staging-bytes=5000"), "room")
    assert query.put(0, "t", plain(*[b"x" * 900] * 4)).status == 200
    reply = query.put(1, "t", plain(*[b"x" * 900] * 4))
    assert (reply.status, reply.json["message"]) == (507, "STAGING_FULL")


@trial("Winners of a decision", "20,000")
def _(daemons: Daemons) -> None:
    query = HttpQuery(daemons.nsqd(), "winners")
    winners = [{"node": NODE, "partition": n, "attempt": f"{n:032x}", "count": 1} for n in range(2)]
    assert query.post("decide", batch=0, winners=winners).status == 200
    short = [{"partition": 0, "attempt": "0" * 32}] * 20_001
    reply = query.post("publish", batch=1, winners=short)
    assert (reply.status, reply.json["message"]) == (400, "INVALID_WINNERS")


@trial("The note of a decision", "1 MiB, 64 MiB together")
def _(daemons: Daemons) -> None:
    query = HttpQuery(daemons.nsqd(), "notes")
    largest = "\u0001" * (1 << 20)  # six bytes each in JSON
    assert query.post("decide", batch=0, winners=[], note=largest).status == 200
    assert query.nsqd.get("/staging/decision?query=notes").json["note"] == largest
    reply = query.post("decide", batch=1, winners=[], note=largest + "x")
    assert (reply.status, reply.json["message"]) == (400, "INVALID_NOTE")
    plainest = "x" * (1 << 20)
    others = [HttpQuery(query.nsqd, f"notes-{number}") for number in range(63)]
    assert {each.post("decide", batch=0, winners=[], note=plainest).status for each in others} == {
        200
    }
    reply = HttpQuery(query.nsqd, "one-more").post("decide", batch=0, winners=[], note="x")
    assert (reply.status, reply.json["message"]) == (507, "STAGING_FULL")
    assert query.post("decide", batch=1, winners=[], note="less").status == 200
    assert HttpQuery(query.nsqd, "one-more").post("decide", batch=0, winners=[]).status == 200


tried_by(
    "A batch above the newest known one of its query",
    "1,000,000, and as many for each second since",
    "tests.conformance.test_staging_repair:"
    "test_a_batch_that_is_far_off_does_not_make_the_others_old",
)
tried_by(
    "A batch below the newest published one of its query",
    "2^40",
    "tests.conformance.test_staging_repair:test_the_highest_numbers_are_no_batches",
)
