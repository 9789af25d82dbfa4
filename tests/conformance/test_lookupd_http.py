"""nsqlookupd's HTTP API, endpoint by endpoint, with nsqds that are only sockets."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.daemon import Nsqlookupd, Raw, Reply
from tests.support.waits import wait_until

GO_ZERO_NS = -6795364578871345152
WAIT_SECONDS_MAX = 20.0


class Peer:
    """An nsqd as nsqlookupd sees it."""

    def __init__(self, raw: Raw, host: str, **fields: Any) -> None:
        self.raw = raw
        self.address = "{}:{}".format(*raw.sock.getsockname())
        body = {
            "broadcast_address": host,
            "hostname": f"{host}.local",
            "tcp_port": 4150,
            "http_port": 4151,
            "version": "1.3.0",
            **fields,
        }
        encoded = json.dumps(body).encode()
        self.do(b"IDENTIFY\n" + struct.pack(">i", len(encoded)) + encoded)

    def do(self, command: bytes) -> bytes:
        self.raw.send(command)
        (size,) = struct.unpack(">i", self.raw.exactly(4))
        return self.raw.exactly(size)

    def register(self, *names: str) -> None:
        assert self.do(f"REGISTER {' '.join(names)}\n".encode()) == b"OK"

    def unregister(self, *names: str) -> None:
        assert self.do(f"UNREGISTER {' '.join(names)}\n".encode()) == b"OK"

    def close(self) -> None:
        self.raw.sock.close()

    def shown(self, host: str) -> dict[str, Any]:
        return {
            "remote_address": self.address,
            "hostname": f"{host}.local",
            "broadcast_address": host,
            "tcp_port": 4150,
            "http_port": 4151,
            "version": "1.3.0",
            "topology_zone": "",
            "topology_region": "",
        }


Connect = Callable[..., Peer]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Nsqlookupd]:
    with Nsqlookupd() as running:
        yield running


@pytest.fixture
def lookupd(daemon: Nsqlookupd) -> Nsqlookupd:
    """The module's nsqlookupd, with no topics and no producers."""
    wait_until(lambda: daemon.get("/nodes").json["producers"] == [])
    for topic in daemon.get("/topics").json["topics"]:
        assert daemon.post(f"/topic/delete?topic={topic.replace('#', '%23')}").status == 200
    return daemon


@pytest.fixture
def connect(lookupd: Nsqlookupd) -> Iterator[Connect]:
    with ExitStack() as stack:

        def connect(host: str, **fields: Any) -> Peer:
            return Peer(stack.enter_context(lookupd.connect()), host, **fields)

        yield connect


def assert_error(reply: Reply, status: int, text: str) -> None:
    assert (reply.status, reply.body) == (status, b'{"message":"%s"}' % text.encode())
    assert reply.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
    assert reply.headers["Content-Type"] == "application/json; charset=utf-8"


def test_ping(lookupd: Nsqlookupd) -> None:
    reply = lookupd.get("/ping?")
    assert (reply.status, reply.body) == (200, b"OK")
    assert reply.headers["Content-Type"].startswith("text/plain")


def test_info(lookupd: Nsqlookupd) -> None:
    reply = lookupd.get("/info?ts=1")
    assert (reply.status, reply.body) == (200, b'{"version":"1.3.0"}')
    assert reply.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"


