"""Trials of the limits of what nsqd's TCP clients send and are sent."""

from __future__ import annotations

import json
import time

from penstock.wire import commands
from tests.support.bodies import numbered
from tests.support.client import Client
from tests.support.daemon import ERROR, Nsqd
from tests.support.limits import Daemons, trial, tried_by


def refusal(daemons: Daemons, sent: bytes) -> str:
    with daemons.nsqd().connect() as raw:
        kind, data = raw.command(sent)
        assert kind == ERROR and raw.closed()
        return data.decode()


def declared(size: int) -> bytes:
    return size.to_bytes(4, "big")


@trial("IDENTIFY", "64 KiB, 1,024 members and elements")
def _(daemons: Daemons) -> None:
    with Client.of(daemons.nsqd()) as client:
        client.identify(unknown=[1] * 1000)
        body = json.dumps({"unknown": "x" * 65000}).encode().ljust(65536)
        assert client.command(b"IDENTIFY\n" + declared(len(body)) + body) == b"OK"
        body = json.dumps({"user_agent": ",[{" * 10_000}).encode()
        assert client.command(b"IDENTIFY\n" + declared(len(body)) + body) == b"OK"
    for size, limit in ((65537, 65536), (5_242_880, 65536), (5_242_881, 5_242_880)):
        text = refusal(daemons, b"IDENTIFY\n" + declared(size))
        assert text == f"E_BAD_BODY IDENTIFY body too big {size} > {limit}"
    hostile = [
        json.dumps({f"k{number}": 1 for number in range(5000)}),
        json.dumps({"k": [{}] * 5000}),
        "[" * 65536,
        '{"k":' * 10_000,
    ]
    for text in hostile:
        refused = refusal(daemons, b"IDENTIFY\n" + declared(len(text)) + text.encode())
        assert refused == "E_BAD_BODY IDENTIFY failed to decode JSON body"


@trial("AUTH", "8 KiB")
def _(daemons: Daemons) -> None:
    secret = b"x" * 8192
    assert refusal(daemons, commands.auth(secret)) == "E_AUTH_DISABLED AUTH disabled"
    text = refusal(daemons, b"AUTH\n" + declared(8193))
    assert text == "E_BAD_BODY AUTH body too big 8193 > 8192"


@trial("Strings of a client: client_id, hostname, user_agent, region, zone", "256 bytes each")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd()
    names = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")
    with Client.of(nsqd, **dict.fromkeys(names, "x" + "é" * 5_000)) as client:
        client.sub("texts", "c", ready=1)
        shown = nsqd.channel("texts", "c")["clients"][0]
        for name in names:
            assert shown[name] == "x" + "é" * 127, name
        begin_s = time.monotonic()
        assert len(nsqd.get("/stats").body) < 100_000
        assert time.monotonic() - begin_s < 10


@trial(
    "Messages of an ephemeral topic or channel",
    "10,000 messages, 64 MiB with those in flight and requeued",
)
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd("--mem-queue-bytes=1000000", "--mem-queue-size=100")
    with Client.of(nsqd) as producer:
        producer.mpub("small#ephemeral", numbered(150))
        producer.mpub("large#ephemeral", [bytes(100_000)] * 15)
    topics = {topic["topic_name"]: topic for topic in nsqd.stats()["topics"]}
    assert topics["small#ephemeral"]["depth"] == 100
    assert topics["large#ephemeral"]["depth"] == 9
    assert nsqd.metric("penstock_ephemeral_dropped_messages_total") >= 56


@trial("Messages of all ephemeral topics and channels", "8 times as many bytes")
def _(daemons: Daemons) -> None:
    nsqd = daemons.nsqd("--mem-queue-bytes=1000000", "--mem-queue-size=1000")
    with Client.of(nsqd) as producer:
        for number in range(20):
            producer.mpub(f"all-{number}#ephemeral", [bytes(100_000)] * 15)
    assert sum(topic["depth"] for topic in nsqd.stats()["topics"]) in range(70, 81)
    assert nsqd.metric("penstock_ephemeral_bytes") <= 8_000_000


@trial("Deferred publishes of ephemeral topics", "10,000 messages, 64 MiB together")
def _(daemons: Daemons) -> None:
    options = ("--mem-queue-bytes=1000001", "--mem-queue-size=100")
    for body, kept in ((b"x", 100), (bytes(100_000), 10)):
        nsqd = Nsqd(daemons.folder(f"deferred-{kept}"), *options)
        with nsqd, Client.of(nsqd) as producer:
            for number in range(120):
                producer.dpub(f"late-{number % 7}#ephemeral", 3_600_000, body)
            assert nsqd.metric("penstock_deferred_pending") == kept
            dropped = "penstock_ephemeral_dropped_messages_total"
            assert nsqd.metric(dropped) == 120 - kept


tried_by(
    "Data sent to a client that it has not read",
    "1 MiB, and 64 KiB of replies",
    "tests.conformance.test_unread:test_replies_that_nobody_reads_are_bounded",
)
tried_by(
    "A client that reads nothing",
    "1m",
    "tests.conformance.test_unread:test_replies_that_nobody_reads_are_bounded",
)
tried_by(
    "Commands of a client in one turn",
    "1 ms",
    "tests.conformance.test_turns:test_a_flood_of_commands_does_not_stop_the_others",
)
tried_by(
    "Batches that a client waits for, one for each topic",
    "1,024",
    "tests.unit.nsqd.test_client:test_replies_that_wait_for_batches_of_many_topics_are_bounded",
)
