"""nsqadmin answers under its own names: a page that rebinds a name of its own gets nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.admin.app import Admin
from penstock.admin.daemon import router_of
from penstock.admin.options import AdminOptions
from tests.admin.cluster import Nsqadmin
from tests.support.daemon import Nsqd

EVIL = {"Host": "evil.example:4171", "Origin": "http://evil.example:4171"}
REBOUND = EVIL | {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    path = tmp_path_factory.mktemp("nsqd")
    with Nsqd(path, "--broadcast-address=127.0.0.1") as running:
        running.post("/topic/create?topic=t")
        yield running


@pytest.fixture(scope="module")
def admin(nsqd: Nsqd) -> Iterator[Nsqadmin]:
    with Nsqadmin(f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}") as running:
        yield running


def every_route() -> list[tuple[str, str]]:
    options = AdminOptions(nsqd_http_addresses=("127.0.0.1:9",))
    return sorted(set(router_of(Admin(options)).routes()))


def test_no_route_answers_under_a_foreign_name(admin: Nsqadmin) -> None:
    for method, pattern in every_route():
        reply = admin.http(method, pattern.replace(":", ""), b"", REBOUND)
        assert reply.status == 421, (method, pattern)
        assert "--allowed-host=evil.example" in reply.json["message"]
    for path in ("/nowhere", "/topics/"):
        assert admin.http("GET", path, headers=REBOUND).status == 421
    assert "evil.example" in admin.log


def test_a_rebound_name_changes_no_option_and_no_topic(admin: Nsqadmin, nsqd: Nsqd) -> None:
    body = b'["evil.example:80"]'
    reply = admin.http("PUT", "/config/nsqlookupd_http_addresses", body, REBOUND)
    assert reply.status == 421
    assert admin.get("/config/nsqlookupd_http_addresses").json == []
    reply = admin.http("POST", "/api/topics/t", b'{"action":"pause"}', REBOUND)
    assert reply.status == 421
    assert [topic["paused"] for topic in nsqd.stats()["topics"]] == [False]


def test_own_names_are_answered(admin: Nsqadmin) -> None:
    port = admin.http_port
    for host in (
        *(f"127.0.0.1:{port}", "127.0.0.1", f"[::1]:{port}", f"localhost:{port}", "LocalHost."),
        *(socket.gethostname(), f"{socket.gethostname()}:1"),
    ):
        assert admin.http("GET", "/", headers={"Host": host}).status == 200, host


def test_a_health_check_without_a_host_is_answered(admin: Nsqadmin) -> None:
    with socket.create_connection(("127.0.0.1", admin.http_port), timeout=10) as raw:
        raw.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        assert raw.makefile("rb").readline().startswith(b"HTTP/1.0 200")


def test_a_name_of_the_flag_is_answered_behind_a_proxy_with_a_path(
    nsqd: Nsqd, tmp_path: Path
) -> None:
    with Nsqadmin(
        f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}",
        "--base-path=/nsq",
        "--allowed-host=admin.example.org",
        "--allowed-host=.internal",
    ) as admin:
        own = {"Host": "admin.example.org", "X-Forwarded-Proto": "https"}
        for headers in (own, {"Host": "ADMIN.example.org.:443"}, {"Host": "a.b.internal:8443"}):
            assert admin.http("GET", "/nsq/topics", headers=headers).status == 200, headers
        reply = admin.http(
            "POST",
            "/nsq/api/topics/t",
            b'{"action":"unpause"}',
            own | {"Origin": "https://admin.example.org"},
        )
        assert reply.status == 200
        assert admin.http("GET", "/nsq/topics", headers={"Host": "internal"}).status == 421
        # What a page could make up about a proxy does not count.
        forwarded = {"Host": "evil.example", "X-Forwarded-Host": "admin.example.org"}
        assert admin.http("GET", "/nsq/topics", headers=forwarded).status == 421


def test_a_flag_value_that_is_no_host_ends_the_start(nsqd: Nsqd) -> None:
    admin = Nsqadmin(
        f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}", "--allowed-host=http://admin.example"
    )
    with pytest.raises(AssertionError):
        admin.start()
    assert "--allowed-host" in admin.log
