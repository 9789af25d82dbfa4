"""nsqd's HTTP API against a real daemon: every route, every error, and what each does."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator

import pytest

from penstock.wire import commands
from tests.support.daemon import RESPONSE, Nsqd, Reply

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
V1 = "nsq; version=1.0"

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("http"), "--max-msg-size=1000", "--max-body-size=5000") as d:
        yield d


@pytest.fixture
def topic() -> str:
    """A name no other test uses; the topic does not exist yet."""
    return f"topic-{next(_numbers)}"


def message_of(reply: Reply) -> tuple[int, str]:
    """Status and message of an error, whose form is checked too."""
    assert reply.headers["Content-Type"] == JSON
    assert reply.headers["X-Nsq-Content-Type"] == V1
    assert reply.body == json.dumps(reply.json, separators=(",", ":")).encode()
    return reply.status, reply.json["message"]


def is_ok(reply: Reply) -> bool:
    return (
        (reply.status, reply.body) == (200, b"OK")
        and reply.headers["Content-Type"] == TEXT
        and reply.headers["X-Nsq-Content-Type"] == V1
    )


def is_empty(reply: Reply) -> bool:
    return (
        (reply.status, reply.body) == (200, b"")
        and reply.headers["Content-Length"] == "0"
        and reply.headers["X-Nsq-Content-Type"] == V1
        and "Content-Type" not in reply.headers
    )


# General


def test_ping(nsqd: Nsqd) -> None:
    for target in ("/ping", "/ping?", "/ping?ts=1"):
        reply = nsqd.get(target)
        assert (reply.status, reply.body, reply.headers["Content-Type"]) == (200, b"OK", TEXT)
        assert "X-Nsq-Content-Type" not in reply.headers


def test_info(nsqd: Nsqd) -> None:
    reply = nsqd.get("/info")
    assert reply.status == 200
    assert list(reply.json)[:12] == [
        "version",
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "start_time",
        "max_heartbeat_interval",
        "max_output_buffer_size",
        "max_output_buffer_timeout",
        "max_deflate_level",
        "topology_zone",
        "topology_region",
    ]
    assert reply.json["tcp_port"] == nsqd.tcp_port
    assert reply.json["http_port"] == nsqd.http_port
    assert reply.json["max_heartbeat_interval"] == 60_000_000_000
    assert reply.json["max_output_buffer_timeout"] == 30_000_000_000


@pytest.mark.parametrize(
    ("method", "target", "status", "header"),
    [
        ("GET", "/", 404, None),
        ("POST", "/put?topic=t", 404, None),
        ("POST", "/mput?topic=t", 404, None),
        ("GET", "/pub", 405, ("Allow", "OPTIONS, POST")),
        ("POST", "/stats", 405, ("Allow", "GET, OPTIONS")),
        ("POST", "/config/log_level", 405, ("Allow", "GET, OPTIONS, PUT")),
        ("HEAD", "/ping", 405, ("Allow", "GET, OPTIONS")),
        ("OPTIONS", "/pub", 200, ("Allow", "OPTIONS, POST")),
        ("GET", "/Ping/?x=y", 301, ("Location", "/ping?x=y")),
        ("POST", "/pub/?topic=t", 307, ("Location", "/pub?topic=t")),
    ],
)
def test_routing(
    nsqd: Nsqd, method: str, target: str, status: int, header: tuple[str, str] | None
) -> None:
    reply = nsqd.http(method, target)
    assert reply.status == status
    if header:
        assert reply.headers[header[0]] == header[1]
    if status == 404:
        assert message_of(reply) == (404, "NOT_FOUND")


@pytest.mark.parametrize("magic", [b"  V2", b"  V2IDENTIFY\n\0\0\0\x02{}"])
def test_an_nsq_client_on_the_wrong_port_gets_an_http_answer(nsqd: Nsqd, magic: bytes) -> None:
    with socket.create_connection(("127.0.0.1", nsqd.http_port), 5) as sock:
        sock.sendall(magic)
        assert sock.recv(65536).startswith(b"HTTP/1.1 400 Bad Request\r\n")


# Publishing


@pytest.mark.parametrize(
    ("query", "size", "answer"),
    [
        ("topic=b@d", 1001, (413, "MSG_TOO_BIG")),
        ("topic=b@d", 0, (400, "MSG_EMPTY")),
        ("topic=t;", 1, (400, "INVALID_REQUEST")),
        ("topic=%zz", 1, (400, "INVALID_REQUEST")),
        ("", 1, (400, "MISSING_ARG_TOPIC")),
        ("topic=b@d", 1, (400, "INVALID_TOPIC")),
        ("topic=t&defer=", 1, (400, "INVALID_DEFER")),
        ("topic=t&defer=-1", 1, (400, "INVALID_DEFER")),
        ("topic=t&defer=soon", 1, (400, "INVALID_DEFER")),
    ],
)
def test_pub_refuses(nsqd: Nsqd, query: str, size: int, answer: tuple[int, str]) -> None:
    assert message_of(nsqd.post(f"/pub?{query}", b"x" * size)) == answer


def test_pub_is_delivered(nsqd: Nsqd, topic: str) -> None:
    with nsqd.connect() as raw:
        raw.subscribe(topic)
        assert is_ok(nsqd.post(f"/pub?topic={topic}", b"x" * 1000))
        assert raw.message().body == b"x" * 1000
        assert is_ok(nsqd.post(f"/pub?topic={topic}&defer=0", b"now"))
        assert raw.message().body == b"now"


def test_a_deferred_pub_is_delivered_later_and_not_before(nsqd: Nsqd, topic: str) -> None:
    with nsqd.connect() as raw:
        raw.subscribe(topic)
        assert is_ok(nsqd.post(f"/pub?topic={topic}&defer=300", b"later"))
        assert nsqd.channel(topic, "c")["deferred_count"] == 1
        assert raw.silent(0.2)
        assert raw.message().body == b"later"
        assert nsqd.channel(topic, "c")["deferred_count"] == 0


@pytest.mark.parametrize(
    ("query", "body", "answer"),
    [
        ("topic=b@d", b"x" * 5001, (413, "BODY_TOO_BIG")),
        ("topic=b@d", b"x", (400, "INVALID_TOPIC")),
        ("", b"x", (400, "MISSING_ARG_TOPIC")),
        ("topic=t;", b"x", (400, "INVALID_REQUEST")),
        ("topic=t", b"a\n" + b"x" * 1001, (413, "MSG_TOO_BIG")),
        ("topic=t&binary=true", b"", (413, "BAD_BODY")),
        ("topic=t&binary=true", b"\0\0\0\0", (413, "BAD_BODY")),
        ("topic=t&binary=true", b"\0\0\x03\xe8", (413, "BAD_BODY")),
        ("topic=t&binary=true", b"\0\0\0\x01\0\0\0\0", (413, "BAD_MESSAGE")),
        ("topic=t&binary=true", b"\0\0\0\x01\0\0\0\x02a", (413, "BAD_MESSAGE")),
        ("topic=t&binary=true", commands.multi([b"x" * 1001]), (413, "BAD_MESSAGE")),
    ],
)
def test_mpub_refuses(nsqd: Nsqd, query: str, body: bytes, answer: tuple[int, str]) -> None:
    assert message_of(nsqd.post(f"/mpub?{query}", body)) == answer


@pytest.mark.parametrize(
    ("query", "body", "bodies"),
    [
        ("", b"a\n\nb\r\nc", [b"a", b"b\r", b"c"]),
        ("&binary=0", b"a\n", [b"a"]),
        ("&binary=true", commands.multi([b"a\n", b"b"]), [b"a\n", b"b"]),
        ("&binary=", commands.multi([b"a"]) + b"surplus", [b"a"]),
    ],
)
def test_mpub_is_delivered(
    nsqd: Nsqd, topic: str, query: str, body: bytes, bodies: list[bytes]
) -> None:
    with nsqd.connect() as raw:
        raw.subscribe(topic)
        assert is_ok(nsqd.post(f"/mpub?topic={topic}{query}", body))
        assert sorted(raw.message().body for _ in bodies) == sorted(bodies)
        assert raw.silent(0.03)


def test_mpub_of_no_messages_is_ok(nsqd: Nsqd, topic: str) -> None:
    assert is_ok(nsqd.post(f"/mpub?topic={topic}", b"\n"))
    assert nsqd.stats(f"&topic={topic}")["topics"][0]["message_count"] == 0


# Topics


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("/topic/create", (400, "MISSING_ARG_TOPIC")),
        ("/topic/create?topic=b@d", (400, "INVALID_TOPIC")),
        ("/topic/create?topic=a;b", (400, "INVALID_REQUEST")),
        ("/topic/delete", (400, "MISSING_ARG_TOPIC")),
        ("/topic/delete?topic=none", (404, "TOPIC_NOT_FOUND")),
        ("/topic/delete?topic=b@d", (404, "TOPIC_NOT_FOUND")),
        ("/topic/empty", (400, "MISSING_ARG_TOPIC")),
        ("/topic/empty?topic=b@d", (400, "INVALID_TOPIC")),
        ("/topic/empty?topic=none", (404, "TOPIC_NOT_FOUND")),
        ("/topic/pause", (400, "MISSING_ARG_TOPIC")),
        ("/topic/pause?topic=none", (404, "TOPIC_NOT_FOUND")),
        ("/topic/unpause?topic=b@d", (404, "TOPIC_NOT_FOUND")),
    ],
)
def test_topic_routes_refuse(nsqd: Nsqd, target: str, answer: tuple[int, str]) -> None:
    assert message_of(nsqd.post(target)) == answer


@pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
def test_channel_routes_refuse(nsqd: Nsqd, topic: str, action: str) -> None:
    assert is_empty(nsqd.post(f"/topic/create?topic={topic}"))
    rows = [
        ("", (400, "MISSING_ARG_TOPIC")),
        ("topic=b@d", (400, "INVALID_ARG_TOPIC")),
        ("topic=none", (400, "MISSING_ARG_CHANNEL")),
        ("topic=none&channel=b@d", (400, "INVALID_ARG_CHANNEL")),
        ("topic=none&channel=c", (404, "TOPIC_NOT_FOUND")),
    ]
    if action != "create":
        rows.append((f"topic={topic}&channel=none", (404, "CHANNEL_NOT_FOUND")))
    for query, answer in rows:
        assert message_of(nsqd.post(f"/channel/{action}?{query}")) == answer


def test_creating_twice_is_fine(nsqd: Nsqd, topic: str) -> None:
    for _ in range(2):
        assert is_empty(nsqd.post(f"/topic/create?topic={topic}", b"ignored"))
        assert is_empty(nsqd.post(f"/channel/create?topic={topic}&channel=c"))
    (stats,) = nsqd.stats(f"&topic={topic}")["topics"]
    assert [channel["channel_name"] for channel in stats["channels"]] == ["c"]


def test_emptying_a_topic_discards_its_own_messages_only(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    nsqd.post(f"/pub?topic={topic}", b"in the channel")
    nsqd.post(f"/topic/pause?topic={topic}")
    nsqd.post(f"/pub?topic={topic}", b"in the topic")
    assert nsqd.stats(f"&topic={topic}")["topics"][0]["depth"] == 1
    assert is_empty(nsqd.post(f"/topic/empty?topic={topic}"))
    (stats,) = nsqd.stats(f"&topic={topic}")["topics"]
    assert (stats["depth"], stats["channels"][0]["depth"]) == (0, 1)
    assert is_empty(nsqd.post(f"/topic/unpause?topic={topic}"))


def test_a_paused_topic_keeps_its_messages_from_the_channels(nsqd: Nsqd, topic: str) -> None:
    with nsqd.connect() as raw:
        raw.subscribe(topic)
        assert is_empty(nsqd.post(f"/topic/pause?topic={topic}"))
        assert nsqd.stats(f"&topic={topic}")["topics"][0]["paused"] is True
        nsqd.post(f"/pub?topic={topic}", b"m")
        assert raw.silent(0.05)
        assert is_empty(nsqd.post(f"/topic/unpause?topic={topic}"))
        assert raw.message().body == b"m"


def test_a_paused_channel_keeps_its_messages_from_the_clients(nsqd: Nsqd, topic: str) -> None:
    with nsqd.connect() as raw:
        raw.subscribe(topic)
        query = f"topic={topic}&channel=c"
        assert is_empty(nsqd.post(f"/channel/pause?{query}"))
        nsqd.post(f"/pub?topic={topic}", b"m")
        assert raw.silent(0.05)
        stats = nsqd.channel(topic, "c")
        assert (stats["paused"], stats["depth"]) == (True, 1)
        assert is_empty(nsqd.post(f"/channel/unpause?{query}"))
        assert raw.message().body == b"m"


def test_emptying_a_channel_discards_what_is_queued_in_flight_and_deferred(
    nsqd: Nsqd, topic: str
) -> None:
    with nsqd.connect() as raw:
        raw.subscribe(topic, ready_count=2)
        nsqd.post(f"/mpub?topic={topic}", b"a\nb\nc\nd")
        first, second = raw.message(), raw.message()
        raw.send(commands.rdy(1), commands.req(first.id, 60_000))
        nsqd.post(f"/pub?topic={topic}&defer=60000", b"e")
        stats = nsqd.channel(topic, "c")
        counts = (stats["depth"], stats["in_flight_count"], stats["deferred_count"])
        assert counts == (2, 1, 2)
        assert is_empty(nsqd.post(f"/channel/empty?topic={topic}&channel=c"))
        stats = nsqd.channel(topic, "c")
        counts = (stats["depth"], stats["in_flight_count"], stats["deferred_count"])
        assert counts == (0, 0, 0)
        _, data = raw.command(commands.fin(second.id))
        assert data.endswith(b"failed ID not in flight")
        nsqd.post(f"/pub?topic={topic}", b"f")
        assert raw.message().body == b"f"


def test_deleting_a_channel_closes_its_consumers(nsqd: Nsqd, topic: str) -> None:
    with nsqd.connect() as raw, nsqd.connect() as other:
        raw.subscribe(topic, "c")
        other.subscribe(topic, "d")
        assert is_empty(nsqd.post(f"/channel/delete?topic={topic}&channel=c"))
        assert raw.closed()
        assert other.silent(0.03)
        (stats,) = nsqd.stats(f"&topic={topic}")["topics"]
        assert [channel["channel_name"] for channel in stats["channels"]] == ["d"]


def test_deleting_a_topic_closes_consumers_and_leaves_producers(nsqd: Nsqd, topic: str) -> None:
    with nsqd.connect() as consumer, nsqd.connect() as producer:
        consumer.subscribe(topic)
        assert producer.command(commands.pub(topic, b"a")) == (RESPONSE, b"OK")
        assert consumer.message().body == b"a"
        assert is_empty(nsqd.post(f"/topic/delete?topic={topic}"))
        assert consumer.closed()
        assert nsqd.stats(f"&topic={topic}")["topics"] is None
        assert producer.command(commands.pub(topic, b"b")) == (RESPONSE, b"OK")
        (stats,) = nsqd.stats(f"&topic={topic}")["topics"]
        assert (stats["message_count"], stats["depth"], stats["channels"]) == (1, 1, [])


# Statistics


def test_stats_follow_a_message(nsqd: Nsqd, topic: str) -> None:
    with nsqd.connect() as raw:
        fields = {"client_id": "worker1", "hostname": "worker1.example.com", "user_agent": "ua"}
        assert raw.command(commands.identify(fields)) == (RESPONSE, b"OK")
        raw.subscribe(topic, ready_count=3)
        assert raw.command(commands.mpub(topic, [b"a", b"bb", b"ccc"])) == (RESPONSE, b"OK")
        first, second, _ = (raw.message() for _ in range(3))
        raw.send(commands.fin(first.id), commands.req(second.id))
        assert raw.message().attempts == 2
        stats = nsqd.stats(f"&topic={topic}&channel=c")
        (topic_stats,) = stats["topics"]
        (channel,) = topic_stats["channels"]
        (client,) = channel["clients"]
        assert (topic_stats["message_count"], topic_stats["message_bytes"]) == (3, 6)
        assert topic_stats["e2e_processing_latency"] == {"count": 0, "percentiles": None}
        counts = {name: value for name, value in channel.items() if type(value) is int}
        assert counts == {
            "depth": 0,
            "backend_depth": 0,
            "in_flight_count": 2,
            "deferred_count": 0,
            "message_count": 3,
            "global_msg_count": 4,
            "requeue_count": 1,
            "timeout_count": 0,
            "client_count": 1,
        }
        host, port = raw.sock.getsockname()
        connect_ts = client.pop("connect_ts")
        assert abs(connect_ts - stats["start_time"]) < 1000
        assert client == {
            "client_id": "worker1",
            "hostname": "worker1.example.com",
            "version": "V2",
            "remote_address": f"{host}:{port}",
            "state": 3,
            "ready_count": 3,
            "in_flight_count": 2,
            "message_count": 4,
            "finish_count": 1,
            "requeue_count": 1,
            "sample_rate": 0,
            "deflate": False,
            "snappy": False,
            "user_agent": "ua",
            "topology_zone": "",
            "topology_region": "",
            "pub_counts": [{"topic": topic, "count": 3}],
            "tls": False,
            "tls_cipher_suite": "",
            "tls_version": "",
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": False,
        }
        assert client in [
            {name: value for name, value in producer.items() if name != "connect_ts"}
            for producer in stats["producers"]
        ]


def test_stats_filters(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    assert nsqd.stats("&topic=none")["topics"] is None
    assert nsqd.stats(f"&topic={topic}&channel=none")["topics"] == []
    without = nsqd.stats(f"&topic={topic}&include_clients=false&include_mem=false")
    assert "memory" not in without
    assert without["producers"] is None
    assert without["topics"][0]["channels"][0]["clients"] is None
    assert len(nsqd.stats("&include_clients=what")["memory"]) == 9
    names = [entry["topic_name"] for entry in nsqd.stats()["topics"]]
    assert names == sorted(names)
    assert message_of(nsqd.get("/stats?format=json;")) == (400, "INVALID_REQUEST")


def test_stats_as_text(nsqd: Nsqd, topic: str) -> None:
    with nsqd.connect() as raw:
        raw.subscribe(topic)
        assert raw.command(commands.pub(topic, b"m")) == (RESPONSE, b"OK")
        reply = nsqd.get("/stats")
    assert reply.headers["Content-Type"] == TEXT
    lines = reply.text.split("\n")
    assert lines[0].startswith("nsqd v1.3.0 (built w/go")
    assert lines[1].startswith("start_time 20") and lines[1].endswith("Z")
    assert lines[2].startswith("uptime ")
    assert lines[3:6] == ["", "Health: OK", ""]
    assert f"   [{topic:<15}] depth: 0     be-depth: 0     msgs: 1        e2e%: " in lines


# Options


@pytest.mark.parametrize(
    ("option", "body"),
    [
        ("max_msg_size", "1000"),
        ("msg_timeout", "60000000000"),
        ("log_level", "2"),
        ("tls_min_version", "769"),
        ("auth_http_addresses", "[]"),
        ("snappy", "true"),
    ],
)
def test_options_can_be_read(nsqd: Nsqd, option: str, body: str) -> None:
    reply = nsqd.get(f"/config/{option}")
    assert (reply.status, reply.text, reply.headers["Content-Type"]) == (200, body, JSON)


def test_string_options_are_text(nsqd: Nsqd) -> None:
    reply = nsqd.get("/config/data_path")
    assert (reply.text, reply.headers["Content-Type"]) == (str(nsqd.data_path), TEXT)


def test_the_log_level_can_be_changed(nsqd: Nsqd) -> None:
    assert nsqd.http("PUT", "/config/log_level", b"DEBUG").text == "1"
    assert nsqd.get("/config/log_level").text == "1"
    assert nsqd.http("PUT", "/config/log_level", b"info").text == "2"


@pytest.mark.parametrize(
    ("option", "body", "answer"),
    [
        ("log_level", b"", (413, "INVALID_VALUE")),
        ("log_level", b"x" * 1001, (413, "INVALID_VALUE")),
        ("log_level", b"loud", (400, "INVALID_VALUE")),
        ("max_msg_size", b"1", (400, "INVALID_OPTION")),
    ],
)
def test_other_options_cannot(
    nsqd: Nsqd, option: str, body: bytes, answer: tuple[int, str]
) -> None:
    assert message_of(nsqd.http("PUT", f"/config/{option}", body)) == answer


def test_an_unknown_option(nsqd: Nsqd) -> None:
    assert message_of(nsqd.get("/config/nope")) == (400, "INVALID_OPTION")
