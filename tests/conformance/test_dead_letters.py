"""R24 and R26 on a running nsqd: max_attempts, BURY, and the routes for buried messages."""

from __future__ import annotations

import base64
import errno
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Consumer, Message
from penstock.errors import ClientError
from tests.clients.harness import QUICK, consumer_of, run
from tests.support.client import publish
from tests.support.daemon import ERROR, RESPONSE, Nsqd, Raw
from tests.support.faults import FaultyNsqd
from tests.support.waits import eventually, until


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("data")) as running:
        yield running
        assert "Traceback" not in running.log, running.log


def set_policy(nsqd: Nsqd, topic: str, channel: str = "c", **keys: object) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    target = f"/policy?topic={topic}&channel={channel}"
    reply = nsqd.http("PUT", target, json.dumps(keys).encode())
    assert reply.status == 200, reply.text


def identify(raw: Raw, **fields: object) -> dict[str, Any]:
    body = json.dumps({"feature_negotiation": True, **fields}).encode()
    kind, text = raw.command(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
    assert kind == RESPONSE
    return dict(json.loads(text))


def dead(nsqd: Nsqd, topic: str, query: str = "") -> Any:
    reply = nsqd.get(f"/channel/dead?topic={topic}&channel=c{query}")
    assert reply.status == 200, reply.text
    return reply.json


def bury_all(nsqd: Nsqd, topic: str, count: int) -> None:
    """Publish ``count`` messages and requeue each of them once."""
    set_policy(nsqd, topic, max_attempts=1)
    publish(nsqd, topic, *[b"%d" % i for i in range(count)])
    with nsqd.connect() as raw:
        assert raw.command(f"SUB {topic} c\n".encode()) == (RESPONSE, b"OK")
        raw.send(b"RDY 2500\n")
        for _ in range(count):
            raw.send(b"REQ " + raw.message().id + b" 0\n")
        assert eventually(lambda: dead(nsqd, topic, "&count=1")["count"] == count)


def test_a_poison_message_is_buried_listed_and_kicked(nsqd: Nsqd) -> None:
    before_ns = time.time_ns()
    set_policy(nsqd, "poison", max_attempts=2)
    publish(nsqd, "poison", b"bad", b"good")
    with nsqd.connect() as raw:
        identify(raw, client_id="worker-3")
        raw.command(b"SUB poison c\n")
        raw.send(b"RDY 1\n")
        bad_id = b""
        for _ in range(3):
            message = raw.message()
            raw.send((b"REQ %b 0\n" if message.body == b"bad" else b"FIN %b\n") % message.id)
            bad_id = message.id if message.body == b"bad" else bad_id
        assert eventually(lambda: dead(nsqd, "poison")["count"] == 1)
        found = dead(nsqd, "poison")
        assert (found["count"], found["next"]) == (1, None)
        [shown] = found["messages"]
        assert shown["id"] == bad_id.decode()
        assert before_ns <= shown["timestamp"] <= shown["buried"] <= time.time_ns()
        assert shown["client"].startswith("worker-3 127.0.0.1:")
        assert (shown["reason"], shown["text"], shown["attempts"]) == ("attempts", "", 2)
        assert base64.b64decode(shown["body"]) == b"bad" and shown["size"] == 3
        assert nsqd.channel("poison", "c")["depth"] == 0
        reply = nsqd.post("/channel/kick?topic=poison&channel=c")
        assert reply.json == {"kicked": 1, "left": 0}
        message = raw.message()
        assert (message.id, message.attempts, message.body) == (bad_id, 1, b"bad")
        raw.send(b"FIN " + bad_id + b"\n")


def test_bury_is_offered_only_to_clients_that_ask(nsqd: Nsqd) -> None:
    with nsqd.connect() as raw:
        assert "bury" not in identify(raw)
        raw.command(b"SUB offered c\n")
        assert raw.command(b"BURY " + b"0" * 16 + b"\n") == (
            ERROR,
            b"E_INVALID invalid command BURY",
        )
    with nsqd.connect() as raw:
        assert identify(raw, bury=True)["bury"] is True
        assert raw.command(b"BURY " + b"0" * 16 + b"\n") == (
            ERROR,
            b"E_INVALID cannot BURY in current state",
        )


def test_a_client_buries_with_a_reason(nsqd: Nsqd) -> None:
    with nsqd.connect() as raw:
        identify(raw, bury=True)
        raw.command(b"SUB said c\n")
        raw.send(b"RDY 3\n")
        publish(nsqd, "said", b"a", b"b", b"c")
        ids = [raw.message().id for _ in range(3)]
        raw.send(b"BURY " + ids[0] + b" no such  order\r\n")
        raw.send(b"BURY " + ids[1] + b"\n")
        raw.send(b"BURY " + ids[2] + b" \xff" + b"x" * 400 + b"\n")
        for id in (ids[0], b"0" * 16, b"z" * 16):
            expected = b"E_BURY_FAILED BURY %b failed ID not in flight" % id
            assert raw.command(b"BURY " + id + b"\n") == (ERROR, expected)
        expected = b"E_FIN_FAILED FIN %b failed ID not in flight" % ids[0]
        assert raw.command(b"FIN " + ids[0] + b"\n") == (ERROR, expected)
        shown = dead(nsqd, "said")["messages"]
        assert [m["reason"] for m in shown] == ["bury"] * 3
        assert [m["text"] for m in shown[:2]] == ["no such  order", ""]
        assert len(shown[2]["text"].encode()) <= 255
        assert raw.command(b"BURY short\n") == (ERROR, b"E_INVALID invalid message ID")
    with nsqd.connect() as raw:
        identify(raw, bury=True)
        raw.command(b"SUB said c\n")
        assert raw.command(b"BURY\n") == (ERROR, b"E_INVALID BURY insufficient number of params")


def test_beyond_max_buried_the_dead_topic_is_used(nsqd: Nsqd) -> None:
    set_policy(nsqd, "little", max_buried=1)
    with nsqd.connect() as raw:
        identify(raw, bury=True)
        raw.command(b"SUB little c\n")
        raw.send(b"RDY 2\n")
        publish(nsqd, "little", b"a", b"b")
        for _ in range(2):
            raw.send(b"BURY " + raw.message().id + b"\n")
        assert eventually(lambda: bool(nsqd.stats("&topic=little.c.dead")["topics"]))
        assert eventually(
            lambda: nsqd.stats("&topic=little.c.dead")["topics"][0]["message_count"] == 1
        )
        assert eventually(lambda: dead(nsqd, "little")["count"] == 1)


def test_bury_is_refused_on_an_ephemeral_channel(nsqd: Nsqd) -> None:
    with nsqd.connect() as raw:
        identify(raw, bury=True)
        raw.command(b"SUB short c#ephemeral\n")
        raw.send(b"RDY 1\n")
        publish(nsqd, "short", b"a")
        id = raw.message().id
        expected = b"E_BURY_FAILED BURY %b failed channel is ephemeral" % id
        assert raw.command(b"BURY " + id + b"\n") == (ERROR, expected)
        raw.send(b"FIN " + id + b"\n")  # it is still in flight


def test_pages_go_through_all_messages(nsqd: Nsqd) -> None:
    bury_all(nsqd, "pages", 250)
    seen, after = [], ""
    while True:
        page = dead(nsqd, "pages", f"&count=100{after}")
        assert page["count"] == 250
        seen += [base64.b64decode(m["body"]) for m in page["messages"]]
        if page["next"] is None:
            break
        assert page["next"] == page["messages"][-1]["index"]
        after = f"&after={page['next']}"
    assert seen == [b"%d" % i for i in range(250)]
    assert dead(nsqd, "pages", "&reason=bury") == {"count": 0, "messages": [], "next": None}
    assert len(dead(nsqd, "pages", "&reason=attempts&count=1000&size_max=1")["messages"]) == 250


def test_kicks_by_id_count_and_rate_and_discards(nsqd: Nsqd) -> None:
    bury_all(nsqd, "kicks", 100)
    target = "topic=kicks&channel=c"
    ids = [m["id"] for m in dead(nsqd, "kicks", "&count=3")["messages"]]
    other_node = f"{(int(ids[2], 16) ^ 1 << 54):016x}"
    body = json.dumps({"ids": [ids[0], ids[1], other_node, "0" * 16]}).encode()
    assert nsqd.post(f"/channel/kick?{target}", body).json == {"kicked": 2, "left": 98}
    assert nsqd.post(f"/channel/discard?{target}&count=8").json == {"discarded": 8, "left": 90}
    reply = nsqd.post(f"/channel/kick?{target}&count=20&rate=1000")
    assert reply.json["kicking"] == 20
    assert eventually(lambda: dead(nsqd, "kicks", "&count=1")["count"] == 70)
    reply = nsqd.post(f"/channel/discard?{target}&rate=1")
    assert reply.json["discarding"] == 70
    channel = nsqd.stats("&topic=kicks&policies=true")["topics"][0]["channels"][0]
    assert channel["sweeping"]["act"] == "discard"
    (running,) = dead(nsqd, "kicks", "&count=1")["running"]
    assert running["act"] == "discard" and 60 <= running["left"] <= 70
    reply = nsqd.post(f"/channel/discard?{target}&stop=true")
    assert 1 <= reply.json["discarded"] <= 5
    assert nsqd.post(f"/channel/kick?{target}&stop=true").json["kicked"] == 0
    left = reply.json["left"]
    assert nsqd.post(f"/channel/discard?{target}").json == {"discarded": left, "left": 0}
    nsqd.kill()
    nsqd.start()
    assert dead(nsqd, "kicks") == {"count": 0, "messages": [], "next": None}
    assert nsqd.channel("kicks", "c")["depth"] == 22


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "text"),
    [
        ("GET", "dead?topic=t", b"", 400, "MISSING_ARG_CHANNEL"),
        ("GET", "dead?topic=t&channel=!", b"", 400, "INVALID_ARG_CHANNEL"),
        ("GET", "dead?topic=never&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
        ("GET", "dead?topic=t&channel=never", b"", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "dead?topic=t&channel=pull", b"", 409, "PULL_CHANNEL"),
        ("GET", "dead?topic=t&channel=c&count=1001", b"", 400, "INVALID_ARG_COUNT"),
        ("GET", "dead?topic=t&channel=c&after=-1", b"", 400, "INVALID_ARG_AFTER"),
        ("GET", "dead?topic=t&channel=c&after=18014398509481984", b"", 400, "INVALID_ARG_AFTER"),
        ("GET", "dead?topic=t&channel=c&reason=why", b"", 400, "INVALID_ARG_REASON"),
        ("GET", "dead?topic=t&channel=c&size_max=65537", b"", 400, "INVALID_ARG_SIZE_MAX"),
        ("POST", "kick?topic=t&channel=pull", b"", 409, "PULL_CHANNEL"),
        ("POST", "kick?topic=t&channel=c&count=0", b"", 400, "INVALID_ARG_COUNT"),
        ("POST", "kick?topic=t&channel=c&rate=0", b"", 400, "INVALID_ARG_RATE"),
        ("POST", "kick?topic=t&channel=c&rate=1000001", b"", 400, "INVALID_ARG_RATE"),
        ("POST", "kick?topic=t&channel=c&stop=yes", b"", 400, "INVALID_STOP"),
        ("POST", "kick?topic=t&channel=c", b"{}", 400, "INVALID_IDS"),
        ("POST", "kick?topic=t&channel=c", b"[]", 400, "INVALID_BODY"),
        ("POST", "kick?topic=t&channel=c", b"{" * 100_000, 400, "INVALID_BODY"),
        ("POST", "kick?topic=t&channel=c", b'{"ids":[]}', 400, "INVALID_IDS"),
        ("POST", "kick?topic=t&channel=c", b'{"ids":[1]}', 400, "INVALID_IDS"),
        ("POST", "kick?topic=t&channel=c", b'{"ids":["0"]}', 400, "INVALID_IDS"),
        (
            "POST",
            "kick?topic=t&channel=c",
            b'{"ids":["0000000000000000"],"x":1}',
            400,
            "INVALID_IDS",
        ),
        ("POST", "discard?topic=t&channel=c&reason=x", b"", 400, "INVALID_ARG_REASON"),
    ],
)
def test_what_is_wrong_is_refused(
    nsqd: Nsqd, method: str, target: str, body: bytes, status: int, text: str
) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.post("/channel/pull?topic=t&channel=pull")
    reply = nsqd.http(method, f"/channel/{target}", body)
    assert (reply.status, reply.json["message"]) == (status, text)


