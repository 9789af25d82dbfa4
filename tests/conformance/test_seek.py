"""Seeks and starts in the past, with pynsq, nsqjs and our client as consumers (R22, R23)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Consumer, Message
from penstock.wire import commands
from tests.conformance import nodejs
from tests.conformance.scenarios import Driven
from tests.support.bodies import numbered
from tests.support.daemon import ERROR, RESPONSE, Nsqd, Raw
from tests.support.waits import eventually


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("seek")) as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def filled(nsqd: Nsqd, topic: str, count: int = 10, *channels: str) -> list[bytes]:
    """A topic whose channel ``keeper`` keeps all messages."""
    nsqd.post(f"/topic/create?topic={topic}")
    for channel in ("keeper", *channels):
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    bodies = numbered(count)
    assert nsqd.post(f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200
    return bodies


def seek(nsqd: Nsqd, topic: str, to: str, channel: str = "c", more: str = "") -> dict[str, object]:
    reply = nsqd.post(f"/channel/seek?topic={topic}&channel={channel}&to={to}{more}")
    assert reply.status == 200, reply.body
    answer: dict[str, object] = reply.json
    return answer


def pynsq(nsqd: Nsqd) -> Driven:
    driver = "tests.conformance.clients.pynsq_driver"
    return Driven([sys.executable, "-m", driver, str(nsqd.tcp_port)])


def nsqjs(nsqd: Nsqd) -> Driven:
    nodejs.install()
    return Driven(
        ["node", str(nodejs.SOURCE / "nsqjs_driver.js"), str(nsqd.tcp_port)],
        {**os.environ, "NODE_PATH": str(nodejs.FOLDER / "node_modules")},
    )


@pytest.mark.parametrize("start", [pynsq, nsqjs])
def test_a_consumer_gets_everything_again_after_a_seek(nsqd: Nsqd, start: object) -> None:
    """R22: it stays connected; what was in flight is delivered again, and finished late."""
    assert callable(start)
    topic = f"again_{start.__name__}"
    bodies = filled(nsqd, topic, 10, "c")
    with start(nsqd).subscribe(topic, "c", ready=4) as client:
        first = [client.take() for _ in range(4)]
        for delivery in first[:2]:
            client.finish(delivery)
        first += [client.take() for _ in range(2)]
        answer = seek(nsqd, topic, "earliest")
        assert (answer["messages"], answer["in_flight"], answer["whole"]) == (10, 4, True)
        again = []
        while len(again) < 10:
            delivery = client.take()
            if delivery.body == bodies[2] and start is not nsqjs:
                client.finish(first[2])  # an answer to the first delivery: it counts
            else:
                client.finish(delivery)
            again.append(delivery)
        assert [delivery.body for delivery in again] == bodies
        assert {delivery.attempts for delivery in again} == {1}
        assert [d.id for d in again[:4]] == [d.id for d in first[:4]]
        assert eventually(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 0)
        channel = nsqd.channel(topic, "c")
        assert (channel["depth"], channel["client_count"], channel["timeout_count"]) == (0, 1, 0)


def test_a_late_finish_of_what_is_not_in_flight_fails(nsqd: Nsqd) -> None:
    """R22: it is not fatal."""
    filled(nsqd, "late", 10, "c")
    with nsqd.connect() as raw:
        raw.subscribe("late", "c", ready_count=5)
        before = [raw.receive() for _ in range(5)]
        seek(nsqd, "late", "latest")
        raw.send(commands.fin(before[0].id))
        kind, text = raw.frame()
        assert (kind, text[:13]) == (ERROR, b"E_FIN_FAILED ")
        nsqd.post("/pub?topic=late", b"new")
        message = raw.receive()
        assert (message.body, message.attempts) == (b"new", 1)
        raw.send(commands.fin(message.id))
        assert eventually(lambda: nsqd.channel("late", "c")["in_flight_count"] == 0)


class Ours:
    """Our client, on a loop of its own."""

    def __init__(self, nsqd: Nsqd, topic: str, channel: str, **options: object) -> None:
        self.bodies: list[bytes] = []
        self._address = f"127.0.0.1:{nsqd.tcp_port}"
        self._what = (topic, channel, options)
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Ours:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    async def _run(self) -> None:
        topic, channel, options = self._what
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()

        async def handle(message: Message) -> None:
            self.bodies.append(message.body)

        consumer = Consumer(
            topic,
            channel,
            handle,
            nsqd_tcp_addresses=[self._address],
            **options,  # type: ignore[arg-type]
        )
        await consumer.start()
        self._ready.set()
        await self._stop.wait()
        await consumer.stop()


def test_our_client_starts_a_channel_in_the_past_and_goes_on_after_a_seek(nsqd: Nsqd) -> None:
    """R23, R22"""
    bodies = filled(nsqd, "ours", 20)
    with Ours(nsqd, "ours", "c", start="-1h", max_in_flight=5) as client:
        assert eventually(lambda: client.bodies == bodies)
        assert eventually(lambda: nsqd.channel("ours", "c")["in_flight_count"] == 0)
        seek(nsqd, "ours", "earliest")
        assert eventually(lambda: client.bodies == bodies * 2)
    with Ours(nsqd, "ours", "c", start="-1h"), Ours(nsqd, "ours", "d", start="latest") as late:
        nsqd.post("/pub?topic=ours", b"new")
        assert eventually(lambda: late.bodies == [b"new"])
    with Ours(nsqd, "ours", "e#ephemeral", start="earliest", max_in_flight=5) as client:
        assert eventually(lambda: client.bodies == [*bodies, b"new"])
        nsqd.post("/pub?topic=ours", b"newer")
        assert eventually(lambda: client.bodies == [*bodies, b"new", b"newer"])


def test_our_client_does_not_start_a_channel_in_the_past_again(tmp_path: Path) -> None:
    """R23: it went with the connection, and the policy would start it at the earliest."""
    with Nsqd(tmp_path) as nsqd:
        bodies = filled(nsqd, "gone", 5)
        policy = json.dumps({"channel_start": "earliest"}).encode()
        assert nsqd.http("PUT", "/policy?topic=gone", policy).status == 200
        with Ours(nsqd, "gone", "e#ephemeral", start="-1h") as client:
            assert eventually(lambda: client.bodies == bodies)
            time.sleep(1.2)  # a shorter connection counts as a failure
            nsqd.restart()
            assert eventually(lambda: "e#ephemeral" in nsqd.get("/log?topic=gone").json["channels"])
            nsqd.post("/pub?topic=gone", b"new")
            assert eventually(lambda: b"new" in client.bodies)
            assert client.bodies == [*bodies, b"new"]


def identified(raw: Raw, start: object) -> tuple[int, bytes]:
    fields = {"client_id": "c", "hostname": "h", "feature_negotiation": True}
    return raw.command(commands.identify({**fields, "channel_start": start}))


def test_identify_says_where_a_channel_starts(nsqd: Nsqd) -> None:
    """R23: it is confirmed, and refused if it is wrong."""
    bodies = filled(nsqd, "identify", 3)
    with nsqd.connect() as raw:
        kind, text = identified(raw, "earliest")
        assert kind == RESPONSE and json.loads(text)["channel_start"] == "earliest"
        raw.subscribe("identify", "c")
        assert [raw.receive().body for _ in range(3)] == bodies
    with nsqd.connect() as raw:
        kind, text = identified(raw, "")
        assert kind == RESPONSE and "channel_start" not in json.loads(text)
    for wrong in ("yesterday", "-1", "index:-3", "1e9", "x" * 300, "-1h\n", "2026-13-01T00:00:00Z"):
        with nsqd.connect() as raw:
            kind, text = identified(raw, wrong)
            assert (kind, text[:10]) == (ERROR, b"E_BAD_BODY"), (wrong, text)
            assert raw.closed()
    for kind_ in (3, True, [1], {"a": 1}):
        with nsqd.connect() as raw:
            kind, text = identified(raw, kind_)
            assert (kind, text[:10]) == (ERROR, b"E_BAD_BODY"), (kind_, text)


def test_what_http_refuses(nsqd: Nsqd) -> None:
    filled(nsqd, "refused", 3, "c")
    nsqd.post("/channel/pull?topic=refused&channel=pulled")
    nsqd.post("/topic/create?topic=gone%23ephemeral")
    nsqd.post("/channel/create?topic=gone%23ephemeral&channel=c")
    end = nsqd.get("/log?topic=refused").json["end"]
    where = "topic=refused&channel=c"
    for path, status, code in (
        ("seek", 400, "MISSING_ARG_TOPIC"),
        ("seek?topic=refused", 400, "MISSING_ARG_CHANNEL"),
        (f"seek?{where}", 400, "MISSING_ARG_TO"),
        (f"seek?{where}&to=", 400, "INVALID_TO"),
        (f"seek?{where}&to=queued", 400, "INVALID_TO"),
        (f"seek?{where}&to=tomorrow", 400, "INVALID_TO"),
        (f"seek?{where}&to=index:{end + 1}", 400, "INVALID_TO"),
        (f"seek?{where}&to=latest&dry_run=yes", 400, "INVALID_DRY_RUN"),
        (f"seek?{where}&to=latest&partial=1", 400, "INVALID_PARTIAL"),
        ("seek?topic=t&channel=c&to=latest", 404, "TOPIC_NOT_FOUND"),
        ("seek?topic=refused&channel=d&to=latest", 404, "CHANNEL_NOT_FOUND"),
        ("seek?topic=re/fused&channel=d&to=latest", 400, "INVALID_ARG_TOPIC"),
        ("seek?topic=refused&channel=pulled&to=earliest", 409, "PULL_CHANNEL"),
        ("seek?topic=gone%23ephemeral&channel=c&to=earliest", 409, "EPHEMERAL_TOPIC"),
        (f"create?{where}&start=earliest", 409, "CHANNEL_EXISTS"),
        ("create?topic=refused&channel=e&start=tomorrow", 400, "INVALID_START"),
        (f"create?topic=refused&channel=e&start=index:{end + 1}", 400, "INVALID_START"),
        ("create?topic=t&channel=e&start=earliest", 404, "TOPIC_NOT_FOUND"),
        ("create?topic=gone%23ephemeral&channel=d&start=earliest", 409, "EPHEMERAL_TOPIC"),
    ):
        reply = nsqd.post(f"/channel/{path}")
        assert (reply.status, reply.json["message"]) == (status, code), path
    assert nsqd.post(f"/channel/create?{where}").status == 200
    assert nsqd.channel("refused", "c")["depth"] == 3


def test_a_dry_run_changes_nothing(nsqd: Nsqd) -> None:
    filled(nsqd, "dry", 10, "c")
    with nsqd.connect() as raw:
        raw.subscribe("dry", "c", ready_count=4)
        messages = [raw.receive() for _ in range(4)]
        raw.send(commands.req(messages[0].id, 60_000))
        assert eventually(lambda: nsqd.channel("dry", "c")["deferred_count"] == 1)
        raw.receive()
        before = nsqd.channel("dry", "c")
        plan = seek(nsqd, "dry", "earliest", more="&dry_run=true")
        assert plan["dry_run"] is True and plan["messages"] == 10
        assert (plan["in_flight"], plan["deferred"]) == (4, 1)
        assert plan["from"] == plan["to"]
        after = nsqd.channel("dry", "c")
        assert {**after, "clients": 0} == {**before, "clients": 0}
        done = seek(nsqd, "dry", "earliest")
        assert {**done, "dry_run": True} == plan
        assert [raw.receive().attempts for _ in range(4)] == [1] * 4


def test_where_messages_were_removed(tmp_path: Path) -> None:
    """R22, R23: creation and seek are refused; SUB begins at whole_from, and says so."""
    with Nsqd(tmp_path, "--max-bytes-per-file=2000") as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        bodies = [b"%03d" % number + bytes(100) for number in range(100)]
        with nsqd.connect() as raw:
            raw.subscribe("t", "c", ready_count=200)
            for body in bodies[:60]:
                nsqd.post("/pub?topic=t", body)
            for _ in range(60):
                raw.send(commands.fin(raw.receive().id))
            assert eventually(lambda: nsqd.get("/log?topic=t").json["message_count"] < 30)
        for body in bodies[60:]:
            nsqd.post("/pub?topic=t", body)
        whole_from = nsqd.get("/log?topic=t").json["whole_from"]
        for path in ("seek?channel=c&to", "create?channel=d&start"):
            for place in ("-1h", "index:0", "1"):
                reply = nsqd.post(f"/channel/{path}={place}&topic=t")
                assert (reply.status, reply.json["message"]) == (409, "NOT_WHOLE"), (path, place)
                assert reply.json["whole_from"] == whole_from
        plan = seek(nsqd, "t", "-1h", more="&dry_run=true")
        assert plan["whole"] is False
        assert seek(nsqd, "t", "-1h", more="&partial=true")["messages"] == plan["messages"]
        reply = nsqd.post("/channel/create?topic=t&channel=d&start=-1h&partial=true")
        assert reply.status == 200
        assert nsqd.channel("t", "d")["depth"] == plan["messages"]
        with nsqd.connect() as raw:
            identified(raw, "-1h")
            raw.subscribe("t", "e")
            end = nsqd.get("/log?topic=t").json["end"]
            whole_from = nsqd.get("/log?topic=t").json["whole_from"]
            count = nsqd.get(f"/log/count?topic=t&start={whole_from}&end={end}").json["count"]
            assert [raw.receive().body for _ in range(count)] == bodies[100 - count :]
        nsqd.wait_for_log("channel=e: starts at index .*: messages from -1h on were removed")
        assert nsqd.channel("t", "e")["depth"] == count >= 40


def test_seeks_in_a_loop_beside_consumers_and_publishers(nsqd: Nsqd) -> None:
    """R22: nothing is lost between them, and all goes on."""
    filled(nsqd, "loop", 200, "c")
    stop = threading.Event()
    published: list[bytes] = []

    def publish() -> None:
        while not stop.is_set():
            body = b"p%05d" % len(published)
            assert nsqd.post("/pub?topic=loop", body).status == 200
            published.append(body)

    with Ours(nsqd, "loop", "c", max_in_flight=50) as one, Ours(nsqd, "loop", "c") as two:
        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            for round_ in range(40):
                seek(nsqd, "loop", ("earliest", "latest", "-1s", "-10ms")[round_ % 4])
        finally:
            stop.set()
            publisher.join(20)
        seek(nsqd, "loop", "earliest")
        del one.bodies[:], two.bodies[:]
        seek(nsqd, "loop", "earliest")
        wanted = {*numbered(200), *published}
        assert eventually(lambda: wanted <= {*one.bodies, *two.bodies})
        assert eventually(lambda: nsqd.channel("loop", "c")["in_flight_count"] == 0)
        channel = nsqd.channel("loop", "c")
        assert (channel["depth"], channel["client_count"]) == (0, 2)


def test_the_policy_decides_where_channels_start_that_nobody_gave_a_start(nsqd: Nsqd) -> None:
    """R23: for SUB and a plain creation; what somebody says wins."""
    bodies = filled(nsqd, "ruled", 5)
    policy = json.dumps({"channel_start": "earliest"}).encode()
    assert nsqd.http("PUT", "/policy?topic=ruled", policy).status == 200
    with nsqd.connect() as raw:
        raw.subscribe("ruled", "c")
        assert [raw.receive().body for _ in bodies] == bodies
    nsqd.post("/channel/create?topic=ruled&channel=d")
    nsqd.post("/channel/create?topic=ruled&channel=e&start=latest")
    nsqd.post("/channel/create?topic=ruled&channel=f&start=queued")
    assert [nsqd.channel("ruled", name)["depth"] for name in "def"] == [5, 0, 0]
    policy = json.dumps({"channel_start": "-1h"}).encode()
    assert nsqd.http("PUT", "/policy?topic=ruled", policy).status == 200
    with nsqd.connect() as raw:
        raw.subscribe("ruled", "g#ephemeral")
        assert [raw.receive().body for _ in bodies] == bodies


def test_a_seek_needs_the_role_admin(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("admin aaaaaaaaaaaa\nread rrrrrrrrrrrr\npublish pppppppppppp\n")
    tokens.chmod(0o600)
    with Nsqd(tmp_path / "data", f"--http-auth-token-file={tokens}") as nsqd:
        for token, status in (("aaaaaaaaaaaa", 404), ("rrrrrrrrrrrr", 403), ("pppppppppppp", 403)):
            headers = {"Authorization": f"Bearer {token}"}
            target = "/channel/seek?topic=t&channel=c&to=latest"
            assert nsqd.http("POST", target, headers=headers).status == status
