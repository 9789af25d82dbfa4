"""Rule 4 of the HTTP server: however much one peer sends at once, others get their turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from penstock.net.http_message import Request, Response, text_response
from penstock.net.http_router import Route, Router
from tests.support.waits import wait_until
from tests.unit.net.harness import Harness, RawHttp, get, post

COUNT = 3000
WAIT_SECONDS_MAX = 30
BODY_SIZE_MAX = 1 << 20


class Application:
    """Notes what was begun, in order; the first request goes on when ``go_on`` is set."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go_on = threading.Event()
        self.router = Router()
        self.router.add("GET", "/busy/:number", Route(self.busy))
        self.router.add("POST", "/size", Route(self.size, body_size_max=BODY_SIZE_MAX))

    def busy(self, request: Request) -> Response:
        self.begun.append(request.params["number"])
        assert len(self.begun) > 1 or self.go_on.wait(WAIT_SECONDS_MAX)
        end_ns = time.perf_counter_ns() + 300_000
        while time.perf_counter_ns() < end_ns:
            pass
        return text_response(request.params["number"])

    def first_begun(self) -> None:
        end_ns = time.monotonic_ns() + WAIT_SECONDS_MAX * 1_000_000_000
        while not self.begun:
            assert time.monotonic_ns() < end_ns, "no request came through"
            time.sleep(0.001)

    def size(self, request: Request) -> Response:
        self.begun.append("size")
        return text_response(str(len(request.body)))


@pytest.fixture
def app() -> Application:
    return Application()


@pytest.fixture
def http(app: Application) -> Iterator[Harness]:
    with Harness(app.router) as harness:
        yield harness


def bodies(raw: RawHttp, count: int) -> list[bytes]:
    return [raw.answer()[2] for _ in range(count)]


def test_pipelined_requests_let_others_in_between(http: Harness, app: Application) -> None:
    with http.connect() as greedy, http.connect() as other:
        sending = threading.Thread(
            target=greedy.send, args=(b"".join(get(f"/busy/{n}") for n in range(COUNT)),)
        )
        sending.start()  # it may have to wait for the server to read
        app.first_begun()
        other.send(get("/busy/other"))
        app.go_on.set()
        assert greedy.answer()[2] == b"0"
        assert other.answer()[2] == b"other"
        assert bodies(greedy, COUNT - 1) == [b"%d" % number for number in range(1, COUNT)]
        sending.join(WAIT_SECONDS_MAX)
    place = app.begun.index("other")
    assert place < COUNT - 100, "it waited for all of the greedy peer's requests"
    del app.begun[place]
    assert app.begun == [str(number) for number in range(COUNT)]


def test_bodies_of_any_size_are_joined_over_turns(http: Harness) -> None:
    sizes = [0, 1, 16_383, 16_384, 16_385, 100_000, BODY_SIZE_MAX, 5]
    with http.connect() as raw:
        for size in sizes:
            raw.send(post("/size", bytes(size)))
        assert bodies(raw, len(sizes)) == [b"%d" % size for size in sizes]


def test_what_follows_the_last_request_is_dropped_with_it(http: Harness, app: Application) -> None:
    app.go_on.set()
    with http.connect() as raw:
        raw.send(get("/busy/1") + get("/busy/2", "Connection: close") + get("/busy/3") * 2000)
        assert bodies(raw, 2) == [b"1", b"2"]
        assert raw.closed()
    assert app.begun == ["1", "2"]


def test_a_peer_that_leaves_in_the_middle_is_forgotten(http: Harness, app: Application) -> None:
    app.go_on.set()
    with http.connect() as raw:
        raw.send(b"".join(get(f"/busy/{number}") for number in range(COUNT)))
        raw.answer()
    wait_until(lambda: not http.server.connections)
