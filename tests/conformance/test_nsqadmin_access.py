"""nsqadmin around its API: who may do what, notifications, options, proxies, protected nsqds."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.admin.cluster import Nsqadmin
from tests.support.certificates import Pki
from tests.support.daemon import Nsqd, Reply
from tests.support.endpoint import Endpoint

PAUSE = json.dumps({"action": "pause"}).encode()
JSON_TYPE = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    path = tmp_path_factory.mktemp("nsqd")
    with Nsqd(path, "--broadcast-address=127.0.0.1") as running:
        for number in range(60):
            running.post(f"/topic/create?topic=filler-{number:02d}-{'x' * 30}")
        running.post("/topic/create?topic=t")
        running.post("/channel/create?topic=t&channel=c")
        yield running


def admin_of(nsqd: Nsqd, *options: str) -> Nsqadmin:
    return Nsqadmin(f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}", *options)


@pytest.fixture(scope="module")
def admin(nsqd: Nsqd) -> Iterator[Nsqadmin]:
    with admin_of(nsqd) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(nsqd: Nsqd) -> Iterator[Nsqadmin]:
    with admin_of(
        nsqd, "--admin-user=alice", "--admin-user=bob", "--acl-http-header=X-Who"
    ) as running:
        yield running


def refused(reply: Reply) -> bool:
    assert reply.status in (200, 403), (reply.status, reply.body)
    if reply.status == 403:
        assert reply.json == {"message": "FORBIDDEN"}
    return reply.status == 403


CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/api/topics", {"topic": "t", "channel": "c"}),
    ("POST", "/api/topics/t", {"action": "unpause"}),
    ("POST", "/api/topics/t/c", {"action": "unpause"}),
    ("DELETE", "/api/topics/never", None),
    ("DELETE", "/api/topics/never/c", None),
    ("DELETE", "/api/nodes/127.0.0.1:9", {"topic": "never"}),
    ("POST", "/api/action", {"action": "unpause", "topic": "t"}),
    ("PUT", "/config/log_level", None),
]


@pytest.mark.parametrize(("method", "path", "fields"), CHANGES)
def test_only_admins_change_things(guarded: Nsqadmin, method: str, path: str, fields: Any) -> None:
    body = json.dumps(fields).encode() if fields else b""
    for headers in ({}, {"X-Who": "eve"}, {"X-Who": ""}, {"X-Forwarded-User": "alice"}):
        assert refused(guarded.http(method, path, body, headers | JSON_TYPE)), headers
    for user in ("alice", "bob"):
        reply = guarded.http(method, path, body, {"X-Who": user} | JSON_TYPE)
        assert reply.status != 403, (user, reply.body)


def test_everybody_may_look(guarded: Nsqadmin) -> None:
    for path in ("/api/topics", "/api/topics/t/c", "/api/nodes", "/api/counter", "/ping"):
        assert guarded.get(path).status == 200


FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Referer": "http://evil.example/page"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize(("method", "path", "fields"), CHANGES)
def test_other_sites_change_nothing(
    admin: Nsqadmin, method: str, path: str, fields: Any, headers: dict[str, str]
) -> None:
    body = json.dumps(fields).encode() if fields else b""
    assert refused(admin.http(method, path, body, headers | JSON_TYPE))


def test_our_own_pages_and_programs_without_a_browser_may(admin: Nsqadmin) -> None:
    own = f"127.0.0.1:{admin.http_port}"
    for headers in (
        {},
        {"User-Agent": "curl/8"},
        {"Origin": f"http://{own}"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"},
        {"Sec-Fetch-Site": "none"},
        {"Referer": f"http://{own}/topics/t"},
        {"Origin": "https://admin.example", "X-Forwarded-Host": "admin.example"},
    ):
        assert not refused(admin.http("POST", "/api/topics/t", PAUSE, headers)), headers


def test_actions_of_scripts_say_what_each_node_did(nsqd: Nsqd, admin: Nsqadmin) -> None:
    node = f"127.0.0.1:{nsqd.http_port}"

    def act(**fields: Any) -> Reply:
        return admin.http("POST", "/api/action", json.dumps(fields).encode(), JSON_TYPE)

    reply = act(action="create", topic="acted", channel="c", node=node)
    results = [{"node": node, "error": ""}] * 2
    assert (reply.status, reply.json) == (200, {"message": "", "results": results, "messages": []})
    assert act(action="publish", topic="acted", body='{"a": 1}').json["results"] == results[:1]
    assert nsqd.channel("acted", "c")["depth"] == 1
    for action in ("empty", "delete", "tombstone"):
        for confirm in ("", "acted"):
            reply = act(action=action, topic="acted", channel="c", confirm=confirm, node=node)
            assert (reply.status, reply.json) == (400, {"message": "CONFIRM_NAME"})
    assert nsqd.channel("acted", "c")["depth"] == 1
    [message] = act(action="peek", topic="acted", channel="c").json["messages"]
    assert (message["kind"], message["body"]) == ("json", '{\n  "a": 1\n}')
    assert (message["node"], message["state"], message["attempts"]) == (node, "queued", 0)
    assert act(action="empty", topic="acted", channel="c", confirm="c").status == 200
    assert nsqd.channel("acted", "c")["depth"] == 0
    assert act(action="delete", topic="acted", confirm="acted", node=node).status == 200
    assert nsqd.stats("&topic=acted")["topics"] is None


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({}, 400, "INVALID_ACTION"),
        ({"action": "explode", "topic": "t"}, 400, "INVALID_ACTION"),
        ({"action": "pause", "topic": "!"}, 400, "INVALID_TOPIC"),
        ({"action": "pause", "topic": "t", "channel": "!"}, 400, "INVALID_CHANNEL"),
        ({"action": "pause", "topic": "t", "node": "127.0.0.1:9"}, 404, "NODE_NOT_FOUND"),
        ({"action": "tombstone", "topic": "t", "confirm": "t"}, 400, "INVALID_NODE"),
        ({"action": "peek", "topic": "t"}, 400, "INVALID_CHANNEL"),
        ({"action": "peek", "topic": "t", "channel": "never"}, 404, "CHANNEL_NOT_FOUND"),
        ({"action": "peek", "topic": "t", "channel": "c", "count": "x"}, 400, "INVALID_COUNT"),
        ({"action": "publish", "topic": "t"}, 400, "MSG_EMPTY"),
        ({"action": "publish", "topic": "t", "body": "x", "defer_ms": -1}, 400, "INVALID_DEFER_MS"),
        ([], 400, "INVALID_BODY"),
    ],
)
def test_actions_that_are_wrong_are_refused(
    admin: Nsqadmin, fields: Any, status: int, text: str
) -> None:
    reply = admin.http("POST", "/api/action", json.dumps(fields).encode(), JSON_TYPE)
    assert (reply.status, reply.json) == (status, {"message": text})


def test_a_form_of_another_page_is_no_json(admin: Nsqadmin) -> None:
    """A page may post text/plain and forms anywhere, but not application/json."""
    body = json.dumps({"action": "pause", "topic": "t"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = admin.http("POST", "/api/action", body, {"Content-Type": kind})
        assert (reply.status, reply.json) == (415, {"message": "UNSUPPORTED_MEDIA_TYPE"})


# Notifications


def test_every_action_is_told(nsqd: Nsqd) -> None:
    with (
        Endpoint() as endpoint,
        admin_of(
            nsqd,
            f"--notification-http-endpoint={endpoint.url}/hook",
            "--allowed-host=admin.example",
        ) as admin,
    ):
        basic = base64.b64encode(b"carol:secret").decode()
        headers = {
            "Authorization": f"Basic {basic}",
            "User-Agent": "agent/1",
            "Host": "admin.example",
            "X-Scheme": "https",
        }
        admin.http("POST", "/api/topics/t/c", PAUSE, headers)
        [asked] = endpoint.wait(1)
        assert (asked.method, asked.target) == ("POST", "/hook")
        assert asked.headers["content-type"] == "application/json"
        told = json.loads(asked.body)
        assert list(told) == [
            *("action", "topic", "channel", "timestamp", "user", "remote_ip", "user_agent"),
            *("url", "via"),
        ]
        assert abs(told.pop("timestamp") - time.time()) < 60
        assert told.pop("remote_ip").startswith("127.0.0.1:")
        assert told.pop("via") != ""
        assert told == {
            "action": "pause_channel",
            "topic": "t",
            "channel": "c",
            "user": "carol",
            "user_agent": "agent/1",
            "url": "https://admin.example/api/topics/t/c",
        }
        for method, path, fields in (
            ("POST", "/api/topics", {"topic": "told", "channel": "c"}),
            ("POST", "/api/topics/told", {"action": "pause"}),
            ("POST", "/api/topics/told", {"action": "unpause"}),
            ("POST", "/api/topics/told", {"action": "empty"}),
            ("POST", "/api/topics/told/c", {"action": "unpause"}),
            ("POST", "/api/topics/told/c", {"action": "empty"}),
            ("DELETE", "/api/topics/told/c", None),
            ("DELETE", f"/api/nodes/127.0.0.1:{nsqd.http_port}", {"topic": "told"}),
            ("DELETE", "/api/topics/told", None),
            ("DELETE", "/api/nodes/127.0.0.1:9", {"topic": "told"}),  # fails: not told
        ):
            admin.http(method, path, json.dumps(fields).encode() if fields else b"")
        told_of = [json.loads(asked.body) for asked in endpoint.wait(11)[1:]]
        assert [notice["action"] for notice in told_of] == [
            *("create_topic", "create_channel", "pause_topic", "unpause_topic", "empty_topic"),
            *("unpause_channel", "empty_channel", "delete_channel", "tombstone_topic_producer"),
            "delete_topic",
        ]
        assert told_of[-2]["node"] == f"127.0.0.1:{nsqd.http_port}"
        assert "user" not in told_of[0] and "channel" not in told_of[0]


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9/", "http://no-such-host.invalid/"])
def test_an_endpoint_that_is_away_harms_nothing(nsqd: Nsqd, endpoint: str) -> None:
    """NSQ's nsqadmin ends here."""
    with admin_of(nsqd, f"--notification-http-endpoint={endpoint}") as admin:
        for _ in range(3):
            assert admin.http("POST", "/api/topics/t", PAUSE).status == 200
        admin.wait_for_log("NOTIFY: pause_topic not sent")
        assert admin.get("/ping").text == "OK"


