"""Draining real nodes: producers go elsewhere, consumers get the rest, the process ends with 0."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Consumer, Message, Producer
from tests.conformance.scenarios import Driven
from tests.conformance.test_seek import nsqjs, pynsq
from tests.support.bodies import numbered, sized
from tests.support.certificates import Pki
from tests.support.daemon import ERROR, RESPONSE, Nsqd, Nsqlookupd, Raw
from tests.support.staging import ATTEMPT, HttpQuery, plain
from tests.support.waits import until, wait_for, wait_until

HOUR_MS = 3_600_000


@contextmanager
def running(path: Path, *options: str) -> Iterator[Nsqd]:
    """A node that a test may end itself."""
    with Nsqd(path, *options) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def drain(nsqd: Nsqd, to: Nsqd | None = None) -> Any:
    target = f"/drain?to=127.0.0.1:{to.http_port}" if to is not None else "/drain"
    reply = nsqd.post(target)
    assert reply.status == 200, reply
    return reply.json


def state(nsqd: Nsqd) -> Any:
    return nsqd.get("/drain").json


def wait_for_end(nsqd: Nsqd) -> None:
    """The node ends by itself, cleanly."""
    assert nsqd.wait(40) == 0, nsqd.log
    assert "NSQ: drained: nothing is left" in nsqd.log


def take(raw: Raw, count: int) -> list[bytes]:
    """Receive and finish messages."""
    bodies = []
    for _ in range(count):
        message = raw.receive()
        raw.send(b"FIN " + message.id + b"\n")
        bodies.append(message.body)
    return bodies


def test_a_drained_node_delivers_what_it_has_and_ends(tmp_path: Path) -> None:
    """#1302: publishes are refused; it stays registered until its channels are empty."""
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        flags = (
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
        )
        nsqd = stack.enter_context(running(tmp_path / "a", *flags))
        assert nsqd.post("/channel/create?topic=t&channel=c").status == 404
        assert nsqd.post("/topic/create?topic=t").status == 200
        assert nsqd.post("/channel/create?topic=t&channel=c").status == 200
        for body in numbered(5):
            assert nsqd.post("/pub?topic=t", body).status == 200
        wait_for(lambda: len(lookupd.get("/lookup?topic=t").json["producers"]), 1)
        assert state(nsqd) == {"state": "off"}
        shown = drain(nsqd)
        assert shown["state"] == "draining" and shown["left"]["messages"] == 5, shown
        assert shown["blocked"] == [
            {"topic": "t", "channel": "c", "messages": 5, "why": "the channel has no consumers"}
        ]
        for target in ("/pub?topic=t", "/mpub?topic=t", "/pub?topic=t&defer=5", "/pub?topic=new"):
            reply = nsqd.post(target, b"late")
            assert (reply.status, reply.json) == (503, {"message": "DRAINING"}), target
            assert reply.headers["Retry-After"]
        assert nsqd.post("/topic/create?topic=new").status == 503
        assert nsqd.post("/topic/create?topic=t").status == 200, "it exists"
        assert nsqd.get("/ping").text == "OK"
        assert nsqd.metric("penstock_draining") == 1
        assert nsqd.metric("penstock_drain_left_messages") == 5
        assert nsqd.metric("penstock_drain_blocked") == 1
        with nsqd.connect() as consumer:
            consumer.subscribe("t", ready_count=2)
            first = consumer.receive()
            second = consumer.receive()
            consumer.send(b"REQ %s 300\n" % first.id)
            time.sleep(1.2)  # a survey
            assert state(nsqd)["state"] == "draining", "one is in flight"
            assert len(lookupd.get("/lookup?topic=t").json["producers"]) == 1
            consumer.send(b"FIN %s\nRDY 10\n" % second.id)
            rest = take(consumer, 4)
            assert sorted([second.body, *rest]) == sorted(numbered(5))
            wait_for_end(nsqd)
        wait_for(lambda: len(lookupd.get("/lookup?topic=t").json["producers"]), 0)
        # The next start is an ordinary one.
        nsqd.start()
        assert state(nsqd) == {"state": "off"}
        assert nsqd.post("/pub?topic=t", b"again").status == 200