def test_too_many_ids_and_ids_with_a_count_are_refused(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    ids = json.dumps({"ids": ["0" * 16] * 1001}).encode()
    assert nsqd.post("/channel/kick?topic=t&channel=c", ids).json == {"message": "INVALID_IDS"}
    ids = json.dumps({"ids": ["0" * 16] * 1000}).encode()
    assert nsqd.post("/channel/kick?topic=t&channel=c", ids).json == {"kicked": 0, "left": 0}
    for more in ("count=1", "rate=1", "reason=bury"):
        reply = nsqd.post(f"/channel/kick?topic=t&channel=c&{more}", ids)
        assert reply.json == {"message": "INVALID_IDS"}


def test_metrics_and_stats_show_what_was_done(nsqd: Nsqd) -> None:
    bury_all(nsqd, "shown", 5)
    nsqd.post("/channel/kick?topic=shown&channel=c&count=1")
    nsqd.post("/channel/discard?topic=shown&channel=c&count=2")
    where = 'topic="shown",channel="c"'
    text = nsqd.get("/metrics").text
    for line in (
        f"penstock_channel_buried{{{where}}} 2",
        f'penstock_channel_burials_total{{{where},reason="attempts"}} 5',
        f'penstock_channel_burials_total{{{where},reason="bury"}} 0',
        f"penstock_channel_kicked_total{{{where}}} 1",
        f"penstock_channel_discarded_total{{{where}}} 2",
        f"penstock_channel_dropped_attempts_total{{{where}}} 0",
    ):
        assert line in text.splitlines(), line
    channel = nsqd.stats("&topic=shown")["topics"][0]["channels"][0]
    assert channel["buried"] == 2
    nsqd.post("/topic/create?topic=plain")
    nsqd.post("/channel/create?topic=plain&channel=c")
    assert "buried" not in nsqd.channel("plain", "c")


def test_our_client_buries_and_gets_what_is_kicked(nsqd: Nsqd) -> None:
    publish(nsqd, "ours", b"bad", b"good")
    came: list[tuple[bytes, int]] = []

    def handle(message: Message) -> None:
        came.append((message.body, message.attempts))
        if message.body == b"bad" and len(came) < 3:
            message.bury("no such\norder")

    async def work() -> None:
        address = f"127.0.0.1:{nsqd.tcp_port}"
        async with Consumer("ours", "c", handle, nsqd_tcp_addresses=[address], **QUICK) as consumer:
            await until(lambda: len(came) == 2 and dead(nsqd, "ours")["count"] == 1)
            assert dead(nsqd, "ours")["messages"][0]["text"] == "no such order"
            assert consumer.stats.buried == 1
            nsqd.post("/channel/kick?topic=ours&channel=c")
            await until(lambda: len(came) == 3)
        assert sorted(came) == [(b"bad", 1), (b"bad", 1), (b"good", 1)]

    run(work())


def test_bury_on_a_broker_that_does_not_offer_it_raises(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.client import connection

    asked = connection.identity
    monkeypatch.setattr(connection, "identity", lambda config: {**asked(config), "bury": False})
    publish(nsqd, "go", b"x")
    errors: list[Exception] = []

    def handle(message: Message) -> None:
        try:
            message.bury("no")
        except ClientError as error:
            errors.append(error)

    async def work() -> None:
        async with consumer_of(nsqd, "go", handle):
            await until(lambda: bool(errors))

    run(work())
    assert "does not offer BURY" in str(errors[0])


def test_kicks_in_batches_kick_each_message_once(nsqd: Nsqd) -> None:
    bury_all(nsqd, "batches", 10)
    target = "topic=batches&channel=c"
    with nsqd.connect() as raw:
        raw.command(b"SUB batches c\n")
        raw.send(b"RDY 10\n")
        kicked, after = [], 0
        while after is not None:
            reply = nsqd.post(f"/channel/kick?{target}&count=4&after={after}").json
            for _ in range(reply["kicked"]):
                message = raw.message()
                kicked.append(message.body)
                raw.send(b"REQ " + message.id + b" 0\n")
            assert eventually(lambda: dead(nsqd, "batches", "&count=1")["count"] == 10)
            after = reply["next"]
    assert kicked == [b"%d" % i for i in range(10)]
    ids = b'{"ids":["0000000000000000"]}'
    for query, body in (("after=-1", b""), ("after=x", b""), ("after=1", ids)):
        assert nsqd.post(f"/channel/kick?{target}&{query}", body).status == 400


def test_a_body_that_is_lost_is_told_and_the_others_are_shown(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        set_policy(nsqd, "damaged", max_attempts=1)
        for number in range(5):
            publish(nsqd, "damaged", b"body %d" % number)  # each in a batch of its own
        with nsqd.connect() as raw:
            raw.command(b"SUB damaged c\n")
            raw.send(b"RDY 5\n")
            for _ in range(5):
                raw.send(b"REQ " + raw.message().id + b" 0\n")
            assert eventually(lambda: dead(nsqd, "damaged")["count"] == 5)
        (path,) = tmp_path.rglob("*.log")
        place = path.read_bytes().index(b"body 2")
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"BODY")
        found = dead(nsqd, "damaged")["messages"]
        assert [m.get("lost", False) for m in found] == [False, False, True, False, False]
        assert base64.b64decode(found[3]["body"]) == b"body 3"
        ids = json.dumps({"ids": [found[2]["id"]]}).encode()
        reply = nsqd.post("/channel/discard?topic=damaged&channel=c", ids)
        assert reply.json == {"discarded": 1, "left": 4}
        assert "Traceback" not in nsqd.log


def test_a_disk_that_cannot_be_read_hides_bodies_and_not_the_page(tmp_path: Path) -> None:
    with FaultyNsqd(tmp_path) as nsqd:
        bury_all(nsqd, "unread", 3)
        nsqd.fault("*.log", errno.EIO, "pread")
        found = dead(nsqd, "unread")["messages"]
        assert [(m["lost"], m["attempts"]) for m in found] == [(True, 1)] * 3
        nsqd.heal()
        found = dead(nsqd, "unread")["messages"]
        assert [base64.b64decode(m["body"]) for m in found] == [b"0", b"1", b"2"]
        assert "Traceback" not in nsqd.log


def test_a_kick_at_a_rate_ends_with_the_process(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        bury_all(nsqd, "rated", 200)
        target = "topic=rated&channel=c"
        assert nsqd.post(f"/channel/kick?{target}&rate=100").json["kicking"] == 200
        assert eventually(lambda: nsqd.channel("rated", "c")["depth"] >= 20)
        nsqd.kill()
        nsqd.start()
        left, depth = dead(nsqd, "rated", "&count=1")["count"], nsqd.channel("rated", "c")["depth"]
        assert left + depth == 200 and left > 0
        time.sleep(0.3)
        assert dead(nsqd, "rated", "&count=1")["count"] == left
        assert nsqd.post(f"/channel/kick?{target}").json == {"kicked": left, "left": 0}


def test_a_restart_keeps_buried_messages_and_their_segment(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        bury_all(nsqd, "kept", 20)
        nsqd.restart()
        assert dead(nsqd, "kept")["count"] == 20
        nsqd.post("/channel/kick?topic=kept&channel=c&count=5")
        nsqd.kill()
        nsqd.start()
        found = dead(nsqd, "kept")
        assert [base64.b64decode(m["body"]) for m in found["messages"]] == [
            b"%d" % i for i in range(5, 20)
        ]
        assert nsqd.channel("kept", "c")["depth"] == 5
