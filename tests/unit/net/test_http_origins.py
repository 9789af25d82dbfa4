"""Which heads are refused as those of a web page, and how often a head is judged."""

from __future__ import annotations

from penstock.net.http_heads import KnownHeads
from penstock.net.http_message import EMPTY, Request
from penstock.net.http_origins import Origins
from penstock.net.http_reader import ReadLimits, RequestReader
from penstock.net.http_router import Route, Router


class Counted(Origins):
    """Counts what it judges."""

    def __init__(self) -> None:
        super().__init__("nsqd", ("node",), checked=True)
        self.count = 0

    def refusal(self, request: Request) -> Route | None:
        self.count += 1
        return super().refusal(request)


def reader(origins: Origins, known: KnownHeads) -> RequestReader:
    router = Router()
    router.add("POST", "/pub", Route(lambda _: EMPTY))
    return RequestReader(router, ReadLimits(), known, "peer", None, origins)


def head(more: bytes = b"") -> bytes:
    return b"POST /pub HTTP/1.1\r\nHost: node\r\nContent-Length: 1\r\n" + more + b"\r\nx"


def statuses(reader: RequestReader, data: bytes) -> list[int]:
    found = []
    for incoming in reader.feed(data):
        assert incoming.route is not None
        answer = incoming.route.handler(incoming.request)
        found.append(getattr(answer, "status", 0))
    return found


def test_a_head_that_passed_is_not_judged_again() -> None:
    """A producer repeats its head for every message: it must not pay for each."""
    origins, known = Counted(), KnownHeads()
    first = reader(origins, known)
    assert [statuses(first, head()) for _ in range(5)] == [[200]] * 5
    assert origins.count == 1
    assert statuses(reader(origins, known), head() * 3) == [200] * 3
    assert origins.count == 1


def test_a_head_that_was_refused_is_judged_every_time() -> None:
    origins, known = Counted(), KnownHeads()
    page = reader(origins, known)
    for _ in range(3):
        assert statuses(page, head(b"Sec-Fetch-Site: cross-site\r\n")) == [403]
    assert statuses(page, head().replace(b"node", b"evil.example")) == [421]
    assert statuses(page, head().replace(b"node", b"evil.example")) == [421]
    assert statuses(page, head()) == [200]
    assert origins.count == 6 and len(known._heads) == 1


def test_refused_and_accepted_heads_in_one_packet_are_told_apart() -> None:
    origins, known = Counted(), KnownHeads()
    page = reader(origins, known)
    assert statuses(page, head()) == [200]
    bad = head(b"Sec-Fetch-Site: cross-site\r\n")
    assert statuses(page, head() + bad + head() + bad) == [200, 403, 200, 403]
