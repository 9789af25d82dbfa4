"""The reader on its own: any cut of the stream gives the same requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.net.http_heads import KnownHeads
from penstock.net.http_message import EMPTY, Response
from penstock.net.http_reader import Incoming, ReadLimits, RequestReader
from penstock.net.http_router import Gate, Route, Router, refusing
from penstock.net.http_states import State
from tests.unit.net.harness import get, post, request

CHUNKED = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-Trailer: 1\r\n\r\n"
OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")
STREAM = b"".join(
    (
        post("/a?x=1", b"hello"),
        request("POST", "/a", CHUNKED, "Transfer-Encoding: chunked"),
        b"\r\n" + get("/a", "X: y"),
        post("/a", b"up", *OFFER),
        request("POST", "/a", CHUNKED, "Transfer-Encoding: chunked", *OFFER),
        get("/missing"),
        post("/a", b""),
    )
)
BAD_ENDS = {
    400: b"nonsense",
    413: request("POST", "/a", b"", "Content-Length: 101"),
    414: get("/" + "x" * 200),
    417: post("/a", b"x", "Expect: x"),
    431: get("/a", *["X: y"] * 30),
    505: get("/a", version="0.9"),
}


# What a client may send again and again, and what is kept by no means or may be.
PLAIN = [
    post("/a?x=1", b"hello"),
    post("/a?x=1", b"he\r\n\r\n"),
    post("/a", b""),
    get("/a"),
    get("/missing"),
    get("/a", "Connection: keep-alive", version="1.0"),
]
ODD = [
    b"\r\n",
    b"\r\n\r\n",
    b"POST /a HTTP/1.1\nHost: x\nContent-Length: 8\n\n\r\n\r\n1234",
    post("/a", b"x", "Expect: 100-continue"),
    post("/a", b"up", *OFFER),
    request("POST", "/a", CHUNKED, "Transfer-Encoding: chunked"),
    request("POST", "/a", b"both", "Transfer-Encoding: chunked", "Content-Length: 4"),
    request("POST", "/a", b"twice", "Content-Length: 5", "Content-Length: 5"),
    post("/a", b"last", "Connection: close"),
    get("/a", version="1.0"),
    *BAD_ENDS.values(),
]
UNCLEAR = [
    b"\r\n" + get("/a"),
    b"POST /a HTTP/1.1\r\nHost: x\r\n folded\r\nContent-Length: 2\r\n\r\nab",
    get("/a", "X: " + "y" * 900),
]


def reader(known: KnownHeads | None = None, gate: Gate | None = None) -> RequestReader:
    router = Router()
    route = Route(lambda request: EMPTY, body_size_max=100)
    router.add("POST", "/a", route)
    router.add("GET", "/a", route)
    limits = ReadLimits(target_size_max=100, head_size_max=1000, header_count_max=20)
    known = KnownHeads() if known is None else known
    return RequestReader(router, limits, known, "1.2.3.4:5", gate)


def seen(incoming: list[Incoming]) -> list[object]:
    return [
        (
            item.request.method,
            item.request.target,
            item.request.version,
            item.request.content_size,
            item.request.body,
            item.request.oversize,
            item.request.keep_alive,
            item.request.params,
            dict(item.request.headers),
            _answer(item.refusal),
            item.partial,
        )
        for item in incoming
    ]


def _answer(refusal: Response | None) -> bytes | None:
    return None if refusal is None else refusal.head + refusal.body


def check_all_cuts(stream: bytes) -> list[object]:
    whole = seen(reader().feed(stream))
    for at in range(1, len(stream)):
        cut = reader()
        first = cut.feed(stream[:at])
        assert seen(first + cut.feed(stream[at:])) == whole, at
    bytewise = reader()
    pieces = [bytewise.feed(stream[at : at + 1]) for at in range(len(stream))]
    assert seen([item for piece in pieces for item in piece]) == whole
    return whole


def test_any_cut_gives_the_same_requests() -> None:
    whole = check_all_cuts(STREAM)
    bodies = [b"hello", b"hello world", b"", b"up", b"hello world", b"", b""]
    assert [item[4] for item in whole] == bodies  # type: ignore[index]


def test_any_cut_gives_the_same_refusal() -> None:
    for status, end in BAD_ENDS.items():
        whole = check_all_cuts(post("/a", b"hello") + end)
        assert len(whole) == 2, status
        assert whole[1][10] is True  # type: ignore[index]
        if status == 413:
            assert whole[1][5] is True  # type: ignore[index]
        else:
            assert f" {status} ".encode() in whole[1][9]  # type: ignore[index]


def test_any_refusal_may_follow_an_offer_to_upgrade() -> None:
    for end in BAD_ENDS.values():
        assert len(check_all_cuts(post("/a", b"up", *OFFER) + end)) == 2


def test_nothing_is_read_after_the_end() -> None:
    for end in BAD_ENDS.values():
        ended = reader()
        assert len(ended.feed(end + get("/a"))) == 1
        assert ended.state is State.ENDED
        assert ended.feed(get("/a")) == []


def test_an_unfinished_body_is_kept_up_to_the_limit_only() -> None:
    slow = reader()
    slow.feed(request("POST", "/a", b"", "Transfer-Encoding: chunked"))
    for _ in range(10):
        assert slow.feed(b"a\r\n0123456789\r\n") == []
    (incoming,) = slow.feed(b"1\r\n0\r\n")
    assert incoming.request.oversize
    assert incoming.partial


def test_a_request_that_takes_too_long_is_refused() -> None:
    slow = reader()
    slow.feed(b"GET /a HTTP/1.1\r\nHo")
    (incoming,) = slow.give_up(408)
    assert incoming.refusal is not None
    assert incoming.refusal.status == 408
    assert slow.state is State.ENDED


@given(
    st.lists(st.lists(st.sampled_from(PLAIN * 3 + ODD + UNCLEAR), max_size=8)),
    st.integers(1, 200),
)
def test_known_heads_change_nothing(connections: list[list[bytes]], size: int) -> None:
    known = KnownHeads()
    for requests in connections:
        # A byte at a time no request is ever there as a whole, so its head is never known.
        stream, bytewise = b"".join(requests), reader()
        pieces = [bytewise.feed(stream[at : at + 1]) for at in range(len(stream))]
        expected = seen([item for piece in pieces for item in piece])
        cut = [stream[at : at + size] for at in range(0, len(stream), size)]
        for feeds in (requests, requests, [stream], cut):
            again = reader(known)
            assert seen([item for data in feeds for item in again.feed(data)]) == expected
            assert again.state is bytewise.state


def test_plain_heads_are_known_and_odd_ones_are_not() -> None:
    for data in PLAIN:
        known = KnownHeads()
        assert known.find(data, 0) is None
        reader(known).feed(data)
        assert known.find(data, 0) is not None
        assert known.find(b"x" + data, 1) is not None
        assert known.find(data[:-1], 0) is None
    for data in ODD:
        known = KnownHeads()
        reader(known).feed(data)
        assert len(known._heads) == 0, data


def test_a_known_head_is_still_judged() -> None:
    known = KnownHeads()
    reader(known).feed(PLAIN[0])
    closed = reader(known, lambda request, route: refusing(EMPTY))
    (incoming,) = closed.feed(PLAIN[0])
    assert incoming.route is not None
    assert incoming.route.judges_size
    strict = reader(known, lambda request, route: Route(route.handler, body_size_max=4))
    (incoming,) = strict.feed(PLAIN[0])
    assert incoming.request.oversize
    assert strict.state is State.ENDED


def test_known_heads_are_bounded() -> None:
    known = KnownHeads()
    first, *others = (get(f"/a?{number}") for number in range(2000))
    for data in (first, *others):
        reader(known).feed(data)
    assert len(known._heads) == 512
    assert known.find(first, 0) is None
    assert known.find(others[-1], 0) is not None
    reader(known).feed(get("/a", *[f"X{at}: " + "y" * 90 for at in range(19)]))
    assert known.find(others[-512], 0) is not None  # a head as large as that is not kept
