"""The HTTP server itself: framing, order, limits.  What the routes do is in test_http_api."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterator

import pytest

from penstock.core.ticket import Ticket
from penstock.net.http_message import Pending, Request, Response, text_response
from penstock.net.http_reader import ReadLimits
from penstock.net.http_router import Route, Router
from penstock.net.http_server import HttpLimits
from tests.support.waits import wait_until
from tests.unit.net.harness import Harness, get, post, request

CHUNKED = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-Trailer: 1\r\n\r\n"
LIMITS = HttpLimits(read=ReadLimits(target_size_max=200, head_size_max=2000, header_count_max=20))
BODY_SIZE_MAX = 1000


class Application:
    """Echoes bodies, at once or when told."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.begun: list[str] = []
        self.router = Router()
        echo = Route(self.echo, body_size_max=BODY_SIZE_MAX)
        self.router.add("POST", "/echo", echo)
        self.router.add("GET", "/echo", echo)
        self.router.add("POST", "/later", Route(self.later, body_size_max=BODY_SIZE_MAX))
        self.router.add("GET", "/large", Route(self.large))
        self.router.add("GET", "/crash", Route(self.crash))
        self.router.add("GET", "/item/:name", Route(self.item))

    def echo(self, request: Request) -> Response:
        self.begun.append(request.target)
        return text_response(f"{request.method} {request.body.decode()}")

    def later(self, request: Request) -> Pending:
        self.begun.append(request.target)
        ticket = Ticket()
        self.tickets.append(ticket)
        body = request.body.decode()
        return Pending(ticket, lambda ticket: text_response(f"{body} {ticket.error}"))

    def large(self, request: Request) -> Response:
        self.begun.append(request.target)
        return Response(200, bytes(1 << 20))

    def crash(self, request: Request) -> Response:
        raise RuntimeError("on purpose")

    def item(self, request: Request) -> Response:
        return text_response(request.params["name"])


@pytest.fixture
def app() -> Application:
    return Application()


@pytest.fixture
def http(app: Application) -> Iterator[Harness]:
    with Harness(app.router, LIMITS) as harness:
        yield harness


def limited(**changes: object) -> HttpLimits:
    return dataclasses.replace(LIMITS, **changes)  # type: ignore[arg-type]


# Framing


def test_a_connection_serves_one_request_after_the_other(http: Harness) -> None:
    with http.connect() as raw:
        for word in ("one", "two", "three"):
            raw.send(post("/echo", word.encode()))
            status, headers, body = raw.answer()
            assert (status, body) == (200, f"POST {word}".encode())
            assert headers["x-nsq-content-type"] == "nsq; version=1.0"
            assert headers["date"].endswith(" GMT")
            assert "connection" not in headers


STREAM = (
    post("/echo?a=1", b"hello")
    + request("POST", "/echo", CHUNKED, "Transfer-Encoding: chunked")
    + get("/echo")
    + get("/missing")
)
ANSWERS = [b"POST hello", b"POST hello world", b"GET ", b'{"message":"NOT_FOUND"}']


def test_where_the_stream_is_split_never_changes_the_answers(http: Harness) -> None:
    for at in range(1, len(STREAM), 7):
        with http.connect() as raw:
            raw.send(STREAM[:at])
            time.sleep(0.001)
            raw.send(STREAM[at:])
            assert [raw.answer()[2] for _ in ANSWERS] == ANSWERS


def test_one_byte_a_packet_is_fine(http: Harness) -> None:
    with http.connect() as raw:
        for at in range(len(STREAM)):
            raw.send(STREAM[at : at + 1])
        assert [raw.answer()[2] for _ in ANSWERS] == ANSWERS


def test_chunked_bodies_are_joined(http: Harness) -> None:
    data = request("POST", "/echo", CHUNKED, "Transfer-Encoding: chunked")
    assert http.ask(data)[2] == b"POST hello world"