# (method, target, status, text)
ERRORS = [
    ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
    ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
    ("GET", "/lookup?topic=nobodys", 404, "TOPIC_NOT_FOUND"),
    ("GET", "/lookup?topic=", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create?topic=a$b", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/topic/create?topic=*", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/topic/create?topic=", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
    ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/channel/create?topic=a$b", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
    ("POST", "/channel/create?topic=t&channel=a$b", 400, "INVALID_ARG_CHANNEL"),
    ("POST", "/channel/delete", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/channel/delete?topic=a$b", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/channel/delete?topic=t", 400, "MISSING_ARG_CHANNEL"),
    ("POST", "/channel/delete?topic=t&channel=*", 400, "INVALID_ARG_CHANNEL"),
    ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
    ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
    ("GET", "/channels?topic=a;b", 400, "INVALID_REQUEST"),
    ("POST", "/topic/create?topic=%zz", 400, "INVALID_REQUEST"),
    ("GET", "/nowhere", 404, "NOT_FOUND"),
    ("POST", "/lookup?topic=t", 405, "METHOD_NOT_ALLOWED"),
    ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
    ("PUT", "/nodes", 405, "METHOD_NOT_ALLOWED"),
]


@pytest.mark.parametrize(("method", "target", "status", "text"), ERRORS)
def test_errors(lookupd: Nsqlookupd, method: str, target: str, status: int, text: str) -> None:
    assert_error(lookupd.http(method, target), status, text)


def test_a_body_is_not_taken_for_parameters(lookupd: Nsqlookupd) -> None:
    assert_error(lookupd.post("/topic/create", b"topic=t"), 400, "MISSING_ARG_TOPIC")


def test_topics_and_channels_made_by_hand(lookupd: Nsqlookupd) -> None:
    reply = lookupd.post("/topic/create?topic=t")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
    assert "Content-Type" not in reply.headers
    assert lookupd.post("/channel/create?topic=u&channel=c").status == 200
    assert sorted(lookupd.get("/topics").json["topics"]) == ["t", "u"]
    assert lookupd.get("/channels?topic=u").json == {"channels": ["c"]}
    assert lookupd.get("/channels?topic=t").body == b'{"channels":[]}'
    assert lookupd.get("/lookup?topic=u").json == {"channels": ["c"], "producers": []}
    assert lookupd.post("/channel/delete?topic=u&channel=c").status == 200
    assert lookupd.get("/lookup?topic=u").json == {"channels": [], "producers": []}
    assert lookupd.post("/topic/delete?topic=u").status == 200
    assert lookupd.get("/lookup?topic=u").status == 404
    assert lookupd.post("/topic/delete?topic=u").status == 200


def test_channels_of_an_unknown_topic_are_an_empty_list(lookupd: Nsqlookupd) -> None:
    assert lookupd.get("/channels?topic=nobodys").json == {"channels": []}


def test_a_lookup_shows_producers_and_channels(lookupd: Nsqlookupd, connect: Connect) -> None:
    a, b = connect("a"), connect("b", topology_zone="z", topology_region="r")
    a.register("t", "c")
    b.register("t")
    seen = lookupd.get("/lookup?topic=t").json
    assert list(seen) == ["channels", "producers"]
    assert seen["channels"] == ["c"]
    second = {**b.shown("b"), "topology_zone": "z", "topology_region": "r"}
    assert sorted(seen["producers"], key=lambda p: p["broadcast_address"]) == [
        a.shown("a"),
        second,
    ]
    assert list(seen["producers"][0]) == list(a.shown("a"))


def test_nodes_shows_who_has_what(lookupd: Nsqlookupd, connect: Connect) -> None:
    a = connect("a")
    assert lookupd.get("/nodes").json["producers"] == [
        {**a.shown("a"), "tombstones": [], "topics": []}
    ]
    a.register("t", "c")
    a.register("u")
    (node,) = lookupd.get("/nodes").json["producers"]
    assert (sorted(node["topics"]), node["tombstones"]) == (["t", "u"], [False, False])
    assert lookupd.post("/topic/tombstone?topic=u&node=a:4151").status == 200
    (node,) = lookupd.get("/nodes").json["producers"]
    hidden = dict(zip(node["topics"], node["tombstones"], strict=True))
    assert hidden == {"t": False, "u": True}


def test_a_lost_connection_takes_its_producer_and_leaves_the_names(
    lookupd: Nsqlookupd, connect: Connect
) -> None:
    a = connect("a")
    a.register("t", "c#ephemeral")
    a.close()
    wait_until(lambda: lookupd.get("/nodes").json["producers"] == [])
    assert lookupd.get("/lookup?topic=t").json == {"channels": ["c#ephemeral"], "producers": []}


def test_an_unregistered_ephemeral_name_is_gone(lookupd: Nsqlookupd, connect: Connect) -> None:
    a = connect("a")
    a.register("t#ephemeral", "c#ephemeral")
    a.unregister("t#ephemeral", "c#ephemeral")
    assert lookupd.get("/channels?topic=t%23ephemeral").json == {"channels": []}
    a.unregister("t#ephemeral")
    assert lookupd.get("/lookup?topic=t%23ephemeral").status == 404


def test_an_error_ends_the_connection_and_its_registrations(
    lookupd: Nsqlookupd, connect: Connect
) -> None:
    a = connect("a")
    a.register("t")
    assert a.do(b"REGISTER t b$d\n").startswith(b"E_BAD_CHANNEL")
    assert a.raw.closed()
    a.close()
    wait_until(lambda: lookupd.get("/nodes").json["producers"] == [])


def test_a_deleted_registration_is_not_repaired_by_a_ping(
    lookupd: Nsqlookupd, connect: Connect
) -> None:
    a = connect("a")
    a.register("t", "c")
    lookupd.post("/topic/delete?topic=t")
    assert a.do(b"PING\n") == b"OK"
    assert lookupd.get("/lookup?topic=t").status == 404
    assert lookupd.get("/nodes").json["producers"][0]["topics"] == []
    a.register("t", "c")
    assert lookupd.get("/lookup?topic=t").json["channels"] == ["c"]


@pytest.mark.parametrize("star", ["*", "%2A", "t*", "?"])
def test_a_star_is_no_pattern(lookupd: Nsqlookupd, connect: Connect, star: str) -> None:
    a = connect("a")
    a.register("t", "c")
    assert lookupd.get(f"/lookup?topic={star}").status == 404
    assert lookupd.get(f"/channels?topic={star}").json == {"channels": []}
    assert lookupd.post(f"/topic/delete?topic={star}").status == 200
    assert lookupd.post(f"/topic/tombstone?topic={star}&node=a:4151").status == 200
    seen = lookupd.get("/lookup?topic=t").json
    assert seen == {"channels": ["c"], "producers": [a.shown("a")]}


def test_a_tombstone_hides_and_only_a_new_registration_shows_again(
    lookupd: Nsqlookupd, connect: Connect
) -> None:
    a, b = connect("a"), connect("b")
    for peer in (a, b):
        peer.register("t", "c")
        peer.register("u")
    assert lookupd.post("/topic/tombstone?topic=t&node=a:4151").body == b""
    assert hosts(lookupd, "t") == ["b"]
    assert hosts(lookupd, "u") == ["a", "b"]
    a.register("t", "c")
    assert hosts(lookupd, "t") == ["b"]
    a.unregister("t")
    a.register("t", "c")
    assert hosts(lookupd, "t") == ["a", "b"]
    assert lookupd.post("/topic/tombstone?topic=t&node=nobody:1").status == 200
    assert hosts(lookupd, "t") == ["a", "b"]


def hosts(lookupd: Nsqlookupd, topic: str) -> list[str]:
    producers = lookupd.get(f"/lookup?topic={topic}").json["producers"]
    return sorted(producer["broadcast_address"] for producer in producers)


def test_debug_shows_every_key_that_has_producers(lookupd: Nsqlookupd, connect: Connect) -> None:
    before_ns = time.time_ns()
    a = connect("a")
    a.register("t", "c")
    lookupd.post("/topic/create?topic=empty")
    lookupd.post("/topic/tombstone?topic=t&node=a:4151")
    seen = lookupd.get("/debug").json
    assert set(seen) == {"client::", "topic:t:", "channel:t:c"}
    ((client,), (topic,), (channel,)) = (
        seen[key] for key in ("client::", "topic:t:", "channel:t:c")
    )
    assert list(client) == sorted(client)
    assert client["id"] == topic["id"] == channel["id"] == a.address
    assert before_ns <= client["last_update"] <= time.time_ns()
    assert (client["tombstoned"], client["tombstoned_at"]) == (False, GO_ZERO_NS)
    assert (channel["tombstoned"], channel["tombstoned_at"]) == (False, GO_ZERO_NS)
    assert topic["tombstoned"] is True
    assert before_ns <= topic["tombstoned_at"] <= time.time_ns()


def test_the_profiler_has_its_pages(lookupd: Nsqlookupd) -> None:
    assert lookupd.get("/debug/pprof").status == 301
    for page in ("", "cmdline", "symbol", "heap", "goroutine", "block", "threadcreate"):
        assert lookupd.get(f"/debug/pprof/{page}").status == 200, page
    assert lookupd.get("/debug/pprof/profile?seconds=0.05").status == 200
    assert b"nsqlookupd" in lookupd.get("/debug/pprof/cmdline").body
    assert_error(lookupd.post("/debug/freememory"), 404, "NOT_FOUND")


def test_silence_hides_a_producer_and_a_ping_shows_it_again() -> None:
    options = ("--inactive-producer-timeout=200ms", "--tombstone-lifetime=300ms")
    with Nsqlookupd(*options) as lookupd, lookupd.connect() as raw:
        a = Peer(raw, "a")
        a.register("t")
        wait_until(lambda: hosts(lookupd, "t") == [])
        assert lookupd.get("/nodes").json == {"producers": []}
        assert set(lookupd.get("/debug").json) == {"client::", "topic:t:"}
        a.do(b"PING\n")
        assert hosts(lookupd, "t") == ["a"]
        lookupd.post("/topic/tombstone?topic=t&node=a:4151")
        assert hosts(lookupd, "t") == []
        time.sleep(0.35)
        a.do(b"PING\n")
        assert hosts(lookupd, "t") == ["a"]


def test_a_peer_that_reads_nothing_is_not_listened_to(
    lookupd: Nsqlookupd, connect: Connect
) -> None:
    a = connect("a")
    a.raw.sock.settimeout(0.5)
    pings = b"PING\n" * 20_000
    with pytest.raises(TimeoutError):
        for _ in range(500):
            a.raw.sock.sendall(pings)
    assert lookupd.get("/ping").body == b"OK"
