"""Bearer tokens of the HTTP API, where --http-auth-token-file turns them on."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Nsqd, Reply

TOKENS = """
# role   token
publish  publish-token
metrics  metrics-token
admin    admin-token
publish  both-tokens
metrics  both-tokens
"""
METRICS = [("GET", "/stats"), ("GET", "/stats?format=json"), ("GET", "/metrics")]
PUBLISH = [("POST", "/pub?topic=t"), ("POST", "/mpub?topic=t")]
ADMIN = [
    ("POST", "/topic/create?topic=t"),
    ("POST", "/channel/create?topic=t&channel=c"),
    ("POST", "/channel/empty?topic=t&channel=c"),
    ("GET", "/config/log_level"),
    ("PUT", "/config/log_level"),
    ("GET", "/debug/tasks"),
    ("GET", "/nonsense"),
    ("DELETE", "/stats/"),
]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    path = tmp_path_factory.mktemp("tokens")
    (path / "tokens").write_text(TOKENS)
    with Nsqd(path / "nsqd", f"--http-auth-token-file={path / 'tokens'}") as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


def ask(nsqd: Nsqd, method: str, target: str, token: str | None, scheme: str = "Bearer") -> Reply:
    headers = {} if token is None else {"Authorization": f"{scheme} {token}"}
    body = b"info" if method in ("POST", "PUT") else None
    return nsqd.http(method, target, body, headers)


def refused(reply: Reply) -> tuple[int, object]:
    assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
    assert reply.headers["X-NSQ-Content-Type"] == "nsq; version=1.0"
    return reply.status, reply.json


@pytest.mark.parametrize(("method", "target"), [("GET", "/info"), *METRICS, *PUBLISH, *ADMIN])
def test_without_a_token_only_ping_is_open(nsqd: Nsqd, method: str, target: str) -> None:
    for token in (None, "", "wrong-token", "publish-toke", "publish-tokenX", "publish-token x"):
        reply = ask(nsqd, method, target, token)
        assert refused(reply) == (401, {"message": "UNAUTHORIZED"})
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
    assert ask(nsqd, method, target, "admin-token", scheme="Basic").status == 401
    assert nsqd.get("/ping").text == "OK"
    assert nsqd.get("/ping?").text == "OK"


@pytest.mark.parametrize("token", ["publish-token", "metrics-token", "admin-token", "both-tokens"])
def test_a_role_reaches_as_far_as_it_reaches(nsqd: Nsqd, token: str) -> None:
    roles = {"publish-token": PUBLISH, "metrics-token": METRICS, "both-tokens": PUBLISH + METRICS}
    allowed = roles.get(token, PUBLISH + METRICS + ADMIN)
    for method, target in [*PUBLISH, *METRICS, *ADMIN]:
        reply = ask(nsqd, method, target, token)
        if (method, target) in allowed:
            assert reply.status not in (401, 403), (method, target, reply)
        else:
            assert refused(reply) == (403, {"message": "FORBIDDEN"}), (method, target)
    assert ask(nsqd, "GET", "/info", token).status == 200
    assert ask(nsqd, "GET", "/info", token, scheme="bEARER").status == 200


def test_a_large_body_is_refused_before_it_is_sent(nsqd: Nsqd) -> None:
    with socket.create_connection(("127.0.0.1", nsqd.http_port), 10) as sock:
        sock.sendall(
            b"POST /mpub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert sock.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_refusal_does_not_end_the_connection(nsqd: Nsqd) -> None:
    request = b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    with socket.create_connection(("127.0.0.1", nsqd.http_port), 10) as sock:
        sock.sendall(request + b"\r\nhello")
        assert sock.recv(4096).startswith(b"HTTP/1.1 401 ")
        sock.sendall(request + b"Authorization: Bearer publish-token\r\n\r\nhello")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_tokens_are_read_again_on_sighup(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("admin first-token\n")
    with Nsqd(tmp_path / "nsqd", f"--http-auth-token-file={tokens}") as nsqd:
        assert ask(nsqd, "GET", "/info", "first-token").status == 200
        tokens.write_text("admin second-token\nmetrics third-token\n")
        nsqd.signal(signal.SIGHUP)
        nsqd.wait_for_log("HTTP: 2 tokens")
        assert ask(nsqd, "GET", "/info", "first-token").status == 401
        assert ask(nsqd, "GET", "/info", "second-token").status == 200
        tokens.write_text("god mode\n")
        nsqd.signal(signal.SIGHUP)
        nsqd.wait_for_log("tokens stay as they were: .*line 1 must be a role")
        assert ask(nsqd, "GET", "/info", "second-token").status == 200


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "admin\n", "admin short\n", "root long-enough\n", "admin a-b-c-d-e x"],
)
def test_a_wrong_file_stops_the_start(tmp_path: Path, text: str) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(text)
    nsqd = Nsqd(tmp_path / "nsqd", f"--http-auth-token-file={tokens}")
    with pytest.raises(AssertionError):
        nsqd.start()
    assert f"failed to instantiate nsqd - --http-auth-token-file {tokens}" in nsqd.log


def test_the_tokens_are_not_shown(nsqd: Nsqd) -> None:
    assert "-token" not in nsqd.log.replace("--http-auth-token-file", "")