@pytest.mark.parametrize(
    ("data", "keeps"),
    [
        (get("/echo"), True),
        (get("/echo", "Connection: close"), False),
        (get("/echo", "Connection: Close, x"), False),
        (get("/echo", version="1.0"), False),
        (get("/echo", "Connection: keep-alive", version="1.0"), True),
    ],
)
def test_the_connection_is_kept_as_the_client_wishes(
    http: Harness, data: bytes, keeps: bool
) -> None:
    with http.connect() as raw:
        raw.send(data)
        status, headers, body = raw.answer()
        assert (status, body) == (200, b"GET ")
        if keeps:
            raw.send(data)
            assert raw.answer()[0] == 200
        else:
            assert headers["connection"] == "close"
            assert raw.closed()


def test_http_1_0_is_answered_in_kind(http: Harness) -> None:
    with http.connect() as raw:
        raw.send(b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert raw.sock.recv(65536).startswith(b"HTTP/1.0 200 OK\r\n")


def test_what_follows_connection_close_is_not_read(http: Harness, app: Application) -> None:
    with http.connect() as raw:
        raw.send(get("/echo?1", "Connection: close") + get("/echo?2"))
        assert raw.answer()[0] == 200
        assert raw.closed()
    assert app.begun == ["/echo?1"]


def test_a_client_that_closed_its_side_still_gets_its_answers(
    http: Harness, app: Application
) -> None:
    with http.connect() as raw:
        raw.send(post("/later", b"a"))
        while not app.tickets:
            time.sleep(0.001)
        raw.sock.shutdown(socket.SHUT_WR)
        assert raw.silent(0.05)
        http.on_loop(app.tickets[0].settle)
        assert raw.answer()[2] == b"a None"
        assert raw.closed()


def test_expect_100_is_answered_before_the_body(http: Harness) -> None:
    head = request("POST", "/echo", b"", "Content-Length: 5", "Expect: 100-continue")
    with http.connect() as raw:
        raw.send(head)
        assert raw.answer()[0] == 100
        raw.send(b"hello")
        assert raw.answer()[2] == b"POST hello"


def test_expect_100_waits_for_the_answers_before_it(http: Harness, app: Application) -> None:
    head = request("POST", "/echo", b"", "Content-Length: 5", "Expect: 100-continue")
    with http.connect() as raw:
        raw.send(post("/later", b"a") + head)
        assert raw.silent(0.05)
        http.on_loop(app.tickets[0].settle)
        assert raw.answer()[0] == 200
        assert raw.answer()[0] == 100
        raw.send(b"hello")
        assert raw.answer()[2] == b"POST hello"


def test_expect_100_is_skipped_when_the_body_is_there(http: Harness) -> None:
    with http.connect() as raw:
        raw.send(request("POST", "/echo", b"hello", "Content-Length: 5", "Expect: 100-continue"))
        assert raw.answer()[2] == b"POST hello"


def test_expect_100_is_skipped_when_the_body_has_begun(http: Harness) -> None:
    with http.connect() as raw:
        raw.send(request("POST", "/echo", b"he", "Content-Length: 5", "Expect: 100-continue"))
        assert raw.silent(0.05)
        raw.send(b"llo")
        assert raw.answer()[2] == b"POST hello"


def test_expect_100_for_a_body_too_big_gets_413_instead(http: Harness) -> None:
    head = request("POST", "/echo", b"", "Content-Length: 1001", "Expect: 100-continue")
    with http.connect() as raw:
        raw.send(head)
        assert raw.answer()[0] == 413
        assert raw.closed()


def test_another_expectation_is_417(http: Harness) -> None:
    assert http.ask(request("POST", "/echo", b"", "Content-Length: 5", "Expect: x"))[0] == 417


@pytest.mark.parametrize(
    "framing",
    [("Content-Length: 5", b"hello"), ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n")],
)
def test_an_offered_upgrade_is_ignored(http: Harness, framing: tuple[str, bytes]) -> None:
    header, body = framing
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAE")
    data = request("POST", "/echo", body, header, *offer)
    for at in range(len(data) - len(body) - 2, len(data)):
        with http.connect() as raw:
            raw.send(data[:at])
            time.sleep(0.001)
            raw.send(data[at:] + get("/echo"))
            assert raw.answer()[2] == b"POST hello"
            assert raw.answer()[2] == b"GET "


def test_an_absolute_target_is_taken_for_its_path(http: Harness) -> None:
    assert http.ask(get("http://example.com/echo?x"))[2] == b"GET "


def test_escapes_in_the_path_are_undone(http: Harness) -> None:
    assert http.ask(get("/%65cho"))[2] == b"GET "
    assert http.ask(get("/item/a%2Fb"))[0] == 404
    assert http.ask(get("/item/a%20b"))[2] == b"a b"
    assert http.ask(get("/%zz"))[0] == 400


# Order


def test_pipelined_answers_come_in_order(http: Harness, app: Application) -> None:
    with http.connect() as raw:
        raw.send(post("/later", b"a") + post("/echo", b"b") + post("/later", b"c"))
        while len(app.tickets) < 2:
            time.sleep(0.001)
        http.on_loop(app.tickets[1].settle)
        assert raw.silent(0.05)
        http.on_loop(app.tickets[0].settle, OSError("full"))
        assert [raw.answer()[2] for _ in range(3)] == [b"a full", b"POST b", b"c None"]


def test_a_bounded_number_runs_side_by_side(app: Application) -> None:
    with Harness(app.router, limited(begun_count_max=3)) as http, http.connect() as raw:
        raw.send(b"".join(post(f"/later?{n}", b"%d" % n) for n in range(10)))
        assert raw.silent(0.05)
        assert len(app.begun) == 3
        for n in range(10):
            http.on_loop(app.tickets[n].settle)
            assert raw.answer()[2] == b"%d None" % n
            assert len(app.begun) == min(n + 4, 10)


def test_a_bounded_size_runs_side_by_side(app: Application) -> None:
    with Harness(app.router, limited(begun_size_max=1000)) as http, http.connect() as raw:
        raw.send(b"".join(post("/later", b"x" * 600) for n in range(5)))
        assert raw.silent(0.05)
        assert len(app.begun) == 2


def test_what_cannot_begin_is_not_read(app: Application) -> None:
    with Harness(app.router, limited(begun_count_max=1)) as http, http.connect() as raw:
        raw.sock.settimeout(0.3)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64 << 20:
                sent += raw.sock.send(post("/later", b"x" * 1000) * 60)
        assert len(app.begun) == 1


def test_a_reader_that_does_not_read_is_not_served_on(http: Harness, app: Application) -> None:
    count = 200
    with http.connect() as raw:
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        raw.send(get("/large") * count)
        time.sleep(0.2)
        assert len(app.begun) < 30
        for _ in range(count):
            assert len(raw.answer()[2]) == 1 << 20
    assert len(app.begun) == count


def test_a_reader_that_never_reads_is_dropped(app: Application) -> None:
    limits = limited(write_timeout_s=0.2, linger_timeout_s=0.2)
    with Harness(app.router, limits) as http, http.connect() as raw:
        raw.send(get("/large") * 20)
        wait_until_gone(http)
        assert len(app.begun) < 20


def test_an_answer_to_nobody_is_dropped(http: Harness, app: Application) -> None:
    with http.connect() as raw:
        raw.send(post("/later", b"a"))
        while not app.tickets:
            time.sleep(0.001)
    # The end of a peer's sending may be all it closed, so only the answer finds out.
    http.on_loop(app.tickets[0].settle)
    wait_until_gone(http)


def test_a_crash_in_a_handler_is_500_and_the_connection_lives(http: Harness) -> None:
    with http.connect() as raw:
        raw.send(get("/crash") + get("/echo"))
        status, headers, body = raw.answer()
        assert (status, body) == (500, b'{"message":"INTERNAL_ERROR"}')
        assert headers["content-type"] == "application/json; charset=utf-8"
        assert raw.answer()[0] == 200


# Limits


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get("/" + "x" * 199), 404),
        (get("/" + "x" * 200), 414),
        (get("/echo", *["X: y"] * 19), 200),
        (get("/echo", *["X: y"] * 20), 431),
        (get("/echo", "X: " + "y" * 1900), 200),
        (get("/echo", "X: " + "y" * 2000), 431),
        (post("/echo", b"x" * BODY_SIZE_MAX), 200),
        (post("/echo", b"x" * (BODY_SIZE_MAX + 1)), 413),
    ],
)
def test_limits_hold_to_the_byte(http: Harness, data: bytes, status: int) -> None:
    with http.connect() as raw:
        raw.send(data)
        got, headers, _ = raw.answer()
        assert got == status
        if status not in (200, 404):
            assert headers["connection"] == "close"
            assert raw.closed()


