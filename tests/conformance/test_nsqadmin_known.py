"""nsqadmin asks nodes that are known, whatever host a request or a registration names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.admin.cluster import Nsqadmin
from tests.support.daemon import Nsqd, Nsqlookupd, Reply
from tests.support.endpoint import Endpoint
from tests.support.waits import wait_for

JSON_TYPE = {"Content-Type": "application/json"}
TOKEN = "a-token-of-the-nsqds"


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Nsqlookupd]:
    with Nsqlookupd() as running:
        yield running


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "tokens"
    path.write_text(f"admin {TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def nsqd(
    tmp_path_factory: pytest.TempPathFactory, lookupd: Nsqlookupd, token: Path
) -> Iterator[Nsqd]:
    with Nsqd(
        tmp_path_factory.mktemp("nsqd"),
        "--broadcast-address=127.0.0.1",
        f"--lookupd-tcp-address={lookupd.tcp_address}",
        f"--http-auth-token-file={token}",
    ) as running:
        yield running


@pytest.fixture(scope="module", params=["lookupd", "nsqd"])
def admin(
    request: pytest.FixtureRequest, lookupd: Nsqlookupd, nsqd: Nsqd, token: Path
) -> Iterator[Nsqadmin]:
    where = (
        f"--lookupd-http-address={lookupd.http_address}"
        if request.param == "lookupd"
        else f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}"
    )
    with Nsqadmin(where, f"--nsqd-auth-token-file={token}") as running:
        wait_for(lambda: running.view("/nodes")["nodes"], lambda nodes: len(nodes) == 1)
        yield running


@pytest.fixture
def stranger() -> Iterator[Endpoint]:
    """Somebody else's server, which answers whatever it is asked."""
    info = {
        "version": "1.3.0",
        "broadcast_address": "127.0.0.1",
        "hostname": "stranger",
        "http_port": 1,
        "tcp_port": 1,
        "health": "OK",
        "topics": [],
    }
    with Endpoint(200, json.dumps(info).encode(), "application/json") as running:
        yield running


def names_of(stranger: Endpoint) -> list[str]:
    """What a request may say to have somebody else asked."""
    host = f"127.0.0.1:{stranger.port}"
    return [
        host,
        f"localhost:{stranger.port}",
        f"user:password@{host}",
        f"{host}/path",
        f"{host}/path?",
        f"{host}#",
        f"[::ffff:127.0.0.1]:{stranger.port}",
    ]


def act(admin: Nsqadmin, **fields: Any) -> Reply:
    return admin.http("POST", "/api/action", json.dumps(fields).encode(), JSON_TYPE)


def test_no_route_asks_a_host_because_a_request_names_it(
    admin: Nsqadmin, nsqd: Nsqd, stranger: Endpoint
) -> None:
    for name in names_of(stranger):
        quoted = quote(name, safe="")
        body = json.dumps({"topic": "t"}).encode()
        reply = admin.http("DELETE", f"/api/nodes/{quoted}", body)
        # A slash makes it another path.
        message = "NOT_FOUND" if "/" in name else "NODE_NOT_FOUND"
        assert (reply.status, reply.json) == (404, {"message": message}), name
        for action in ("tombstone", "create", "pause", "unpause", "empty", "delete", "publish"):
            reply = act(admin, action=action, topic="t", confirm="t", node=name, body="x")
            assert (reply.status, reply.json) == (404, {"message": "NODE_NOT_FOUND"}), name
        reply = act(admin, action="peek", topic="t", channel="c", node=name)
        assert reply.status in (404, 501)
        for path in (f"/api/nodes/{quoted}", f"/nodes/{quoted}", f"/api/view/nodes/{quoted}"):
            assert admin.get(path).status == 404, name
        for topic in (f"t&node={quoted}", f"@{quoted}"):
            admin.get(f"/api/topics/{quote(topic, safe='')}")
    # Sampling goes on beside it; nothing of it reaches the stranger either.
    number = admin.view("/nodes")["sample"]["number"]
    wait_for(lambda: admin.view("/nodes")["sample"]["number"], lambda n: n > number + 1)
    assert stranger.requests == []


def test_a_tombstone_of_a_known_node_is_done_with_the_token(admin: Nsqadmin, nsqd: Nsqd) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}

    def topics() -> list[str]:
        stats = nsqd.http("GET", "/stats?format=json", headers=headers).json
        return [topic["topic_name"] for topic in stats["topics"]]

    nsqd.http("POST", "/topic/create?topic=mine", headers=headers)
    assert "mine" in topics()
    node = f"127.0.0.1:{nsqd.http_port}"
    reply = admin.http("DELETE", f"/api/nodes/{node}", json.dumps({"topic": "mine"}).encode())
    assert (reply.status, reply.json) == (200, {"message": ""})
    assert "mine" not in topics()


