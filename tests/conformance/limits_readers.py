"""Trials of the limits of readers by index, of stagings, and of what clients may ask for."""

from __future__ import annotations

import json
import struct

from penstock.wire import commands
from tests.support.client import Client
from tests.support.limits import Daemons, trial, tried_by

READERS = "tests.conformance.test_log_readers:"

tried_by(
    "A response that the client does not read",
    "60 s; a read by index 5 s without a byte, 2 s while others wait",
    READERS + "test_readers_that_take_nothing_stop_nobody_and_are_cut",
)
tried_by(
    "Memory of reads by index, all together",
    "256 MiB",
    READERS + "test_readers_that_take_nothing_stop_nobody_and_are_cut",
)
tried_by(
    "Waiting reads by index",
    "1,024",
    "tests.unit.engine.pull.test_reads:test_of_too_many_reads_the_greedy_reader_s_are_refused",
)
tried_by(
    "Waiting polls for the end of a log",
    "1,024",
    READERS + "test_a_crowd_that_waits_refuses_nobody",
)


@trial("Patterns of a node", "64, with 64 globs and 1,024 exceptions each")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()

    def leave(channel: str, globs: int, exceptions: int) -> tuple[int, str]:
        body = {
            "channel": channel,
            "identity": "1" * 32,
            "topics": [f"none{number:02d}.*" for number in range(globs)],
            "except": [f"{number:04d}".rjust(64, "x") for number in range(exceptions)],
        }
        reply = nsqd.post("/channel/pattern", json.dumps(body).encode())
        return reply.status, reply.json.get("message", "")

    assert leave("most", 65, 0) == (400, "INVALID_TOPICS")
    assert leave("most", 1, 1025) == (400, "INVALID_EXCEPT")
    for number in range(64):
        assert leave(f"pattern{number}", 64, 1024 if not number else 0) == (200, "")
    assert leave("most", 1, 0) == (503, "TOO_MANY_PATTERNS")
    for number in range(64):
        assert nsqd.post(f"/channel/pattern/delete?channel=pattern{number}").status == 200


@trial("A read by index", "16 MiB")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    nsqd.post("/topic/create?topic=read")
    place = nsqd.get("/log?topic=read").json
    end = place["end"]
    asked = f"/log/read?topic=read&instance={place['instance']}&start={end}&end={end}&size_max="
    assert nsqd.get(asked + str(16 << 20)).status == 200
    refused = nsqd.get(asked + str((16 << 20) + 1))
    assert (refused.status, refused.json["message"]) == (400, "INVALID_SIZE_MAX")


tried_by(
    "The name of a reader",
    "255 bytes",
    "tests.conformance.test_log_identities:test_the_name_of_a_reader_follows_it_and_is_cut",
)


@trial("One count of ranges", "1,024")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()

    def counts(count: int) -> tuple[int, str]:
        told = {"topic": "x" * 64, "instance": "0" * 16, "start": 0, "end": (1 << 54) - 1}
        reply = nsqd.post("/log/counts", json.dumps({"ranges": [told] * count}).encode())
        return reply.status, reply.json.get("message", "")

    assert counts(1024) == (200, "")
    assert counts(1025) == (400, "INVALID_RANGES")


@trial("One poll for the end of a log", "30 s, 1,024 topics")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()

    def ends(count: int, wait_ms: int) -> tuple[int, str]:
        topics = {f"t{number}": {"after": 0} for number in range(count)}
        asked = {"topics": topics, "wait_ms": wait_ms}
        reply = nsqd.post("/log/ends", json.dumps(asked).encode())
        return reply.status, reply.json.get("message", "")

    assert ends(1024, 30_000) == (200, "")  # at once: they do not exist
    assert ends(1, 30_001) == (400, "INVALID_WAIT_MS")
    assert ends(1025, 1) == (400, "INVALID_TOPICS")


@trial("The ready count of a client", "2,500")
def _(daemons: Daemons) -> None:
    with Client.of(daemons.nsqd()).sub("rdy", "c", ready=2500) as client:
        client.send(commands.rdy(2501))
        assert client.error() == "E_INVALID RDY count 2501 out of range 0-2500"


@trial("The delay of a publish", "365d")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    year_ms = 365 * 86_400_000
    assert nsqd.post(f"/pub?topic=deferred&defer={year_ms}", b"m").status == 200
    assert nsqd.post(f"/pub?topic=deferred&defer={year_ms + 1}", b"m").status == 400
    with Client.of(nsqd) as client:
        client.dpub("deferred", year_ms, b"m")
        client.send(b"DPUB deferred %d\n" % (year_ms + 1), struct.pack(">i", 1), b"m")
        assert client.error().startswith("E_INVALID DPUB timeout")


def identified(daemons: Daemons, **fields: object) -> str:
    """The error that an IDENTIFY is answered with."""
    with Client.of(daemons.nsqd()) as client:
        client.send(commands.identify(fields))
        return client.error()


@trial("The heartbeat interval of a client", "1m")
def _(daemons: Daemons) -> None:
    with Client.of(daemons.nsqd()) as client:
        client.identify(heartbeat_interval=60_000)
    assert identified(daemons, heartbeat_interval=60_001).startswith("E_BAD_BODY IDENTIFY")


@trial("The message timeout of a client", "15m")
def _(daemons: Daemons) -> None:
    with Client.of(daemons.nsqd()) as client:
        client.identify(msg_timeout=900_000)
    assert identified(daemons, msg_timeout=900_001).startswith("E_BAD_BODY IDENTIFY")


@trial("The deflate level of a client", "6")
def _(daemons: Daemons) -> None:
    with Client.of(daemons.nsqd()) as client:
        asked = {"feature_negotiation": True, "deflate": True, "deflate_level": 9}
        client.send(commands.identify(asked))
        assert json.loads(client.reply().text)["deflate_level"] == 6