def test_an_endpoint_that_fails_is_logged(nsqd: Nsqd) -> None:
    with (
        Endpoint(500) as endpoint,
        admin_of(nsqd, f"--notification-http-endpoint={endpoint.url}") as admin,
    ):
        admin.http("POST", "/api/topics/t", PAUSE)
        admin.wait_for_log("NOTIFY: pause_topic: the endpoint responded 500")


# Options


def test_options_are_shown_by_name(nsqd: Nsqd, admin: Nsqadmin) -> None:
    for option, value in (
        ("http_address", "127.0.0.1:0"),
        ("statsd_interval", 60_000_000_000),
        ("admin_users", []),
        ("nsqd_http_addresses", [f"127.0.0.1:{nsqd.http_port}"]),
        ("nsqlookupd_http_addresses", []),
        ("log_level", 2),
        ("statsd_prefix", "nsq.%s"),
        ("proxy_graphite", False),
    ):
        reply = admin.get(f"/config/{option}")
        assert reply.status == 200
        assert (reply.text if isinstance(value, str) else reply.json) == value
    assert admin.get("/config/nothing").json == {"message": "INVALID_OPTION"}


def test_two_options_can_be_changed(nsqd: Nsqd) -> None:
    with admin_of(nsqd) as admin:

        def put(option: str, value: bytes, **headers: str) -> tuple[int, Any]:
            reply = admin.http("PUT", f"/config/{option}", value, headers)
            return reply.status, reply.json

        assert put("log_level", b"debug") == (200, 1)
        assert put("log_level", b"nope") == (400, {"message": "INVALID_VALUE"})
        assert put("log_level", b"") == (413, {"message": "INVALID_VALUE"})
        assert put("log_level", b"x" * (1 << 20) + b"y")[0] == 413
        assert put("admin_users", b"[]") == (400, {"message": "INVALID_OPTION"})
        addresses = b'["127.0.0.1:9"]'
        assert put("nsqlookupd_http_addresses", b"x") == (400, {"message": "INVALID_VALUE"})
        assert put("nsqlookupd_http_addresses", addresses) == (200, ["127.0.0.1:9"])
        assert admin.get("/api/topics").status == 502
        assert put("log_level", b"info", Origin="http://evil.example")[0] == 403