def test_an_endless_header_is_refused(http: Harness) -> None:
    with http.connect() as raw:
        raw.send(b"GET /echo HTTP/1.1\r\nX: ")
        for _ in range(30):
            raw.send(b"y" * 100)
            time.sleep(0.001)
        assert raw.answer()[0] == 431


def test_a_declared_body_too_big_is_refused_before_it_is_sent(http: Harness) -> None:
    with http.connect() as raw:
        raw.send(request("POST", "/echo", b"", "Content-Length: 999999999"))
        assert raw.answer()[0] == 413


def test_a_chunked_body_too_big_is_refused_as_soon_as_it_is(http: Harness) -> None:
    with http.connect() as raw:
        raw.send(request("POST", "/echo", b"", "Transfer-Encoding: chunked"))
        raw.send(b"3e9\r\n" + b"x" * 1001)
        status, _, body = raw.answer()
        assert (status, body) == (413, b'{"message":"BODY_TOO_BIG"}')


def test_a_refusal_reaches_a_client_that_goes_on_sending(http: Harness) -> None:
    body = b"x" * (4 << 20)
    with http.connect() as raw:
        raw.send(request("POST", "/echo", b"", f"Content-Length: {len(body)}"))
        raw.sock.settimeout(1)
        for at in range(0, len(body), 65536):
            raw.send(body[at : at + 65536])
        assert raw.answer()[0] == 413