def test_what_was_sent_before_is_answered_before_the_error(tmp_path: Path) -> None:
    """An error ahead of an OK would make a client publish again what is stored."""
    with running(tmp_path / "a", "--sync-every=1") as nsqd, nsqd.connect() as producer:
        assert producer.command(b"PUB t\n", sized(b"0")) == (RESPONSE, b"OK")
        drain(nsqd)
        for command in (b"PUB t\n" + sized(b"1"), b"PUB new\n" + sized(b"1")):
            with nsqd.connect() as other:
                kind, text = other.command(command)
                assert (kind, text) == (ERROR, b"E_PUB_FAILED PUB failed draining")
                assert other.closed()
        for name, body in ((b"MPUB t", None), (b"DPUB t 1000", sized(b"1"))):
            with nsqd.connect() as other:
                sent = body or b"\0\0\0\x0d\0\0\0\1" + sized(b"12345")
                code = b"E_%s_FAILED" % name.split()[0]
                assert other.command(name + b"\n", sent)[1].startswith(code)
                assert other.closed()
        with nsqd.connect() as other:
            assert other.command(b"SUB new c\n") == (ERROR, b"E_SUB_FAILED SUB failed draining")
        assert nsqd.http("DELETE", "/drain").json == {"state": "off"}
        assert producer.command(b"PUB t\n", sized(b"2")) == (RESPONSE, b"OK")
        # Cached topic, drained in the middle of a stream.
        producer.send(*(b"PUB t\n" + sized(b"%03d" % i) for i in range(500)))
        drain(nsqd)
        producer.send(*(b"PUB t\n" + sized(b"%03d" % i) for i in range(500, 1000)))
        oks = 0
        while True:
            kind, text = producer.frame()
            if kind == ERROR:
                break
            oks += 1
        assert text == b"E_PUB_FAILED PUB failed draining" and producer.closed()
        assert nsqd.stats()["topics"][0]["message_count"] == 2 + oks


def test_a_drain_survives_kills_and_can_be_cancelled(tmp_path: Path) -> None:
    with running(tmp_path / "a") as nsqd:
        assert nsqd.post("/topic/create?topic=t").status == 200
        assert nsqd.post("/channel/create?topic=t&channel=c").status == 200
        assert nsqd.post("/pub?topic=t", b"0").status == 200
        assert nsqd.post("/topic/create?topic=held").status == 200
        assert nsqd.post("/pub?topic=held", b"1").status == 200
        drain(nsqd)
        for end in (nsqd.kill, nsqd.terminate):
            end()
            nsqd.start()
            assert nsqd.post("/pub?topic=t", b"x").json == {"message": "DRAINING"}
            wait_for(lambda: (state(nsqd)["left"] or {}).get("messages"), 2)
        with nsqd.connect() as consumer:
            consumer.subscribe("t")
            assert take(consumer, 1) == [b"0"]
            wait_for(
                lambda: state(nsqd)["blocked"],
                [{"topic": "held", "messages": 1, "why": "the topic has no channels"}],
            )
        assert nsqd.http("DELETE", "/drain").json == {"state": "off"}
        assert nsqd.http("DELETE", "/drain").json == {"state": "off"}
        assert nsqd.post("/pub?topic=t", b"x").status == 200
        nsqd.kill()
        nsqd.start()
        assert state(nsqd) == {"state": "off"}
        assert nsqd.post("/pub?topic=t", b"x").status == 200


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_what_is_paused_holds_the_node(tmp_path: Path, what: str) -> None:
    with running(tmp_path / "a") as nsqd, nsqd.connect() as consumer:
        consumer.subscribe("t")
        channel = "&channel=c" if what == "channel" else ""
        assert nsqd.post(f"/{what}/pause?topic=t{channel}").status == 200
        assert nsqd.post("/pub?topic=t", b"0").status == 200
        (blocked,) = drain(nsqd)["blocked"]
        assert blocked["why"] == f"the {what} is paused"
        assert nsqd.post(f"/{what}/unpause?topic=t{channel}").status == 200
        assert take(consumer, 1) == [b"0"]
        wait_for_end(nsqd)


def test_buried_messages_hold_the_node(tmp_path: Path) -> None:
    with running(tmp_path / "a") as nsqd, nsqd.connect() as consumer:
        consumer.subscribe("t")
        policy = b'{"max_attempts":1,"on_max_attempts":"bury"}'
        assert nsqd.http("PUT", "/policy?topic=t&channel=c", policy).status == 200
        assert nsqd.post("/pub?topic=t", b"poison").status == 200
        consumer.send(b"REQ %s 0\n" % consumer.receive().id)
        wait_for(lambda: nsqd.get("/channel/dead?topic=t&channel=c").json["count"], 1)
        shown = drain(nsqd)
        assert (shown["left"]["messages"], shown["left"]["buried"]) == (1, 1)
        assert [entry["why"] for entry in shown["blocked"]] == ["they are buried"]
        time.sleep(1.2)  # a survey
        assert state(nsqd)["state"] == "draining"
        assert nsqd.post("/channel/kick?topic=t&channel=c").status == 200
        assert take(consumer, 1) == [b"poison"]
        wait_for_end(nsqd)