@pytest.mark.parametrize(
    ("network", "status"),
    [("10.0.0.0/8", 403), ("127.0.0.1/32", 200), ("", 200), ("::1/128", 403)],
)
def test_options_are_for_some_addresses(nsqd: Nsqd, network: str, status: int) -> None:
    with admin_of(nsqd, f"--allow-config-from-cidr={network}") as admin:
        assert admin.get("/config/log_level").status == status
        assert admin.http("PUT", "/config/log_level", b"info").status == status


# Proxies in front, and encoding


@pytest.mark.parametrize("given", ["/nsq/admin", "nsq/admin/", "//nsq//admin"])
def test_a_base_path_is_before_everything(nsqd: Nsqd, given: str) -> None:
    with admin_of(nsqd, f"--base-path={given}") as admin:
        for path in ("", "/ping", "/topics", "/api/topics", "/config/log_level", "/api/view"):
            assert admin.get("/nsq/admin" + path).status == 200, path
            if path:
                assert admin.get(path).status == 404, path
        assert admin.get("/").status == 404
        reply = admin.http("POST", "/nsq/admin/api/topics/t", PAUSE)
        assert reply.status == 200


def test_large_answers_are_compressed_for_those_who_ask(admin: Nsqadmin) -> None:
    plain = admin.get("/api/topics")
    assert plain.headers["Content-Encoding"] is None
    assert plain.headers["Vary"] == "Accept-Encoding"
    for accepted in ("gzip", "br, GZIP;q=0.5", "*", "deflate, gzip"):
        packed = admin.http("GET", "/api/topics", headers={"Accept-Encoding": accepted})
        assert packed.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        assert len(packed.body) < len(plain.body) / 3
    for accepted in ("gzip;q=0", "br", "identity"):
        reply = admin.http("GET", "/api/topics", headers={"Accept-Encoding": accepted})
        assert reply.body == plain.body
    small = admin.http("GET", "/ping", headers={"Accept-Encoding": "gzip"})
    assert small.text == "OK"