def test_a_slow_head_is_408(app: Application) -> None:
    limits = limited(head_timeout_s=0.1)
    with Harness(app.router, limits) as http, http.connect() as raw:
        raw.send(b"GET /echo HT")
        assert raw.answer()[0] == 408
        assert raw.closed()


def test_a_slow_body_is_408(app: Application) -> None:
    limits = limited(body_timeout_s=0.1, linger_timeout_s=0.1)
    with Harness(app.router, limits) as http, http.connect() as raw:
        raw.send(post("/echo", b"hello")[:-2])
        assert raw.answer()[0] == 408
        assert raw.closed()


def test_an_idle_connection_is_closed(app: Application) -> None:
    limits = limited(idle_timeout_s=0.1)
    with Harness(app.router, limits) as http, http.connect() as raw:
        raw.send(get("/echo"))
        assert raw.answer()[0] == 200
        assert raw.closed()


def test_a_connection_that_waits_for_us_is_not_idle(app: Application) -> None:
    limits = limited(idle_timeout_s=0.1)
    with Harness(app.router, limits) as http, http.connect() as raw:
        raw.send(post("/later", b"a"))
        assert raw.silent(0.4)
        http.on_loop(app.tickets[0].settle)
        assert raw.answer()[2] == b"a None"


def test_a_peer_that_lingers_is_dropped(app: Application) -> None:
    limits = limited(linger_timeout_s=0.1)
    with Harness(app.router, limits) as http, http.connect() as raw:
        raw.send(b"nonsense\r\n\r\n")
        assert raw.answer()[0] == 400
        wait_until_gone(http)


def test_too_many_connections_are_503(app: Application) -> None:
    with Harness(app.router, limited(connection_count_max=1)) as http, http.connect() as first:
        first.send(get("/echo"))
        assert first.answer()[0] == 200
        with http.connect() as second:
            assert second.answer()[0] == 503
            assert second.closed()
        first.send(get("/echo"))
        assert first.answer()[0] == 200


def test_closing_the_server_answers_what_has_begun(app: Application) -> None:
    with Harness(app.router, LIMITS) as http, http.connect() as busy, http.connect() as idle:
        busy.send(post("/later", b"a"))
        idle.send(get("/echo"))
        assert idle.answer()[0] == 200
        while not app.tickets:
            time.sleep(0.001)
        closed = http.start(http.server.close(5))
        assert idle.closed()
        http.on_loop(app.tickets[0].settle)
        status, headers, _ = busy.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert busy.closed()
        closed.result(5)


# Malformed