def test_a_reader_by_index_is_waited_for(tmp_path: Path) -> None:
    with running(tmp_path / "a") as nsqd:
        assert nsqd.post("/topic/create?topic=t").status == 200
        assert nsqd.post("/channel/pull?topic=t&channel=r").status == 200
        assert nsqd.post("/pub?topic=t", b"0").status == 200
        (blocked,) = drain(nsqd)["blocked"]
        assert blocked["why"] == "its reader has not committed them"
        log = nsqd.get("/log?topic=t").json
        place = {"instance": log["instance"], "index": log["end"]}
        body = json.dumps({"channel": "r", "topics": {"t": place}}).encode()
        assert nsqd.post("/channel/commit", body).status == 200
        wait_for_end(nsqd)


def test_stagings_that_have_begun_are_published_and_new_ones_refused(tmp_path: Path) -> None:
    with running(tmp_path / "a") as nsqd:
        query = HttpQuery(nsqd)
        assert nsqd.post("/topic/create?topic=t").status == 200
        assert nsqd.post("/channel/create?topic=t&channel=c").status == 200
        assert query.put(0, "t", plain(b"0")).status == 200
        assert drain(nsqd)["left"]["stagings"] == 1
        assert query.put(1, "t", plain(b"1")).status == 200
        other = query.put(0, "t", plain(b"0"), partition=1)
        assert (other.status, other.json["message"]) == (503, "DRAINING")
        assert query.seal(2, 2).status == 200
        assert query.publish(0, (0, ATTEMPT)).status == 200
        with nsqd.connect() as consumer:
            consumer.subscribe("t")
            assert sorted(take(consumer, 2)) == [b"0", b"1"]
            wait_for_end(nsqd)


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with running(tmp_path / "a") as nsqd:
        for to in (
            *("nowhere", "1.2.3.4", ":4151", "http://h", "http://h:1/path", "ftp://h:1", "h:x"),
            *("h:99999", "http://", "//", "%0a:1", "x" * 400 + ":1", "%ff:1", "a%20b:1"),
        ):
            reply = nsqd.post(f"/drain?to={to}")
            assert (reply.status, reply.json["message"]) == (400, "INVALID_TO"), to
        assert state(nsqd) == {"state": "off"}
        assert nsqd.http("PUT", "/drain").status == 405
        assert nsqd.post(f"/drain?to=127.0.0.1:{nsqd.http_port}").status == 200
        wait_until(lambda: "is this node" in (state(nsqd).get("handover_error") or ""))
        nsqd.http("DELETE", "/drain")


def fill(nsqd: Nsqd, count: int) -> Counter[bytes]:
    """Deferred messages of three topics, due in an hour and later."""
    bodies = numbered(count)
    for i, body in enumerate(bodies):
        target = f"/pub?topic=t{i % 3}&defer={HOUR_MS + i * 20_000}"
        assert nsqd.post(target, body).status == 200
    return Counter(bodies)


def deferred_count(nsqd: Nsqd) -> int:
    return sum(topic.get("deferred_count", 0) for topic in nsqd.stats()["topics"])


def test_deferred_messages_are_handed_over(tmp_path: Path) -> None:
    with running(tmp_path / "a") as nsqd, running(tmp_path / "b") as other:
        fill(nsqd, 200)
        assert drain(nsqd, other)["to"] == f"http://127.0.0.1:{other.http_port}"
        wait_for_end(nsqd)
        assert deferred_count(other) == 200
        counts = [topic["deferred_count"] for topic in other.stats()["topics"]]
        assert sorted(counts) == [66, 67, 67]
        assert list((tmp_path / "a/penstock/deferred").iterdir()) == []


@pytest.mark.parametrize("who", [0, 1])
def test_kills_in_the_middle_of_a_handover_lose_and_double_nothing(
    tmp_path: Path, who: int
) -> None:
    """Either node is killed again and again; what is deferred is at one of them, once."""
    with running(tmp_path / "a") as nsqd, running(tmp_path / "b") as other:
        fill(nsqd, 150)
        victim = (nsqd, other)[who]
        drain(nsqd, other)
        for pause_s in (0.0, 0.01, 0.03, 0.1):
            time.sleep(pause_s)
            victim.kill()
            victim.start()
        wait_for_end(nsqd)
        assert deferred_count(other) == 150
        for daemon in (nsqd.start(), other):
            assert daemon.get("/damage").json == {"records": []}
            assert deferred_count(daemon) == (150 if daemon is other else 0)


