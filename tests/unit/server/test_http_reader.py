"""The reader on its own: any cut of the stream gives the same requests."""

from __future__ import annotations

from penstock.server.http_message import EMPTY, Response
from penstock.server.http_reader import Incoming, ReadLimits, RequestReader
from penstock.server.http_router import Route, Router
from tests.unit.server.harness import get, post, request

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


def reader() -> RequestReader:
    router = Router()
    route = Route(lambda request: EMPTY, body_size_max=100)
    router.add("POST", "/a", route)
    router.add("GET", "/a", route)
    limits = ReadLimits(target_size_max=100, head_size_max=1000, header_count_max=20)
    return RequestReader(router, limits, "1.2.3.4:5")


def seen(incoming: list[Incoming]) -> list[object]:
    return [
        (
            item.request.method,
            item.request.target,
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
    assert [item[2] for item in whole] == bodies  # type: ignore[index]


def test_any_cut_gives_the_same_refusal() -> None:
    for status, end in BAD_ENDS.items():
        whole = check_all_cuts(post("/a", b"hello") + end)
        assert len(whole) == 2, status
        assert whole[1][8] is True  # type: ignore[index]
        if status == 413:
            assert whole[1][3] is True  # type: ignore[index]
        else:
            assert f" {status} ".encode() in whole[1][7]  # type: ignore[index]


def test_any_refusal_may_follow_an_offer_to_upgrade() -> None:
    for end in BAD_ENDS.values():
        assert len(check_all_cuts(post("/a", b"up", *OFFER) + end)) == 2


def test_nothing_is_read_after_the_end() -> None:
    for end in BAD_ENDS.values():
        ended = reader()
        assert len(ended.feed(end + get("/a"))) == 1
        assert ended.ended
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
    (incoming,) = slow.time_out()
    assert incoming.refusal is not None
    assert incoming.refusal.status == 408
    assert slow.ended
