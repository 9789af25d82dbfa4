"""Web pages cannot change anything through a visitor's browser: nsqd's and nsqlookupd's HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, Nsqd, Nsqlookupd, Reply

CROSS = {"Sec-Fetch-Site": "cross-site"}
CHANGES = [
    ("POST", "/pub?topic=t"),
    ("POST", "/mpub?topic=t"),
    ("POST", "/topic/create?topic=x"),
    ("POST", "/topic/delete?topic=t"),
    ("POST", "/topic/empty?topic=t"),
    ("POST", "/channel/create?topic=t&channel=x"),
    ("POST", "/channel/delete?topic=t&channel=c"),
    ("POST", "/channel/pull?topic=t&channel=x"),
    ("PUT", "/config/log_level"),
    ("PUT", "/staging/part?query=q"),
    ("POST", "/debug/freememory"),
    ("DELETE", "/topic/delete?topic=t"),
    ("POST", "/nonsense"),
]
LOOKUPD_CHANGES = [
    ("POST", "/topic/create?topic=x"),
    ("POST", "/topic/delete?topic=t"),
    ("POST", "/topic/tombstone?topic=t&node=127.0.0.1:1"),
    ("POST", "/channel/create?topic=t&channel=x"),
    ("POST", "/channel/delete?topic=t&channel=c"),
]
LOOKS = ["/ping", "/info", "/stats", "/metrics"]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("origins")) as daemon:
        daemon.post("/topic/create?topic=t")
        daemon.post("/channel/create?topic=t&channel=c")
        yield daemon
        assert "Traceback" not in daemon.log, daemon.log


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Nsqlookupd]:
    with Nsqlookupd() as daemon:
        daemon.post("/channel/create?topic=t&channel=c")
        yield daemon


def ask(daemon: Daemon, method: str, target: str, headers: dict[str, str]) -> Reply:
    return daemon.http(method, target, None if method == "GET" else b"x", headers)


def refused(reply: Reply) -> bool:
    return reply.status == 403 and reply.json == {"message": "CROSS_SITE"}


@pytest.mark.parametrize(("method", "target"), CHANGES)
def test_a_page_of_another_site_changes_nothing_of_nsqd(
    nsqd: Nsqd, method: str, target: str
) -> None:
    # Twice, so that a head that was read before is judged as well.
    for _ in range(2):
        assert refused(ask(nsqd, method, target, CROSS))
        assert refused(ask(nsqd, method, target, {"Sec-Fetch-Site": "Cross-Site"}))
    topics = nsqd.stats()["topics"]
    assert [topic["topic_name"] for topic in topics] == ["t"]
    assert [channel["channel_name"] for channel in topics[0]["channels"]] == ["c"]
    assert topics[0]["message_count"] == 0


@pytest.mark.parametrize(("method", "target"), LOOKUPD_CHANGES)
def test_a_page_of_another_site_changes_nothing_of_nsqlookupd(
    lookupd: Nsqlookupd, method: str, target: str
) -> None:
    for _ in range(2):
        assert refused(ask(lookupd, method, target, CROSS))
    assert lookupd.get("/topics").json == {"topics": ["t"]}
    assert lookupd.get("/channels?topic=t").json == {"channels": ["c"]}


def test_a_page_is_known_by_its_origin_where_the_browser_tells_nothing_else(nsqd: Nsqd) -> None:
    """Browsers send Sec-Fetch-Site only to HTTPS and to localhost."""
    target = "/channel/create?topic=t&channel=c"
    for origin in ("http://evil.example", "https://evil.example:4151", "null", "", "nonsense"):
        assert refused(ask(nsqd, "POST", target, {"Origin": origin})), origin
        own = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        assert ask(nsqd, "POST", target, own).status == 200
    for host in ("127.0.0.1", "queues.example:80", "[::1]:4151"):
        for origin in (f"http://{host}", f"https://{host.upper()}"):
            headers = {"Host": host, "Origin": origin}
            assert ask(nsqd, "POST", target, headers).status == 200, origin


def test_looking_and_clients_without_such_headers_are_served(
    nsqd: Nsqd, lookupd: Nsqlookupd
) -> None:
    for target in LOOKS:
        assert ask(nsqd, "GET", target, CROSS).status == 200
    assert ask(lookupd, "GET", "/nodes", CROSS).status == 200
    for site in ("same-origin", "same-site", "none"):
        headers = {"Sec-Fetch-Site": site}
        assert ask(nsqd, "POST", "/topic/create?topic=t", headers).status == 200
        assert ask(lookupd, "POST", "/topic/create?topic=t", headers).status == 200
    for host in ("nsqd.example.com", "x", "127.0.0.1"):
        assert ask(nsqd, "POST", "/topic/create?topic=t", {"Host": host}).status == 200
        assert ask(lookupd, "POST", "/topic/create?topic=t", {"Host": host}).status == 200


def test_a_refusal_is_told_before_the_body_and_leaves_the_connection(nsqd: Nsqd) -> None:
    head = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nSec-Fetch-Site: cross-site\r\n"
    with socket.create_connection(("127.0.0.1", nsqd.http_port), 10) as sock:
        for _ in range(3):
            sock.sendall(head + b"Content-Length: 5\r\n\r\nhello")
            assert sock.recv(4096).startswith(b"HTTP/1.1 403 ")
        sock.sendall(head + b"Content-Length: 900000\r\nExpect: 100-continue\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 403 ")


def tokens(path: Path) -> str:
    (path / "tokens").write_text("admin admin-token\n")
    return f"--http-auth-token-file={path / 'tokens'}"


def test_with_tokens_nsqd_answers_under_its_own_names_only(tmp_path: Path) -> None:
    given = ("--broadcast-address=nsqd1.example.org", "--allowed-host=queues.example.com,.corp")
    admin = {"Authorization": "Bearer admin-token"}
    own = socket.gethostname()
    with Nsqd(tmp_path / "data", tokens(tmp_path), *given) as nsqd:
        for host in (
            *(
                "127.0.0.1",
                "127.0.0.1:4151",
                "[::1]:4151",
                "10.1.2.3",
                "localhost",
                "LocalHost.:80",
            ),
            *("a.localhost", own, own.upper(), "nsqd1.example.org:4151", "nsqd1", "a.b.corp"),
            "queues.example.com:8080",
        ):
            for _ in range(2):
                reply = ask(nsqd, "GET", "/stats", {**admin, "Host": host})
                assert reply.status == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", ""):
            for method, target in (("GET", "/stats"), ("POST", "/pub?topic=t"), ("GET", "/x")):
                for _ in range(2):
                    reply = ask(nsqd, method, target, {**admin, "Host": host})
                    assert reply.status == 421, host
                    assert reply.json["message"] == "MISDIRECTED_REQUEST"
        told = ask(nsqd, "GET", "/stats", {"Host": "evil.example:80"}).json["detail"]
        assert told.endswith("start it with --allowed-host=evil.example"), told
        assert ask(nsqd, "GET", "/ping", {"Host": "lb.example"}).text == "OK"
        with socket.create_connection(("127.0.0.1", nsqd.http_port), 10) as sock:
            sock.sendall(b"GET /info HTTP/1.0\r\nAuthorization: Bearer admin-token\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.0 200 ")


def test_a_host_that_is_given_is_checked_without_tokens_too(tmp_path: Path) -> None:
    with Nsqd(tmp_path, "--allowed-host=nsqd.example") as nsqd:
        assert ask(nsqd, "GET", "/stats", {"Host": "nsqd.example"}).status == 200
        assert ask(nsqd, "GET", "/stats", {"Host": "evil.example"}).status == 421
        origin = {"Host": "127.0.0.1", "Origin": "https://nsqd.example"}
        assert ask(nsqd, "POST", "/topic/create?topic=t", origin).status == 200
    with Nsqlookupd("--allowed-host=.example") as lookupd:
        assert ask(lookupd, "POST", "/topic/create?topic=t", {"Host": "a.example"}).status == 200
        reply = ask(lookupd, "POST", "/topic/create?topic=t", {"Host": "evil.test"})
        assert reply.status == 421 and "nsqlookupd" in reply.json["detail"]


@pytest.mark.parametrize("value", ["a:80", "http://a", "a/b", "a,b c"])
def test_a_host_that_nobody_could_send_stops_the_start(tmp_path: Path, value: str) -> None:
    with (
        pytest.raises(AssertionError, match="--allowed-host"),
        Nsqd(tmp_path, f"--allowed-host={value}"),
    ):
        pass
