"""nsqd's routes on an engine without disk: texts, order of checks, what reaches the broker."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import pytest

from penstock.engine.stats.memory import Memory
from penstock.nsqd.clients import Clients
from penstock.nsqd.http_api import NsqdApi
from penstock.wire import commands
from tests.support.engine import MS, Engine
from tests.support.faults import WRITES
from tests.unit.net.harness import Harness, get, post, request
from tests.unit.nsqd.worker import Worker

OPTIONS: dict[str, Any] = {
    "broadcast_address": "host1",
    "max_msg_size": 100,
    "max_body_size": 1000,
    "sync_every": 1,
}
TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"


class Api(Harness):
    """The API on an engine, and short ways to ask it.

    The engine comes to rest every millisecond, on the server's loop, unless it is ``held``.
    """

    def __init__(self, seed: int = 0) -> None:
        self.engine = Engine(seed=seed, **OPTIONS)
        self.broker = self.engine.broker
        self.held = False
        self.api = NsqdApi(self.engine.components, Clients(), Memory())
        self.api.http_port = 4151
        self.api.tcp_port = 4150
        super().__init__(self.api.router)

    def __enter__(self) -> Self:
        super().__enter__()
        self._settling = self.start(self._settle())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._settling.cancel()
        super().__exit__(kind, error, trace)

    async def _settle(self) -> None:
        while True:
            if not self.held:
                self.engine.settle()
            await asyncio.sleep(0.001)

    def step(self) -> None:
        """One call, or else one work of the disk."""
        engine = self.engine
        if engine.turns.calls:
            engine.turns.calls.popleft()()
        elif engine.disk.works:
            engine.disk.step()

    def break_disk(self, pattern: str = "*") -> None:
        self.engine.files.faults.add(pattern, errno.EIO, *WRITES)

    def post(self, target: str, body: bytes = b"") -> tuple[int, str]:
        return self.short(post(target, body))

    def get(self, target: str) -> tuple[int, str]:
        return self.short(get(target))

    def short(self, data: bytes) -> tuple[int, str]:
        """Status, and the body or an error's message."""
        status, headers, body = self.ask(data)
        if status >= 400 and headers["content-type"] == JSON:
            assert headers["x-nsq-content-type"] == "nsq; version=1.0"
            return status, json.loads(body)["message"]
        return status, body.decode()

    def stats(self, query: str = "") -> Any:
        status, text = self.get(f"/stats?format=json{query}")
        assert status == 200
        return json.loads(text)

    def bodies(self, topic: str) -> list[bytes]:
        return list(self.on_loop(self.engine.logged, topic).values())


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as harness:
        yield harness


# Ping and info


def test_ping_is_plain_and_knows_no_v1(api: Api) -> None:
    status, headers, body = api.ask(get("/ping?"))
    assert (status, body, headers["content-type"]) == (200, b"OK", TEXT)
    assert "x-nsq-content-type" not in headers


def test_ping_tells_the_last_disk_error(api: Api) -> None:
    api.engine.components.health.failed(OSError(errno.ENOSPC, "No space left on device"))
    status, headers, body = api.ask(get("/ping"))
    assert (status, headers["content-type"]) == (500, TEXT)
    assert body == b"NOK - [Errno 28] No space left on device"


def test_info_has_nsqds_fields_in_order(api: Api) -> None:
    status, headers, body = api.ask(get("/info"))
    assert (status, headers["content-type"]) == (200, JSON)
    info = json.loads(body)
    hostname = info["hostname"]
    assert body.decode().startswith(
        '{"version":"1.3.0","broadcast_address":"host1","hostname":"' + hostname + '",'
        '"http_port":4151,"tcp_port":4150,"start_time":1800000000,'
        '"max_heartbeat_interval":60000000000,"max_output_buffer_size":65536,'
        '"max_output_buffer_timeout":30000000000,"max_deflate_level":6,'
        '"topology_zone":"","topology_region":""'
    )
    assert info["node_uuid"] == api.engine.components.identity.uuid


# Publishing


def test_pub_creates_the_topic_and_publishes(api: Api) -> None:
    status, headers, body = api.ask(post("/pub?topic=t", b"hello"))
    assert (status, body, headers["content-type"]) == (200, b"OK", TEXT)
    assert headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert api.bodies("t") == [b"hello"]