def test_a_handover_waits_for_its_node_and_can_be_cancelled(tmp_path: Path) -> None:
    with running(tmp_path / "a") as nsqd, running(tmp_path / "b") as other:
        fill(nsqd, 5)
        other.kill()
        drain(nsqd, other)
        wait_until(lambda: state(nsqd)["handover_error"])
        assert state(nsqd)["left"]["deferred"] == 5
        assert state(nsqd)["handover_error"].count(f":{other.http_port}") == 1
        assert drain(nsqd)["handover_error"] is None
        time.sleep(1.2)  # it had been tried again by now
        assert state(nsqd)["handover_error"] is None and state(nsqd)["to"] is None
        drain(nsqd, other)
        wait_until(lambda: state(nsqd)["handover_error"])
        assert nsqd.http("DELETE", "/drain").json == {"state": "off"}
        assert deferred_count(nsqd) == 5
        assert nsqd.post("/pub?topic=t0&defer=100", b"soon").status == 200
        with nsqd.connect() as consumer:
            consumer.subscribe("t0")
            assert take(consumer, 1) == [b"soon"]


def test_tokens_go_with_the_handover(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("publish publish-token\nadmin admin-token\n")
    flag = f"--http-auth-token-file={tmp_path / 'tokens'}"
    headers = {"Authorization": "Bearer admin-token"}
    with running(tmp_path / "a", flag) as nsqd, running(tmp_path / "b", flag) as other:
        target = f"/pub?topic=t&defer={HOUR_MS}"
        assert nsqd.http("POST", target, b"0", headers).status == 200
        to = f"/drain?to=127.0.0.1:{other.http_port}"
        forbidden = {"Authorization": "Bearer publish-token"}
        assert nsqd.http("POST", to, None, forbidden).status == 403
        assert nsqd.http("POST", to, None, headers).status == 200
        wait_for_end(nsqd)
        stats = other.http("GET", "/stats?format=json", None, headers).json
        assert stats["topics"][0]["deferred_count"] == 1


def test_a_handover_over_https_verifies_the_other_node(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    trust = f"--tls-root-ca-file={pki.ca}"
    with running(tmp_path / "a") as nsqd, running(tmp_path / "b", *pki.options()) as other:
        fill(nsqd, 3)
        to = f"/drain?to=https://localhost:{other.https_port}"
        assert nsqd.post(to).status == 200
        wait_until(lambda: "certificate verify failed" in (state(nsqd)["handover_error"] or ""))
        nsqd.terminate()
        nsqd.start(trust)
        wait_for_end(nsqd)
        assert deferred_count(other) == 3


@pytest.mark.parametrize("start", [pynsq, nsqjs])
def test_nsqs_clients_consume_what_is_left_and_are_told_of_the_drain(
    tmp_path: Path, start: Callable[[Nsqd], Driven]
) -> None:
    bodies = numbered(30)
    with running(tmp_path / "a") as nsqd, start(nsqd) as client:
        client.subscribe("t", "c", ready=5)
        assert client.try_publish("t", bodies[0]) is None
        for body in bodies[1:]:
            assert nsqd.post("/pub?topic=t", body).status == 200
        first = client.take()
        drain(nsqd)
        assert "PUB failed draining" in client.refused("t", b"late")
        assert state(nsqd)["left"]["messages"] == len(bodies)
        got = []
        for number in range(len(bodies)):
            delivery = client.take() if number else first
            client.finish(delivery)
            got.append(delivery.body)
        assert sorted(got) == sorted(bodies)
        wait_for_end(nsqd)


def test_our_clients_cross_a_drain_without_loss_or_double(tmp_path: Path) -> None:
    """A producer with two nodes publishes on the other one; the consumer gets all, once."""
    count = 2000
    got: Counter[bytes] = Counter()

    async def handle(message: Message) -> None:
        got[message.body] += 1

    async def cross(nsqd: Nsqd, other: Nsqd) -> None:
        addresses = [f"127.0.0.1:{each.tcp_port}" for each in (nsqd, other)]
        loop = asyncio.get_running_loop()
        async with (
            Consumer("t", "c", handle, nsqd_tcp_addresses=addresses, max_in_flight=100),
            Producer(addresses) as producer,
        ):
            for i in range(count):
                await producer.publish("t", b"%d" % i)
                if i == count // 4:
                    await loop.run_in_executor(None, drain, nsqd)
            await until(lambda: len(got) == count)
            await loop.run_in_executor(None, wait_for_end, nsqd)

    with running(tmp_path / "a") as nsqd, running(tmp_path / "b") as other:
        asyncio.run(cross(nsqd, other))
        assert other.channel("t", "c")["depth"] == 0
    assert got == Counter(b"%d" % i for i in range(count))
