"""AUTH against a small real auth server: who may do what, for how long, and who is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.wire import commands
from tests.support.auth_server import AuthServer, entry, fields_of, reply
from tests.support.certificates import Pki
from tests.support.client import Client
from tests.support.daemon import ERROR, RESPONSE, Nsqd
from tests.support.secure_client import SecureClient
from tests.support.waits import eventually

GRANTS = {
    "s3cret": reply(entry("^ok.*$"), entry("^read$", ("^c$",), ("subscribe",))),
    "nothing": reply(),
    "channelled": reply(entry("^ok", ("^only$",))),
    "short": reply(entry("^ok"), ttl=2),
    "odd & = % \xe9": reply(entry(), identity="odd"),
    "everything": reply(entry()),
}
FIRST = b"E_AUTH_FIRST AUTH required before "


@pytest.fixture(scope="module")
def server() -> Iterator[AuthServer]:
    with AuthServer(GRANTS) as server:
        yield server


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, server: AuthServer) -> Iterator[Nsqd]:
    path = tmp_path_factory.mktemp("auth")
    with Nsqd(path, f"--auth-http-address={server.address}") as daemon:
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


@pytest.fixture(autouse=True)
def clean(server: AuthServer) -> None:
    server.requests.clear()
    server.override = None
    server.delay_s = 0.0


def authed(nsqd: Nsqd, secret: str = "s3cret", **fields: object) -> Client:
    client = Client.of(nsqd, **fields)
    client.command(commands.auth(secret.encode("latin-1")))
    return client


def test_identify_says_that_auth_is_required(nsqd: Nsqd) -> None:
    with Client.of(nsqd) as client:
        assert client.identify()["auth_required"] is True


def test_the_reply_and_the_question(nsqd: Nsqd, server: AuthServer) -> None:
    with Client.of(nsqd) as client:
        told = client.command(commands.auth(b"s3cret"))
        assert told == b'{"identity":"bob","identity_url":"http://x/bob","permission_count":2}'
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("GET", "/auth")
    assert asked.query == "common_name=&remote_ip=127.0.0.1&secret=s3cret&tls=false"
    assert asked.headers["accept"] == "application/vnd.nsq; version=1.0"


def test_a_secret_of_any_bytes(nsqd: Nsqd, server: AuthServer) -> None:
    with Client.of(nsqd) as client:
        client.command(commands.auth("odd & = % \xe9".encode()))
    assert server.requests[0].query.count("&") == 3
    assert fields_of(server.requests[0])["secret"] == "odd & = % \xe9"


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        ("SUB", commands.sub("ok", "c")),
        ("PUB", commands.pub("ok", b"m")),
        ("MPUB", b"MPUB ok\n"),
        ("DPUB", commands.dpub("ok", 1, b"m")),
    ],
)
def test_auth_comes_first(nsqd: Nsqd, command: str, sent: bytes) -> None:
    with nsqd.connect() as raw:
        assert raw.command(commands.NOP + sent) == (ERROR, FIRST + command.encode())
        assert raw.closed()


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (commands.pub("nope", b"m"), 'PUB on "nope" ""'),
        (b"MPUB nope\n", 'MPUB on "nope" ""'),
        (commands.dpub("nope", 1, b"m"), 'DPUB on "nope" ""'),
        (commands.sub("nope", "c"), 'SUB on "nope" "c"'),
        (commands.pub("read", b"m"), 'PUB on "read" ""'),
        (commands.sub("read", "d"), 'SUB on "read" "d"'),
    ],
)
def test_what_is_not_allowed(nsqd: Nsqd, sent: bytes, told: str) -> None:
    with nsqd.connect() as raw:
        assert raw.command(commands.auth(b"s3cret"))[0] == RESPONSE
        refusal = f"E_UNAUTHORIZED AUTH failed for {told}".encode()
        assert raw.command(sent) == (ERROR, refusal)
        assert raw.closed()
    assert nsqd.stats("&topic=nope")["topics"] is None


def test_pub_is_judged_after_its_body_and_mpub_before(nsqd: Nsqd) -> None:
    with nsqd.connect() as raw:
        raw.command(commands.auth(b"s3cret"))
        assert raw.command(b"PUB nope\n\x00\x00\x00\x00") == (
            ERROR,
            b"E_BAD_MESSAGE PUB invalid message body size 0",
        )
    with nsqd.connect() as raw:
        raw.command(commands.auth(b"s3cret"))
        assert raw.command(b"MPUB nope\n\x00\x00\x00\x00")[1].startswith(b"E_UNAUTHORIZED")


def test_what_is_allowed(nsqd: Nsqd, server: AuthServer) -> None:
    with authed(nsqd) as client:
        client.pub("ok1", b"a", b"b")
        client.mpub("ok1", [b"c", b"d"])
        client.dpub("ok1", 10, b"e")
        client.pub("ok2", b"a")
        client.sub("ok1", "any", ready=10)
        bodies = {message.body for message in client.finish_all(5)}
        assert bodies == {b"a", b"b", b"c", b"d", b"e"}
        client.pub("ok1", b"while subscribed")
    with authed(nsqd) as client:
        client.sub("read", "c")
    assert len(server.requests) == 2


def test_channels_that_cannot_match_nothing_forbid_publishing(nsqd: Nsqd) -> None:
    with authed(nsqd, "channelled") as client:
        client.send(commands.pub("ok", b"m"))
        assert client.error() == 'E_UNAUTHORIZED AUTH failed for PUB on "ok" ""'
    with authed(nsqd, "channelled") as client:
        client.sub("ok", "only")


def test_errors_come_after_the_answers_owed(nsqd: Nsqd) -> None:
    """Publishes in one packet, of which the third is not allowed."""
    with nsqd.connect() as raw:
        raw.send(
            commands.auth(b"s3cret"),
            commands.pub("ok3", b"a"),
            commands.pub("ok4", b"b"),
            commands.pub("nope", b"c"),
            commands.pub("ok3", b"d"),
        )
        assert raw.frame()[0] == RESPONSE
        assert raw.frame() == (RESPONSE, b"OK")
        assert raw.frame() == (RESPONSE, b"OK")
        refusal = b'E_UNAUTHORIZED AUTH failed for PUB on "nope" ""'
        assert raw.frame() == (ERROR, refusal)
        assert raw.closed()


def test_a_topic_that_was_deleted_may_be_published_to_again(nsqd: Nsqd) -> None:
    with authed(nsqd) as client:
        client.pub("ok-gone", b"a")
        assert nsqd.post("/topic/delete?topic=ok-gone").status == 200
        client.pub("ok-gone", b"b")
        assert nsqd.stats("&topic=ok-gone")["topics"][0]["message_count"] == 1


def test_http_publishing_is_not_asked_about(nsqd: Nsqd, server: AuthServer) -> None:
    assert nsqd.post("/pub?topic=nope-http", b"m").text == "OK"
    assert server.requests == []


def test_stats_show_who_a_client_is(nsqd: Nsqd) -> None:
    with authed(nsqd) as client, Client.of(nsqd) as stranger:
        client.sub("ok-shown", "c")
        stranger.send(commands.NOP)
        shown = nsqd.channel("ok-shown", "c")["clients"][0]
        assert (shown["authed"], shown["auth_identity"]) == (True, "bob")
        assert shown["auth_identity_url"] == "http://x/bob"
        keys = list(shown)
        at = keys.index("user_agent")
        assert keys[at + 1 : at + 4] == ["authed", "auth_identity", "auth_identity_url"]


# What AUTH itself is answered with


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((403, b"no"), b"E_AUTH_FAILED AUTH failed"),
        ((500, b""), b"E_AUTH_FAILED AUTH failed"),
        ((200, b"not json"), b"E_AUTH_FAILED AUTH failed"),
        ((200, b"{}"), b"E_AUTH_FAILED AUTH failed"),
        ((200, json.dumps(reply(entry(), ttl=0)).encode()), b"E_AUTH_FAILED AUTH failed"),
        ((200, json.dumps(reply(entry("("))).encode()), b"E_AUTH_FAILED AUTH failed"),
        ((200, b"x" * 3_000_000), b"E_AUTH_FAILED AUTH failed"),
        ((200, json.dumps(reply()).encode()), b"E_UNAUTHORIZED AUTH no authorizations found"),
    ],
)
def test_answers_that_do_not_help(
    nsqd: Nsqd, server: AuthServer, answer: tuple[int, bytes], told: bytes
) -> None:
    server.override = answer
    with nsqd.connect() as raw:
        assert raw.command(commands.auth(b"s3cret")) == (ERROR, told)
        assert raw.closed()


def test_auth_once(nsqd: Nsqd) -> None:
    with nsqd.connect() as raw:
        assert raw.command(commands.auth(b"s3cret"))[0] == RESPONSE
        assert raw.command(commands.auth(b"s3cret")) == (ERROR, b"E_INVALID AUTH already set")
        assert raw.closed()


def test_a_slow_auth_server_holds_only_who_waits_for_it(nsqd: Nsqd, server: AuthServer) -> None:
    with authed(nsqd) as other, nsqd.connect() as raw:
        server.delay_s = 1.5
        raw.send(commands.auth(b"s3cret"), commands.pub("ok", b"m"), commands.NOP)
        began_s = time.monotonic()
        other.pub("ok", b"m")
        assert time.monotonic() - began_s < 1.2
        assert raw.frame()[0] == RESPONSE
        assert raw.frame() == (RESPONSE, b"OK")
        assert time.monotonic() - began_s > 1.4


def test_a_client_may_leave_while_it_is_asked_about(nsqd: Nsqd, server: AuthServer) -> None:
    server.delay_s = 0.3
    with nsqd.connect() as raw:
        raw.send(commands.auth(b"s3cret"))
        assert eventually(lambda: len(server.requests) == 1)
    time.sleep(0.4)
    assert nsqd.get("/ping").text == "OK"


# Time to live


def test_after_its_time_a_permit_is_asked_for_again(nsqd: Nsqd, server: AuthServer) -> None:
    with authed(nsqd, "short", heartbeat_interval=5000) as client:
        client.pub("ok", b"a")
        client.pub("ok", b"b")
        assert len(server.requests) == 1
        time.sleep(2.1)
        client.pub("ok", b"c")
        client.pub("ok", b"d")
        assert len(server.requests) == 2
        assert server.requests[0].query == server.requests[1].query
        time.sleep(2.1)
        server.override = (200, json.dumps(reply(entry("^other$"))).encode())
        client.send(commands.pub("ok", b"e"))
        assert client.error() == 'E_UNAUTHORIZED AUTH failed for PUB on "ok" ""'


def test_a_subscription_outlives_its_permit_and_publishing_does_not(
    nsqd: Nsqd, server: AuthServer
) -> None:
    with authed(nsqd, "short", heartbeat_interval=5000) as client:
        client.sub("ok-sub", "c", ready=10)
        time.sleep(2.1)
        server.override = (500, b"")
        nsqd.post("/pub?topic=ok-sub", b"m")
        client.fin(client.message())
        client.send(commands.pub("ok-sub", b"x"))
        assert client.error() == "E_AUTH_FAILED AUTH failed"
        client.wait_closed()


# Several servers, POST, https


def test_servers_are_asked_in_a_ring(tmp_path: Path) -> None:
    with AuthServer() as broken, AuthServer(GRANTS) as good:
        broken.override = (500, b"")
        addresses = (broken.address, "127.0.0.1:1", f"http://{good.address}/other?x=1")
        options = [f"--auth-http-address={address}" for address in addresses]
        with Nsqd(tmp_path, *options) as nsqd:
            for _ in range(6):
                authed(nsqd).close()
        assert len(good.requests) == 6
        # Each time the first one is drawn; it is the broken one every third time or so.
        assert len(broken.requests) <= 6
        asked = good.requests[0]
        assert asked.path == "/other"
        assert asked.query.startswith("x=1&common_name=&")


def test_post_sends_lists(tmp_path: Path, server: AuthServer) -> None:
    options = (f"--auth-http-address={server.address}", "--auth-http-request-method=post")
    with Nsqd(tmp_path, *options) as nsqd:
        authed(nsqd).close()
    (asked,) = server.requests
    assert (asked.method, asked.path, asked.query) == ("POST", "/auth", "")
    assert asked.headers["content-type"] == "application/json"
    assert asked.body == (
        b'{"common_name":[""],"remote_ip":["127.0.0.1"],"secret":["s3cret"],"tls":["false"]}'
    )


def test_a_refusal_of_plain_http_names_the_port_for_https(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    pki.issue("bob the client")
    with (
        AuthServer(GRANTS, tls=pki.server_context()) as secure,
        AuthServer() as plain,
    ):
        plain.override = (403, json.dumps({"https_port": secure.port}).encode())
        options = (
            f"--auth-http-address={plain.address}",
            f"--tls-root-ca-file={pki.ca}",
            "--tls-client-auth-policy=require-verify",
        )
        with Nsqd(tmp_path / "nsqd", *pki.options(), *options) as nsqd:
            context = pki.client_context("bob the client")
            with SecureClient.of(nsqd, context) as client:
                assert client.auth("s3cret")["identity"] == "bob"
                client.pub("ok", b"m")
        assert len(plain.requests) == 1
        fields = fields_of(secure.requests[0])
        assert (fields["common_name"], fields["tls"]) == ("bob the client", "true")


def test_an_auth_server_with_an_unknown_certificate_is_not_believed(tmp_path: Path) -> None:
    pki, other = Pki(tmp_path / "pki"), Pki(tmp_path / "other")
    with AuthServer(GRANTS, tls=other.server_context()) as server:
        options = (f"--auth-http-address={server.address}", f"--tls-root-ca-file={pki.ca}")
        with Nsqd(tmp_path / "nsqd", *options) as nsqd, nsqd.connect() as raw:
            told = raw.command(commands.auth(b"s3cret"))
            assert told == (ERROR, b"E_AUTH_FAILED AUTH failed")
            nsqd.wait_for_log("certificate verify failed")
        assert server.requests == []


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with AuthServer(GRANTS) as server:
        server.delay_s = 6
        options = (f"--auth-http-address={server.address}", "--http-client-request-timeout=300ms")
        with Nsqd(tmp_path, *options) as nsqd, nsqd.connect() as raw:
            began_s = time.monotonic()
            told: Any = raw.command(commands.auth(b"s3cret"))
            assert told == (ERROR, b"E_AUTH_FAILED AUTH failed")
            assert 0.25 < time.monotonic() - began_s < 5.5
