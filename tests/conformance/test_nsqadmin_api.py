"""nsqadmin's JSON API as NSQ has it: paths, fields in their order, messages, statuses.

Two nsqds and a nsqlookupd, seen by one nsqadmin that knows the nsqlookupd and one that knows the
nsqds.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.admin.cluster import Nsqadmin
from tests.conformance.log_reader import LogReader
from tests.support.daemon import Nsqd, Nsqlookupd, Raw, Reply
from tests.support.timing import late_s
from tests.support.waits import wait_for

TOPIC_FIELDS = [
    *("node", "hostname", "topic_name", "depth", "memory_depth", "backend_depth"),
    *("message_count", "delivery_msg_count", "nodes", "channels", "paused"),
    "e2e_processing_latency",
]
CHANNEL_FIELDS = [
    *("node", "hostname", "topic_name", "channel_name", "depth", "memory_depth", "backend_depth"),
    *("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "message_count"),
    *("client_count", "nodes", "clients", "paused", "e2e_processing_latency"),
]
CLIENT_FIELDS = [
    *("node", "remote_address", "version", "client_id", "hostname", "user_agent", "connect_ts"),
    *("connected", "in_flight_count", "ready_count", "finish_count", "requeue_count"),
    *("message_count", "sample_rate", "deflate", "snappy", "authed", "auth_identity"),
    *("auth_identity_url", "tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
    "tls_negotiated_protocol_is_mutual",
]


class World:
    """All of them, and what the tests ask for."""

    def __init__(self, stack: ExitStack, folder: Any) -> None:
        self.lookupd = stack.enter_context(Nsqlookupd())
        flags = (
            f"--lookupd-tcp-address={self.lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
            "--e2e-processing-latency-percentile=0.5,0.99",
        )
        self.nsqds = [stack.enter_context(Nsqd(folder / f"{n}", *flags)) for n in range(2)]
        self.nodes = [f"127.0.0.1:{nsqd.http_port}" for nsqd in self.nsqds]
        self.by_lookupd = stack.enter_context(
            Nsqadmin(f"--lookupd-http-address={self.lookupd.http_address}")
        )
        self.by_nsqds = stack.enter_context(
            Nsqadmin(*(f"--nsqd-http-address={node}" for node in self.nodes))
        )
        self.admins = {"lookupd": self.by_lookupd, "nsqd": self.by_nsqds}

    def make(self, topic: str, *channels: str, on: tuple[int, ...] = (0, 1)) -> None:
        """A topic on nsqds, known to nsqlookupd when this returns."""
        for number in on:
            self.nsqds[number].post(f"/topic/create?topic={topic}")
            for channel in channels:
                self.nsqds[number].post(f"/channel/create?topic={topic}&channel={channel}")
        wait_for(lambda: self.lookup(topic), lambda found: len(found["producers"]) == len(on))
        wait_for(lambda: self.lookup(topic), lambda found: set(channels) <= set(found["channels"]))

    def lookup(self, topic: str) -> Any:
        reply = self.lookupd.get(f"/lookup?topic={topic}")
        return reply.json if reply.status == 200 else {"producers": [], "channels": []}

    def has(self, topic: str, channel: str = "") -> list[bool]:
        """Which nsqds have it."""
        found = []
        for nsqd in self.nsqds:
            topics = {t["topic_name"]: t for t in nsqd.stats()["topics"]}
            channels = [c["channel_name"] for c in topics.get(topic, {}).get("channels", ())]
            found.append(channel in channels if channel else topic in topics)
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack, tmp_path_factory.mktemp("api"))


@pytest.fixture(params=["lookupd", "nsqd"])
def admin(world: World, request: pytest.FixtureRequest) -> Nsqadmin:
    return world.admins[request.param]


def good(reply: Reply) -> Any:
    """The body of an answer without a warning."""
    assert reply.status == 200, (reply.status, reply.body)
    assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
    assert reply.headers["X-NSQ-Content-Type"] == "nsq; version=1.0"
    assert list(reply.json)[-1] == "message"
    assert reply.json["message"] == ""
    return reply.json


def bad(reply: Reply) -> tuple[int, str]:
    assert list(reply.json) == ["message"]
    assert reply.headers["X-NSQ-Content-Type"] == "nsq; version=1.0"
    return reply.status, reply.json["message"]


def act(admin: Nsqadmin, method: str, path: str, fields: Any = None) -> Reply:
    body = b"" if fields is None else json.dumps(fields).encode()
    return admin.http(method, path, body)


def subscribe(raw: Raw, topic: str, channel: str) -> None:
    text = json.dumps({"client_id": "me", "hostname": "here", "user_agent": "mine/1"}).encode()
    raw.command(b"IDENTIFY\n" + len(text).to_bytes(4, "big") + text)
    raw.command(f"SUB {topic} {channel}\n".encode())
    raw.send(b"RDY 5\n")


# Looking


def test_topics_are_listed_by_name(world: World, admin: Nsqadmin) -> None:
    world.make("listed-b")
    world.make("listed-a", on=(1,))
    reply = admin.get("/api/topics")
    names = [name for name in good(reply)["topics"] if name.startswith("listed-")]
    assert names == ["listed-a", "listed-b"]
    assert reply.body.startswith(b'{"topics":["')


def test_inactive_topics_are_those_that_no_nsqd_has(world: World) -> None:
    world.lookupd.post("/channel/create?topic=gone&channel=gc")
    world.make("here", "c")
    shown = good(world.by_lookupd.get("/api/topics?inactive=true"))["topics"]
    assert shown["gone"] == ["gc"]
    assert "here" not in shown
    assert good(world.by_nsqds.get("/api/topics?inactive=true")) == {"topics": {}, "message": ""}


def test_a_topic_is_the_sum_of_its_nodes(world: World, admin: Nsqadmin) -> None:
    world.make("summed", "x", "y")
    before = good(admin.get("/api/topics/summed"))["message_count"]
    world.nsqds[0].post("/pub?topic=summed", b"one")
    world.nsqds[1].post("/mpub?topic=summed", b"two\nthree")
    shown = good(admin.get("/api/topics/summed"))
    assert list(shown) == [*TOPIC_FIELDS, "message"]
    assert (shown["node"], shown["hostname"], shown["topic_name"]) == ("*", "", "summed")
    assert shown["message_count"] == before + 3
    assert sorted(part["node"] for part in shown["nodes"]) == sorted(world.nodes)
    for part in shown["nodes"]:
        assert list(part) == TOPIC_FIELDS
        assert part["nodes"] is None
        assert part["hostname"] != ""
        for channel in part["channels"]:
            assert list(channel) == CHANNEL_FIELDS
            assert (channel["node"], channel["nodes"]) == (part["node"], None)
            assert channel["clients"] is None
    assert [channel["channel_name"] for channel in shown["channels"]] == ["x", "y"]
    for channel in shown["channels"]:
        assert list(channel) == CHANNEL_FIELDS
        assert (channel["node"], channel["depth"]) == ("*", before + 3)
        assert [part["depth"] for part in channel["nodes"]] == [
            part["message_count"] for part in shown["nodes"]
        ]


def test_latencies_are_told_with_their_extremes(world: World, admin: Nsqadmin) -> None:
    world.make("timed", "c")
    for nsqd in world.nsqds:
        nsqd.post("/pub?topic=timed", b"x")
        with nsqd.connect() as raw:
            subscribe(raw, "timed", "c")
            raw.send(b"FIN " + raw.message().id + b"\n", b"NOP\n")
            wait_for(
                lambda nsqd=nsqd: nsqd.channel("timed", "c")["in_flight_count"], lambda n: n == 0
            )
    latency = good(admin.get("/api/topics/timed"))["e2e_processing_latency"]
    assert list(latency) == ["count", "percentiles", "topic", "channel", "host"]
    assert (latency["topic"], latency["channel"], latency["host"]) == ("timed", "", "*")
    assert latency["count"] >= 2
    assert [entry["quantile"] for entry in latency["percentiles"]] == [0.99, 0.5]
    for entry in latency["percentiles"]:
        assert list(entry) == ["average", "count", "max", "min", "quantile", "value"]
        assert 0 < entry["min"] <= entry["average"] <= entry["max"]
        assert entry["count"] == latency["count"]


def test_a_channel_has_its_clients(world: World, admin: Nsqadmin) -> None:
    world.make("used", "c")
    with world.nsqds[1].connect() as raw:
        subscribe(raw, "used", "c")
        wait_for(lambda: world.nsqds[1].channel("used", "c")["clients"], lambda found: found)
        shown = good(admin.get("/api/topics/used/c"))
    assert list(shown) == [*CHANNEL_FIELDS, "message"]
    assert (shown["node"], shown["client_count"]) == ("*", 1)
    [client] = shown["clients"]
    assert list(client)[: len(CLIENT_FIELDS)] == CLIENT_FIELDS
    assert (client["node"], client["client_id"], client["hostname"]) == (
        *(world.nodes[1], "me"),
        "here",
    )
    assert client["ready_count"] == 5
    assert client["connected"] % 1_000_000_000 == 0
    assert abs(client["connect_ts"] - time.time()) < 60
    by_node = {part["node"]: part["clients"] for part in shown["nodes"]}
    assert by_node == {world.nodes[0]: [], world.nodes[1]: [client]}
    assert shown["e2e_processing_latency"]["channel"] == "c"


def test_nodes_say_who_they_are_and_what_they_have(world: World, admin: Nsqadmin) -> None:
    world.make("placed", on=(0,))
    nodes = good(admin.get("/api/nodes"))["nodes"]
    assert [f"{n['broadcast_address']}:{n['http_port']}" for n in nodes] == sorted(world.nodes)
    for node in nodes:
        assert list(node) == [
            *("remote_addresses", "remote_address", "hostname", "broadcast_address"),
            *("tcp_port", "http_port", "version", "topics", "out_of_date"),
        ]
        assert node["out_of_date"] is False
        if admin is world.by_lookupd:
            address = f"{world.lookupd.http_address}/{node['remote_address']}"
            assert node["remote_addresses"] == [address]
        else:
            assert (node["remote_addresses"], node["remote_address"]) == (None, "")
    first = next(n for n in nodes if n["http_port"] == world.nsqds[0].http_port)
    assert {"topic": "placed", "tombstoned": False} in first["topics"]
    names = [topic["topic"] for topic in first["topics"]]
    assert names == sorted(names)


def test_a_node_shows_all_it_has(world: World, admin: Nsqadmin) -> None:
    world.make("alone", "c", on=(0,))
    world.nsqds[0].post("/pub?topic=alone", b"x")
    shown = good(admin.get(f"/api/nodes/{world.nodes[0]}"))
    assert list(shown) == ["node", "topics", "total_messages", "total_clients", "message"]
    assert shown["node"] == world.nodes[0]
    topics = {topic["topic_name"]: topic for topic in shown["topics"]}
    assert list(topics["alone"]) == TOPIC_FIELDS
    assert topics["alone"]["channels"][0]["clients"] == []
    assert shown["total_messages"] == sum(t["message_count"] for t in shown["topics"])
    assert bad(admin.get("/api/nodes/nowhere:1")) == (404, "NODE_NOT_FOUND")


def test_the_counter_counts_by_channel_and_node(world: World, admin: Nsqadmin) -> None:
    world.make("counted", "c")
    world.nsqds[0].post("/pub?topic=counted", b"x")
    shown = good(admin.get("/api/counter"))
    entry = shown["stats"][f"counted:c:{world.nodes[0]}"]
    assert list(entry) == ["node", "topic_name", "channel_name", "message_count"]
    assert entry["message_count"] == world.nsqds[0].channel("counted", "c")["message_count"]
    assert f"counted:c:{world.nodes[1]}" in shown["stats"]


def test_what_nobody_has_is_not_found(world: World, admin: Nsqadmin) -> None:
    """NSQ answers 502 or an empty 200 here."""
    world.make("known", "c")
    world.lookupd.post("/topic/create?topic=without-nodes")
    assert bad(admin.get("/api/topics/never")) == (404, "TOPIC_NOT_FOUND")
    assert bad(admin.get("/api/topics/without-nodes")) == (404, "TOPIC_NOT_FOUND")
    assert bad(admin.get("/api/topics/never/c")) == (404, "TOPIC_NOT_FOUND")
    assert bad(admin.get("/api/topics/known/never")) == (404, "CHANNEL_NOT_FOUND")
    assert bad(admin.get("/api/nothing")) == (404, "NOT_FOUND")
    reply = admin.http("PUT", "/api/topics")
    assert bad(reply) == (405, "METHOD_NOT_ALLOWED")
    assert reply.headers["Allow"] == "GET, OPTIONS, POST"


def test_ping_and_slashes_are_as_everywhere(admin: Nsqadmin) -> None:
    assert (admin.get("/ping").status, admin.get("/ping").text) == (200, "OK")
    reply = admin.get("/api/topics/")
    assert (reply.status, reply.headers["Location"]) == (301, "/api/topics")


# Changing


def test_create_makes_topics_and_channels(world: World) -> None:
    reply = act(world.by_lookupd, "POST", "/api/topics", {"topic": "made", "channel": "c"})
    assert reply.body == b'{"message":""}'
    assert world.lookupd.get("/channels?topic=made").json == {"channels": ["c"]}
    assert world.has("made") == [False, False], "nsqds make it with its first message"
    good(act(world.by_nsqds, "POST", "/api/topics", {"topic": "made-2", "channel": "c"}))
    assert world.has("made-2", "c") == [True, True]


def test_a_channel_is_also_made_where_its_topic_is(world: World, admin: Nsqadmin) -> None:
    name = f"wide-{admin.http_port}"
    world.make(name)
    good(act(admin, "POST", "/api/topics", {"topic": name, "channel": "c"}))
    assert world.has(name, "c") == [True, True]


@pytest.mark.parametrize("channel", ["", "/c"])
def test_pause_unpause_and_empty_reach_every_node(
    world: World, admin: Nsqadmin, channel: str
) -> None:
    name = f"acted-{admin.http_port}{channel[1:]}"
    world.make(name, *channel[1:])
    for nsqd in world.nsqds:
        nsqd.post(f"/pub?topic={name}", b"x")

    def seen(key: str) -> list[Any]:
        found = [nsqd.stats(f"&topic={name}")["topics"][0] for nsqd in world.nsqds]
        return [(topic["channels"][0] if channel else topic)[key] for topic in found]

    path = f"/api/topics/{name}{channel}"
    assert seen("depth") == [1, 1]
    for action, paused in (("pause", True), ("unpause", False)):
        good(act(admin, "POST", path, {"action": action}))
        assert seen("paused") == [paused, paused]
        assert good(admin.get(path))["paused"] is paused
    good(act(admin, "POST", path, {"action": "empty"}))
    assert seen("depth") == [0, 0]


def test_delete_removes_a_channel_then_the_topic_everywhere(world: World, admin: Nsqadmin) -> None:
    name = f"deleted-{admin.http_port}"
    world.make(name, "c", "d")
    good(act(admin, "DELETE", f"/api/topics/{name}/c"))
    assert (world.has(name, "c"), world.has(name, "d")) == ([False, False], [True, True])
    good(act(admin, "DELETE", f"/api/topics/{name}"))
    assert world.has(name) == [False, False]
    if admin is world.by_lookupd:
        assert world.lookupd.get(f"/lookup?topic={name}").status == 404


def test_what_a_reader_would_miss_messages_by_needs_force(world: World, admin: Nsqadmin) -> None:
    """R45: refused as a whole, before the nsqlookupds are asked."""
    name = f"read-{'lookupd' if admin is world.by_lookupd else 'nsqd'}"
    world.make(name, "plain")
    reader = LogReader(world.nsqds[1], topic=name, channel="lake", name="pipeline lake")
    assert reader.pull().status == 200
    assert reader.commit(reader.told["low"]).status == 200
    wait_for(lambda: world.lookup(name), lambda found: "lake" in found["channels"])
    path = f"/api/topics/{name}"
    empty = b'{"action":"empty"}'
    asked: list[tuple[str, str, bytes]] = [
        ("POST", f"{path}/lake", empty),
        ("POST", path, empty),
        ("DELETE", f"{path}/lake", b""),
        ("DELETE", path, b""),
    ]
    if admin is world.by_lookupd:
        asked.append(("DELETE", f"/api/nodes/{world.nodes[1]}", b'{"topic":"%s"}' % name.encode()))
    for method, target, body in asked:
        for force in ("", "?force=false"):
            reply = admin.http(method, target + force, body)
            assert (reply.status, reply.json["message"]) == (409, "PULL_CHANNEL"), target
            assert "lake, read by pipeline lake (since 20" in reply.json["detail"]
    reply = admin.post(f"{path}/lake?force=1", empty)
    assert (reply.status, reply.json["message"]) == (400, "INVALID_FORCE")
    assert world.has(name, "lake") == [False, True] and world.has(name, "plain") == [True, True]
    assert {"plain", "lake"} <= set(world.lookup(name)["channels"])
    assert len(world.lookup(name)["producers"]) == 2
    body = {"action": "empty", "topic": name, "channel": "lake", "confirm": "lake"}
    for force, status in ((None, 409), ("yes", 400), ("false", 409), (False, 409), (True, 200)):
        data = json.dumps(body | ({} if force is None else {"force": force})).encode()
        headers = {"Content-Type": "application/json"}
        assert admin.http("POST", "/api/action", data, headers).status == status, force
    # Of a channel that is not one nothing changes.
    assert admin.post(f"{path}/plain", empty).json == {"message": ""}
    for method, target, body_bytes in asked[:4]:
        reply = admin.http(method, f"{target}?force=true", body_bytes)
        # Of the other node only the channel is missing.
        assert reply.status == 200, reply
    assert world.has(name) == [False, False]


def test_an_inactive_topic_can_be_deleted(world: World) -> None:
    world.lookupd.post("/channel/create?topic=leftover&channel=c")
    good(act(world.by_lookupd, "DELETE", "/api/topics/leftover/c"))
    assert world.lookupd.get("/channels?topic=leftover").json == {"channels": []}
    good(act(world.by_lookupd, "DELETE", "/api/topics/leftover"))
    assert "leftover" not in world.lookupd.get("/topics").json["topics"]


def test_a_tombstone_hides_and_deletes_on_one_node(world: World) -> None:
    world.make("hidden", "c")
    path = f"/api/nodes/{world.nodes[0]}"
    good(act(world.by_lookupd, "DELETE", path, {"topic": "hidden"}))
    assert world.has("hidden") == [False, True]
    ports = [p["http_port"] for p in world.lookup("hidden")["producers"]]
    assert ports == [world.nsqds[1].http_port]
    good(act(world.by_nsqds, "DELETE", f"/api/nodes/{world.nodes[1]}", {"topic": "hidden"}))
    assert world.has("hidden") == [False, False]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/api/topics", b"", 400, "EOF"),
        ("POST", "/api/topics", b"{", 400, "unexpected EOF"),
        ("POST", "/api/topics", b"x", 400, "invalid character 'x' looking for beginning of value"),
        ("POST", "/api/topics", b"[]", 400, "json: cannot unmarshal array into Go value"),
        ("POST", "/api/topics", b'{"topic":"!"}', 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", b"{}", 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", b'{"topic":"t","channel":"!"}', 400, "INVALID_CHANNEL"),
        ("POST", "/api/topics/t", b'{"action":"explode"}', 400, "INVALID_ACTION"),
        ("POST", "/api/topics/t/c", b"{}", 400, "INVALID_ACTION"),
        (
            "POST",
            "/api/topics/t",
            b"x",
            400,
            "invalid character 'x' looking for beginning of value",
        ),
        ("DELETE", "/api/nodes/h:1", b"", 400, "INVALID_BODY"),
        ("DELETE", "/api/nodes/h:1", b'{"topic":"!"}', 400, "INVALID_TOPIC"),
    ],
)
def test_what_is_wrong_is_refused(
    admin: Nsqadmin, method: str, path: str, body: bytes, status: int, text: str
) -> None:
    assert bad(admin.http(method, path, body)) == (status, text)


def test_acting_on_what_is_not_there_says_so(world: World) -> None:
    world.make("bare")
    reply = act(world.by_lookupd, "POST", "/api/topics/bare/never", {"action": "pause"})
    quoted = '"{\\"message\\":\\"CHANNEL_NOT_FOUND\\"}"'
    one = f"got response 404 Not Found {quoted}"
    assert (reply.status, reply.json["message"]) == (200, f"WARNING: {one}\n{one}")
    reply = act(world.by_lookupd, "POST", "/api/topics/never", {"action": "pause"})
    assert bad(reply) == (404, "TOPIC_NOT_FOUND")
    assert bad(act(world.by_lookupd, "DELETE", "/api/topics/never")) == (404, "TOPIC_NOT_FOUND")
    reply = act(world.by_lookupd, "DELETE", "/api/nodes/127.0.0.1:9", {"topic": "bare"})
    assert bad(reply) == (404, "NODE_NOT_FOUND")


# Failures


def test_a_node_that_is_away_is_a_warning(world: World) -> None:
    gone = "127.0.0.1:9"
    world.make("partly", "c", on=(0,))
    with Nsqadmin(f"--nsqd-http-address={world.nodes[0]}", f"--nsqd-http-address={gone}") as admin:
        for path in ("/api/topics", "/api/topics/partly", "/api/topics/partly/c", "/api/nodes"):
            reply = admin.get(path)
            assert reply.status == 200
            message = reply.json["message"]
            assert message.startswith(f'WARNING: Get "http://{gone}/')
            assert message.endswith(": connection refused")
        assert "partly" in admin.get("/api/topics").json["topics"]
        assert len(admin.get("/api/nodes").json["nodes"]) == 1
        reply = act(admin, "POST", "/api/topics/partly", {"action": "pause"})
        assert reply.status == 200 and reply.json["message"].startswith("WARNING: Get ")
        assert world.nsqds[0].stats("&topic=partly")["topics"][0]["paused"] is True


def test_a_nsqlookupd_that_is_away_is_a_warning(world: World) -> None:
    world.make("still", "c")
    with Nsqadmin(
        f"--lookupd-http-address={world.lookupd.http_address}",
        "--lookupd-http-address=127.0.0.1:9",
    ) as admin:
        for path in ("/api/topics", "/api/nodes", "/api/topics/still", "/api/topics?inactive=true"):
            reply = admin.get(path)
            assert reply.status == 200
            assert reply.json["message"].startswith('WARNING: Get "http://127.0.0.1:9/')
        reply = act(admin, "POST", "/api/topics", {"topic": "still-made"})
        assert reply.json["message"] == (
            'WARNING: Post "http://127.0.0.1:9/topic/create?topic=still-made": connection refused'
        )
        assert "still-made" in world.lookupd.get("/topics").json["topics"]


@pytest.mark.parametrize(
    ("flag", "daemons"), [("lookupd-http-address", "nsqlookupd"), ("nsqd-http-address", "nsqd")]
)
def test_when_all_are_away_nothing_is_known(flag: str, daemons: str) -> None:
    with Nsqadmin(f"--{flag}=127.0.0.1:9") as admin:
        for path in (
            "/api/topics",
            "/api/topics/t",
            "/api/topics/t/c",
            "/api/nodes",
            "/api/counter",
        ):
            status, text = bad(admin.get(path))
            assert status == 502
            assert text.startswith(f"UPSTREAM_ERROR: failed to query any {daemons}: Get ")
        for method, path, fields in (
            ("POST", "/api/topics/t", {"action": "pause"}),
            ("DELETE", "/api/topics/t/c", None),
        ):
            assert bad(act(admin, method, path, fields))[0] == 502


def test_a_daemon_that_hangs_costs_no_more_than_the_timeout(world: World) -> None:
    world.make("quick")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Nsqadmin(
            f"--nsqd-http-address={world.nodes[0]}",
            f"--nsqd-http-address={address}",
            "--http-client-request-timeout=300ms",
        ) as admin:
            begin_s = time.monotonic()
            reply = admin.get("/api/topics")
            assert time.monotonic() - begin_s < late_s(3)
            assert "quick" in reply.json["topics"]
            assert reply.json["message"].endswith(": timed out")