# Graphite


def test_a_rate_is_what_graphite_says_by_the_interval(nsqd: Nsqd) -> None:
    answer = b'[{"target":"x","datapoints":[[90.0,1794717600],[1,2]]}]'
    with (
        Endpoint(200, answer, "application/json") as graphite,
        admin_of(nsqd, f"--graphite-url={graphite.url}", "--statsd-interval=30s") as admin,
    ):
        path = "/api/graphite?metric=rate&target=sumSeries(stats.*)"
        assert admin.get(path).json == {"rate": "3.00"}
        [asked] = graphite.wait(1)
        assert asked.target == (
            "/render?format=json&from=-60sec&target=sumSeries%28stats.%2A%29&until=-30sec"
        )
        for points, shown in ((b"[[-1,0]]", "N/A"), (b"[[null,0]]", "N/A"), (b"[[1,0]]", "0.03")):
            graphite.answer = (200, b'[{"datapoints":' + points + b"}]", "application/json")
            assert admin.get(path).json == {"rate": shown}
        for status, body in ((500, b""), (200, b"[]"), (200, b"{"), (200, b'[{"datapoints":[]}]')):
            graphite.answer = (status, body, "application/json")
            reply = admin.get(path)
            assert (reply.status, reply.json) == (500, {"message": "INTERNAL_ERROR"})
        for query, text in (
            ("", "INVALID_ARG_METRIC"),
            ("?metric=depth&target=x", "INVALID_ARG_METRIC"),
            ("?metric=rate", "INVALID_ARG_TARGET"),
        ):
            reply = admin.get(f"/api/graphite{query}")
            assert (reply.status, reply.json) == (400, {"message": text})
        assert admin.get("/render?target=x").status == 404


def test_images_are_passed_on_and_nothing_else(nsqd: Nsqd) -> None:
    with (
        Endpoint(200, b"\x89PNG", "image/png") as graphite,
        admin_of(nsqd, f"--graphite-url={graphite.url}/g/", "--proxy-graphite") as admin,
    ):
        reply = admin.get("/render?target=a%20b&width=3")
        assert (reply.status, reply.body) == (200, b"\x89PNG")
        assert reply.headers["Content-Type"] == "image/png"
        assert graphite.wait(1)[0].target == "/g/render?target=a%20b&width=3"
        graphite.answer = (200, b"<script>", "text/html")
        reply = admin.get("/render?target=x")
        assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert "sandbox" in reply.headers["Content-Security-Policy"]


# nsqds that are protected


def test_a_token_opens_protected_nsqds(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("admin secret-token-1\n")
    (tmp_path / "one").write_text("secret-token-1\n")
    with ExitStack() as stack:
        nsqd = stack.enter_context(
            Nsqd(
                tmp_path / "data",
                f"--http-auth-token-file={tmp_path / 'tokens'}",
                "--broadcast-address=127.0.0.1",
            )
        )
        closed = stack.enter_context(admin_of(nsqd))
        assert closed.get("/api/topics").status == 502
        for file in ("one", "tokens"):
            admin = stack.enter_context(admin_of(nsqd, f"--nsqd-auth-token-file={tmp_path / file}"))
            made = json.dumps({"topic": f"made-{file}"}).encode()
            assert admin.http("POST", "/api/topics", made).json == {"message": ""}
            assert f"made-{file}" in admin.get("/api/topics").json["topics"]
            assert "secret-token-1" not in admin.log


def test_nsqds_that_require_tls_are_asked_over_https(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    options = ("--tls-required=true", "--broadcast-address=127.0.0.1", *pki.options())
    with Nsqd(tmp_path / "data", *options) as nsqd:
        with admin_of(nsqd) as admin:
            status, text = admin.get("/api/topics").status, admin.get("/api/topics").text
            assert status == 502 and "CERTIFICATE_VERIFY_FAILED" in text
        with admin_of(nsqd, "--http-client-tls-insecure-skip-verify") as admin:
            assert admin.get("/api/topics").json == {"topics": [], "message": ""}
        with admin_of(nsqd, f"--http-client-tls-root-ca-file={pki.ca}") as admin:
            made = json.dumps({"topic": "secured"}).encode()
            assert admin.http("POST", "/api/topics", made).json == {"message": ""}
            assert admin.get("/api/topics").json["topics"] == ["secured"]