@pytest.mark.parametrize(
    "data",
    [
        b"  V2",
        b"  V2IDENTIFY\n\0\0\0\x02{}",
        b"  V1",
        b"nonsense",
        b"GET\r\n\r\n",
        b"GET /echo HTTP/1.1\nHost: x\n\n",
        b"GET /echo HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"GET /echo HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        post("/echo", b"hello", "Content-Length: 6"),
        post("/echo", b"hello", "Transfer-Encoding: chunked"),
        request("POST", "/echo", b"", "Content-Length: -1"),
        request("POST", "/echo", b"", "Content-Length: 5x"),
        request("POST", "/echo", b"", "Content-Length: 99999999999999999999"),
        request("POST", "/echo", b"zz\r\n", "Transfer-Encoding: chunked"),
        request("POST", "/echo", b"", "Transfer-Encoding: gzip"),
        get("/\xff"),
    ],
)
def test_whatever_is_not_http_is_400_and_closed(http: Harness, data: bytes) -> None:
    with http.connect() as raw:
        raw.send(data)
        status, headers, _ = raw.answer()
        assert status == 400
        assert headers["connection"] == "close"
        assert raw.closed()


def test_requests_before_the_nonsense_are_answered(http: Harness, app: Application) -> None:
    with http.connect() as raw:
        raw.send(post("/later", b"a") + get("/echo") + b"nonsense\r\n\r\n")
        assert raw.silent(0.05)
        http.on_loop(app.tickets[0].settle)
        assert [raw.answer()[0] for _ in range(3)] == [200, 200, 400]
        assert raw.closed()


def test_http_0_9_is_505(http: Harness) -> None:
    assert http.ask(get("/echo", version="0.9"))[0] == 505
    assert http.ask(b"GET /echo\r\n\r\n")[0] == 505


def test_connect_is_refused(http: Harness) -> None:
    with http.connect() as raw:
        raw.send(request("CONNECT", "example.com:80", b""))
        assert raw.answer()[0] == 404
        assert raw.closed()


# Routing


@pytest.mark.parametrize(
    ("method", "target", "status", "header"),
    [
        ("GET", "/missing", 404, None),
        ("PUT", "/echo", 405, ("allow", "GET, OPTIONS, POST")),
        ("POST", "/large", 405, ("allow", "GET, OPTIONS")),
        ("GET", "/later", 405, ("allow", "OPTIONS, POST")),
        ("OPTIONS", "/later", 200, ("allow", "OPTIONS, POST")),
        ("OPTIONS", "/missing", 404, None),
        ("GET", "/echo/", 301, ("location", "/echo")),
        ("GET", "/ECHO?a=b&c", 301, ("location", "/echo?a=b&c")),
        ("GET", "//echo", 301, ("location", "/echo")),
        ("GET", "/x/../Echo/.", 301, ("location", "/echo")),
        ("POST", "/echo/", 307, ("location", "/echo")),
        ("GET", "/LATER", 404, None),
        ("GET", "/ITEM/Foo/", 301, ("location", "/item/Foo")),
        ("GET", "/item/", 404, None),
        ("GET", "/item", 404, None),
        ("PUT", "/item/x", 405, ("allow", "GET, OPTIONS")),
        ("GET", "/", 404, None),
    ],
)
def test_routing_is_nsqs(
    http: Harness, method: str, target: str, status: int, header: tuple[str, str] | None
) -> None:
    got, headers, body = http.ask(request(method, target, b""))
    assert got == status
    if header:
        assert headers[header[0]] == header[1]
    if status in (404, 405):
        text = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}[status]
        assert body == b'{"message":"%s"}' % text.encode()
        assert headers["x-nsq-content-type"] == "nsq; version=1.0"
    if method == "OPTIONS" and status == 200:
        assert body == b""


def test_head_is_405_without_a_body(http: Harness) -> None:
    with http.connect() as raw:
        raw.send(request("HEAD", "/echo", b"") + get("/echo"))
        status, headers, _ = raw.answer(head=True)
        assert status == 405
        assert int(headers["content-length"]) > 0
        assert raw.answer()[2] == b"GET "


def wait_until_gone(http: Harness) -> None:
    wait_until(lambda: http.on_loop(lambda: not http.server.connections))


def asyncio_close(http: Harness):
    import asyncio

    future = asyncio.run_coroutine_threadsafe(http.server.close(5), http._loop)
    return lambda: future.result(5)