def test_pub_takes_a_chunked_body(api: Api) -> None:
    chunked = b"3\r\nabc\r\n0\r\n\r\n"
    data = request("POST", "/pub?topic=t", chunked, "Transfer-Encoding: chunked")
    assert api.short(data) == (200, "OK")
    assert api.bodies("t") == [b"abc"]


def test_the_first_value_of_a_key_wins(api: Api) -> None:
    assert api.post("/pub?topic=a&topic=b&ts=1", b"x") == (200, "OK")
    assert list(api.broker.topics) == ["a"]


@pytest.mark.parametrize("target", ["/pub?topic=a%23ephemeral", "/pub?topic=a#ephemeral"])
def test_an_ephemeral_name_may_come_escaped_or_not(api: Api, target: str) -> None:
    assert api.post(target, b"x") == (200, "OK")
    assert list(api.broker.topics) == ["a#ephemeral"]


@pytest.mark.parametrize(
    ("target", "size", "answer"),
    [
        ("/pub?topic=b@d&;", 101, (413, "MSG_TOO_BIG")),
        ("/pub?topic=b@d&;", 0, (400, "MSG_EMPTY")),
        ("/pub?topic=t;x", 1, (400, "INVALID_REQUEST")),
        ("/pub?topic=t%zz", 1, (400, "INVALID_REQUEST")),
        ("/pub", 1, (400, "MISSING_ARG_TOPIC")),
        ("/pub?", 1, (400, "MISSING_ARG_TOPIC")),
        ("/pub?topic=b@d&defer=x", 1, (400, "INVALID_TOPIC")),
        ("/pub?topic=", 1, (400, "INVALID_TOPIC")),
        ("/pub?topic=" + "x" * 65, 1, (400, "INVALID_TOPIC")),
        ("/pub?topic=t%0a", 1, (400, "INVALID_TOPIC")),
        ("/pub?topic=t%ff", 1, (400, "INVALID_TOPIC")),
        ("/pub?topic=t&defer=x", 1, (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=", 1, (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=-1", 1, (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=1.5", 1, (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=1_000", 1, (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=9999999999999999999", 1, (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=31536000001", 1, (400, "INVALID_DEFER")),
        ("/pub?topic=t", 100, (200, "OK")),
    ],
)
def test_pub_judges_in_nsqds_order(
    api: Api, target: str, size: int, answer: tuple[int, str]
) -> None:
    assert api.post(target, b"x" * size) == answer


def test_an_invalid_defer_leaves_the_topic_created(api: Api) -> None:
    assert api.post("/pub?topic=t&defer=x", b"x") == (400, "INVALID_DEFER")
    assert api.bodies("t") == []


def test_pub_defers(api: Api) -> None:
    assert api.post("/pub?topic=t&defer=250", b"x") == (200, "OK")
    assert api.post("/pub?topic=t&defer=0", b"y") == (200, "OK")
    assert api.post("/pub?topic=t&defer=%2B31536000000", b"z") == (200, "OK")
    assert api.bodies("t") == [b"y"]
    api.on_loop(api.engine.advance, 249 * MS)
    assert api.bodies("t") == [b"y"]
    api.on_loop(api.engine.advance, MS)
    assert api.bodies("t") == [b"y", b"x"]
    instance = api.engine.topic("t").instance
    assert api.engine.components.deferred.due_hours(instance) == {1_831_536_000: 1}, (
        "a year from now"
    )


def test_a_publish_that_fails_is_503(api: Api) -> None:
    api.break_disk()
    assert api.post("/pub?topic=t", b"x") == (503, "EXITING")
    assert api.post("/mpub?topic=t", b"x\ny") == (503, "EXITING")
    assert api.post("/pub?topic=t&defer=1", b"x") == (503, "EXITING")


def test_ok_waits_for_the_disk(api: Api) -> None:
    assert api.post("/topic/create?topic=t") == (200, "")
    api.held = True
    with api.connect() as raw:
        raw.send(post("/pub?topic=t", b"x"))
        assert raw.silent(0.05)
        api.held = False
        assert raw.answer()[2] == b"OK"


@pytest.mark.parametrize("seed", range(1, 5))
def test_ok_to_a_new_topic_waits_for_the_topic_too(seed: int) -> None:
    with Api(seed) as api, api.connect() as raw:
        api.held = True
        raw.send(post("/pub?topic=t", b"x"))
        assert raw.silent(0.05)
        topic = api.broker.topics["t"]
        while not (topic.created.done and topic.message_count):
            assert raw.silent(0.005)
            api.on_loop(api.step)
        assert raw.answer()[2] == b"OK"


@pytest.mark.parametrize("failing", ["*/journal", "*.log"])
def test_either_failure_of_topic_and_message_is_503(api: Api, failing: str) -> None:
    api.break_disk(failing)
    assert api.post("/pub?topic=t", b"x") == (503, "EXITING")


@pytest.mark.parametrize(
    ("query", "body", "bodies"),
    [
        ("", b"a\nb\n\n\nc\r\n", [b"a", b"b", b"c\r"]),
        ("", b"a\nb", [b"a", b"b"]),
        ("", b"", []),
        ("", b"\n\n", []),
        ("&binary=false", b"a\n", [b"a"]),
        ("&binary=0", b"a\n", [b"a"]),
        ("&binary=true", commands.multi([b"a\n", b"b"]), [b"a\n", b"b"]),
        ("&binary=1", commands.multi([b"a"]) + b"surplus", [b"a"]),
        ("&binary=", commands.multi([b"a"]), [b"a"]),
        ("&binary=what", commands.multi([b"a"]), [b"a"]),
        ("&defer=x", b"a", [b"a"]),
    ],
)
def test_mpub_takes_lines_or_binary(api: Api, query: str, body: bytes, bodies: list[bytes]) -> None:
    assert api.post(f"/mpub?topic=t{query}", body) == (200, "OK")
    assert api.bodies("t") == bodies


@pytest.mark.parametrize(
    ("target", "body", "answer"),
    [
        ("/mpub?topic=b@d", b"x" * 1001, (413, "BODY_TOO_BIG")),
        ("/mpub?topic=b@d", b"x", (400, "INVALID_TOPIC")),
        ("/mpub", b"x", (400, "MISSING_ARG_TOPIC")),
        ("/mpub?topic=t;", b"x", (400, "INVALID_REQUEST")),
        ("/mpub?topic=t", b"x" * 101, (413, "MSG_TOO_BIG")),
        ("/mpub?topic=t", b"x" * 100 + b"\n" + b"y" * 101, (413, "MSG_TOO_BIG")),
        ("/mpub?topic=t&binary=true", b"", (413, "BAD_BODY")),
        ("/mpub?topic=t&binary=true", b"\0\0\0", (413, "BAD_BODY")),
        ("/mpub?topic=t&binary=true", b"\0\0\0\0", (413, "BAD_BODY")),
        ("/mpub?topic=t&binary=true", b"\xff\xff\xff\xff", (413, "BAD_BODY")),
        ("/mpub?topic=t&binary=true", b"\0\0\0\xc8", (413, "BAD_BODY")),
        ("/mpub?topic=t&binary=true", b"\0\0\0\xc7", (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=true", b"\0\0\0\x01\0\0\0\0", (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=true", b"\0\0\0\x01\xff\xff\xff\xffa", (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=true", b"\0\0\0\x01\0\0\0\x02a", (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=true", b"\0\0\0\x02\0\0\0\x01a\0\0\0", (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=true", commands.multi([b"x" * 101]), (413, "BAD_MESSAGE")),
    ],
)
def test_mpub_judges_in_nsqds_order(
    api: Api, target: str, body: bytes, answer: tuple[int, str]
) -> None:
    assert api.post(target, body) == answer
    if "t" in api.broker.topics:
        assert api.bodies("t") == []


def test_a_chunked_mpub_too_big_is_judged_after_its_topic(api: Api) -> None:
    body = b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n"
    for target, answer in (
        ("/mpub?topic=b@d", (400, "INVALID_TOPIC")),
        ("/mpub?topic=t", (413, "BODY_TOO_BIG")),
    ):
        data = request("POST", target, body, "Transfer-Encoding: chunked")
        assert api.short(data) == answer


@pytest.mark.parametrize("target", ["/put?topic=t", "/mput?topic=t"])
def test_the_old_publish_routes_are_gone(api: Api, target: str) -> None:
    assert api.post(target, b"x") == (404, "NOT_FOUND")


# Topics and channels


def test_success_without_a_value_is_empty(api: Api) -> None:
    status, headers, body = api.ask(post("/topic/create?topic=t", b"ignored"))
    assert (status, body, headers["content-length"]) == (200, b"", "0")
    assert headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert "content-type" not in headers


def test_topics_and_channels_live_and_die(api: Api) -> None:
    for target in (
        "/topic/create?topic=t",
        "/topic/create?topic=t",
        "/channel/create?topic=t&channel=c",
        "/channel/create?topic=t&channel=c",
    ):
        assert api.post(target) == (200, "")
    topic = api.broker.topics["t"]
    channel = topic.channels["c"]
    assert api.post("/topic/pause?topic=t") == (200, "")
    assert api.post("/channel/pause?topic=t&channel=c") == (200, "")
    assert topic.paused and channel.paused
    assert api.post("/topic/unpause?topic=t") == (200, "")
    assert api.post("/channel/unpause?topic=t&channel=c") == (200, "")
    assert not topic.paused and not channel.paused
    assert api.post("/pub?topic=t", b"x") == (200, "OK")
    assert api.post("/topic/pause?topic=t") == (200, "")
    assert api.post("/pub?topic=t", b"y") == (200, "OK")
    assert (channel.depth, topic.depth) == (1, 1)
    assert api.post("/channel/empty?topic=t&channel=c") == (200, "")
    assert (channel.depth, topic.depth) == (0, 1)
    assert api.post("/topic/empty?topic=t") == (200, "")
    assert topic.depth == 0
    assert api.post("/channel/delete?topic=t&channel=c") == (200, "")
    assert topic.channels == {}
    assert api.post("/topic/delete?topic=t") == (200, "")
    assert api.broker.topics == {}


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("/topic/create", (400, "MISSING_ARG_TOPIC")),
        ("/topic/create?topic=b@d", (400, "INVALID_TOPIC")),
        ("/topic/create?topic=", (400, "INVALID_TOPIC")),
        ("/topic/create?topic=%", (400, "INVALID_REQUEST")),
        ("/topic/delete", (400, "MISSING_ARG_TOPIC")),
        ("/topic/delete?topic=b@d", (404, "TOPIC_NOT_FOUND")),
        ("/topic/delete?topic=no", (404, "TOPIC_NOT_FOUND")),
        ("/topic/empty", (400, "MISSING_ARG_TOPIC")),
        ("/topic/empty?topic=b@d", (400, "INVALID_TOPIC")),
        ("/topic/empty?topic=no", (404, "TOPIC_NOT_FOUND")),
        ("/topic/pause", (400, "MISSING_ARG_TOPIC")),
        ("/topic/pause?topic=b@d", (404, "TOPIC_NOT_FOUND")),
        ("/topic/unpause?topic=no", (404, "TOPIC_NOT_FOUND")),
        ("/channel/create?topic=no&channel=c", (404, "TOPIC_NOT_FOUND")),
    ],
)
def test_topic_routes_judge_in_nsqds_order(api: Api, target: str, answer: tuple[int, str]) -> None:
    assert api.post(target) == answer


@pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
def test_channel_routes_judge_in_nsqds_order(api: Api, action: str) -> None:
    assert api.post("/topic/create?topic=t") == (200, "")
    rows = [
        (";", (400, "INVALID_REQUEST")),
        ("", (400, "MISSING_ARG_TOPIC")),
        ("topic=b@d", (400, "INVALID_ARG_TOPIC")),
        ("topic=no", (400, "MISSING_ARG_CHANNEL")),
        ("topic=no&channel=b@d", (400, "INVALID_ARG_CHANNEL")),
        ("topic=no&channel=c", (404, "TOPIC_NOT_FOUND")),
    ]
    if action != "create":
        rows.append(("topic=t&channel=c", (404, "CHANNEL_NOT_FOUND")))
    for query, answer in rows:
        assert api.post(f"/channel/{action}?{query}") == answer


@pytest.mark.parametrize(
    "target",
    [
        "/topic/create?topic=new",
        "/topic/delete?topic=t",
        "/topic/empty?topic=t",
        "/topic/pause?topic=t",
        "/channel/create?topic=t&channel=new",
        "/channel/delete?topic=t&channel=c",
        "/channel/empty?topic=t&channel=c",
        "/channel/unpause?topic=t&channel=c",
    ],
)
def test_a_change_that_cannot_be_stored_is_500(api: Api, target: str) -> None:
    for made in ("topic/create?topic=t", "channel/create?topic=t&channel=c"):
        assert api.post(f"/{made}") == (200, "")
    api.break_disk()
    assert api.post(target) == (500, "INTERNAL_ERROR")


def test_methods_are_as_in_nsqd(api: Api) -> None:
    for method, target, allow in (
        ("GET", "/pub", "OPTIONS, POST"),
        ("POST", "/ping", "GET, OPTIONS"),
        ("POST", "/config/log_level", "GET, OPTIONS, PUT"),
        ("HEAD", "/ping", "GET, OPTIONS"),
    ):
        with api.connect() as raw:
            raw.send(request(method, target, b""))
            status, headers, _ = raw.answer(head=method == "HEAD")
            assert (status, headers["allow"]) == (405, allow)


# Options


@pytest.mark.parametrize(
    ("option", "answer"),
    [
        ("msg_timeout", (200, "60000000000")),
        ("log_level", (200, "2")),
        ("tls_required", (200, "0")),
        ("nsqlookupd_tcp_addresses", (200, "[]")),
        ("broadcast_address", (200, "host1")),
        ("statsd_prefix", (200, "nsq.host1_4151.")),
        ("id", (200, "5")),
        ("deflate", (200, "true")),
        ("nope", (400, "INVALID_OPTION")),
        ("msg-timeout", (400, "INVALID_OPTION")),
    ],
)
def test_options_can_be_read(api: Api, option: str, answer: tuple[int, str]) -> None:
    assert api.get(f"/config/{option}") == answer


def test_the_log_level_can_be_changed(api: Api) -> None:
    logger = logging.getLogger("penstock")
    before = logger.level
    try:
        assert api.short(request("PUT", "/config/log_level", b"WARN", "Content-Length: 4")) == (
            200,
            "3",
        )
        assert logger.level == logging.WARNING
        assert api.get("/config/log_level") == (200, "3")
    finally:
        logger.setLevel(before)


@pytest.mark.parametrize(
    ("option", "body", "answer"),
    [
        ("log_level", b"", (413, "INVALID_VALUE")),
        ("log_level", b"x" * 101, (413, "INVALID_VALUE")),
        ("nope", b"", (413, "INVALID_VALUE")),
        ("log_level", b"loud", (400, "INVALID_VALUE")),
        ("nope", b"x", (400, "INVALID_OPTION")),
        ("msg_timeout", b"1", (400, "INVALID_OPTION")),
    ],
)
def test_other_changes_are_refused(
    api: Api, option: str, body: bytes, answer: tuple[int, str]
) -> None:
    data = request("PUT", f"/config/{option}", body, f"Content-Length: {len(body)}")
    assert api.short(data) == answer


# Statistics, as far as the route is concerned; the rest is in engine/test_stats


def test_stats_takes_filters_from_the_query(api: Api) -> None:
    api.on_loop(Worker, api.engine, "a", "x")
    assert api.post("/topic/create?topic=b") == (200, "")
    assert [topic["topic_name"] for topic in api.stats()["topics"]] == ["a", "b"]
    assert api.stats("&topic=no")["topics"] is None
    assert api.stats("&channel=no")["topics"] == []
    (topic,) = api.stats("&topic=a&channel=x&include_clients=false")["topics"]
    assert topic["channels"][0]["clients"] is None
    assert topic["channels"][0]["client_count"] == 1
    assert len(api.stats()["memory"]) == 9
    assert "memory" not in api.stats("&include_mem=0")
    assert "memory" in api.stats("&include_mem=")


def test_stats_is_text_unless_json_is_said_exactly(api: Api) -> None:
    for target in ("/stats", "/stats?format=JSON", "/stats?format=text"):
        status, headers, body = api.ask(get(target))
        assert (status, headers["content-type"]) == (200, TEXT)
        assert body.startswith(b"nsqd v1.3.0 (built w/go")
    assert api.ask(get("/stats?format=json"))[1]["content-type"] == JSON
    assert api.get("/stats?;") == (400, "INVALID_REQUEST")