@pytest.mark.parametrize("path", ["/", "/nodes", "/topics", "/lookup", "/api/nodes"])
def test_a_registration_whose_address_is_none_hides_nobody(path: str, stranger: Endpoint) -> None:
    """Whoever reaches nsqlookupd may register; a URL made of it must not lead elsewhere."""
    host = f"127.0.0.1:{stranger.port}"
    good = {
        "remote_address": "127.0.0.1:5",
        "hostname": "good",
        "broadcast_address": "127.0.0.1",
        "tcp_port": 9,
        "http_port": 9,
        "version": "1.3.0",
        "topics": [],
        "tombstones": [],
    }
    hostile = [
        good | {"broadcast_address": text, "http_port": port}
        for text, port in (
            (f"{host}/steal?", 80),
            (f"x@127.0.0.1:{stranger.port}", 80),
            ("127.0.0.1#", stranger.port),
            ("", stranger.port),
            ("a b", 1),
            ("127.0.0.1", -1),
            ("127.0.0.1", 70000),
        )
    ]
    hostile += [good | {"http_port": "80"}, {}, good | {"topics": 5}]

    class Lookupd(Endpoint):
        def respond(self, asked: Any) -> Any:
            if asked.path == "/topics":
                return 200, b'{"topics":[]}', "application/json"
            return 200, json.dumps({"producers": [*hostile, good]}).encode(), "application/json"

    with Lookupd() as lookupd, Nsqadmin(f"--lookupd-http-address=127.0.0.1:{lookupd.port}") as one:
        nodes = one.view("/nodes")
        assert [node["node"] for node in nodes["nodes"]] == ["127.0.0.1:9"]
        assert any("10 of the nodes it lists are invalid" in text for text in nodes["warnings"])
        assert one.get(path).status == 200
    assert stranger.requests == []


def test_addresses_of_nsqlookupds_must_be_addresses(lookupd: Nsqlookupd) -> None:
    with Nsqadmin(f"--lookupd-http-address={lookupd.http_address}") as admin:
        path = "/config/nsqlookupd_http_addresses"
        for value in (
            ["evil.example:80/x?"],
            ["u@h:80"],
            ["h"],
            [":80"],
            ["h:99999"],
            ["\ud800:1"],
        ):
            reply = admin.http("PUT", path, json.dumps(value).encode())
            assert (reply.status, reply.json) == (400, {"message": "INVALID_VALUE"}), value
        for value in (["127.0.0.1:9"], ["[::1]:4161"], ["lookup.example.org:4161"], []):
            assert admin.http("PUT", path, json.dumps(value).encode()).status == 200, value


HOSTILE_FIELDS: list[tuple[bytes, int]] = [
    (b'{"action":"publish","topic":"t","body":"\\ud800"}', 400),
    (b'{"action":"publish","topic":"t","body":"a\\udfffb"}', 400),
    (b'{"action":"publish","topic":"\\ud800","body":"x"}', 400),
    (b'{"action":"\\ud800","topic":"t"}', 400),
    (b'{"action":"pause","topic":"t","node":"\\ud800"}', 400),
    (b'{"action":"empty","topic":"t","confirm":"\\udc80"}', 400),
    (b'{"action":"publish","topic":"t","body":' + b"[" * 900 + b"]" * 900 + b"}", 400),
    (b'{"action":"publish","topic":"t","body":' + b'{"a":' * 200_000, 400),
    (b"[" * 200_000, 400),
    (b"[" * 200_000 + b"]" * 200_000, 400),
    (b'{"action":"publish","topic":"t","body":{"a":1}}', 400),
    (b'{"action":"publish","topic":"t","body":NaN}', 400),
    (b'{"action":"publish","topic":"t","body":"x","defer_ms":1e39}', 400),
    (b'{"action":"publish","topic":"t","body":"x","defer_ms":-Infinity}', 400),
    (b'{"action":"publish","topic":"t","body":"x","defer_ms":' + b"9" * 5000 + b"}", 400),
    (b'{"action":"peek","topic":"t","channel":"c","count":' + b"9" * 4000 + b"}", 400),
    (b'"text"', 400),
    (b"\xff\xfe", 400),
    (b"", 400),
]


@pytest.mark.parametrize(("body", "status"), HOSTILE_FIELDS, ids=lambda v: repr(v)[:40])
def test_hostile_json_is_refused_without_a_traceback(
    admin: Nsqadmin, body: bytes, status: int
) -> None:
    assert admin.http("POST", "/api/action", body, JSON_TYPE).status == status
    for method, path in (
        ("POST", "/api/topics"),
        ("POST", "/api/topics/t"),
        ("POST", "/api/topics/t/c"),
        ("DELETE", "/api/nodes/h:1"),
    ):
        assert admin.http(method, path, body).status < 500, path
    assert "Traceback" not in admin.log


def test_names_that_are_no_text_fail_nowhere(admin: Nsqadmin) -> None:
    for name in ("%ff", "%ed%a0%80", "%00", "a%2fb", "%f0%9f%92%a5", "x" * 5000):
        for path in ("/topics/{}", "/topics/t/{}", "/nodes/{}", "/topics/{}/c/peek"):
            for before in ("", "/api/view"):
                assert admin.get(before + path.format(name)).status in (404, 405), path
        for path in ("/api/topics/{}", "/api/topics/t/{}", "/api/nodes/{}"):
            assert admin.get(path.format(name)).status in (404, 502), path
        for path in ("/api/topics/{}", "/api/topics/{}/c"):
            reply = admin.http("POST", path.format(name), b'{"action":"pause"}')
            assert reply.status in (200, 404), (path, reply)
            assert admin.http("DELETE", path.format(name)).status in (200, 404), path
        form = urlencode({"action": "pause", "topic": "t"}) + f"&node={name}&back=/{name}"
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        assert admin.http("POST", "/action", form.encode(), kind).status == 403
        admin.get(f"/topics?q={name}")
    assert "Traceback" not in admin.log
