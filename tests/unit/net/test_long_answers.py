from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.net.http_message import Request, Response, text_response
from penstock.net.http_router import Route, Router
from penstock.net.long_answers import SLICE_NS, gather
from tests.unit.net.harness import Harness, get

PIECE_COUNT = 30


def slow_pieces(made: list[int]) -> Iterator[bytes]:
    """Each takes longer than a slice."""
    for number in range(PIECE_COUNT):
        made.append(number)
        time.sleep(SLICE_NS / 1e9)
        yield b"%d," % number


def broken_pieces() -> Iterator[bytes]:
    time.sleep(SLICE_NS / 1e9)
    yield b"first"
    raise RuntimeError("on purpose")


def test_a_short_answer_is_made_at_once() -> None:
    response = gather(iter((b"a", b"b")), (("X", "y"),))
    assert isinstance(response, Response)
    assert response.body == b"ab"
    assert b"X: y\r\n" in response.head


def test_others_are_served_while_a_long_answer_is_made() -> None:
    made: list[int] = []
    router = Router()
    router.add("GET", "/long", Route(lambda request: gather(slow_pieces(made), ())))

    def count(request: Request) -> Response:
        return text_response(str(len(made)))

    router.add("GET", "/count", Route(count))
    with Harness(router) as http, http.connect() as slow, http.connect() as fast:
        slow.send(get("/long"))
        counts = []
        while not counts or counts[-1] < PIECE_COUNT:
            fast.send(get("/count"))
            counts.append(int(fast.answer()[2]))
        assert len(set(counts)) > 5
        body = slow.answer()[2]
        assert body == b"".join(b"%d," % number for number in range(PIECE_COUNT))


def test_a_failure_in_a_later_turn_is_500() -> None:
    router = Router()
    router.add("GET", "/broken", Route(lambda request: gather(broken_pieces(), ())))
    with Harness(router) as http:
        status, _, body = http.ask(get("/broken"))
        assert (status, body) == (500, b'{"message":"INTERNAL_ERROR"}')
