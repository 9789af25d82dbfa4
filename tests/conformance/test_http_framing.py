"""Requests whose length two programs could read in two ways are refused, and nothing behind them.

A proxy in front of nsqd that reads such a request in the other way would let its peers smuggle
requests past it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import Nsqd
from tests.support.limits import exchange, status

POST = b"POST /pub?topic=framing HTTP/1.1\r\n"
OLD = b"POST /pub?topic=framing HTTP/1.0\r\n"
HOST = b"Host: h\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
ONE = b"Content-Length: 1\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
CHUNKS = b"1\r\na\r\n0\r\n\r\n"
# A request that must not be served.
HIDDEN = b"GET /topic/create?topic=smuggled HTTP/1.1\r\nHost: h\r\n\r\n"

TAKEN = {
    "chunked": POST + HOST + CHUNKED + b"\r\n" + CHUNKS,
    "in capitals": POST + HOST + CHUNKED.upper() + b"\r\n" + CHUNKS,
    "with spaces": POST + HOST + b"Transfer-Encoding:  chunked \r\n\r\n" + CHUNKS,
    "with an extension": POST + HOST + CHUNKED + b"\r\n1;x=y\r\na\r\n0\r\n\r\n",
    "with a trailer": POST + HOST + CHUNKED + b"\r\n1\r\na\r\n0\r\nX: y\r\n\r\n",
    "that would upgrade": POST + HOST + UPGRADE + CHUNKED + b"\r\n" + CHUNKS,
    "of 1.0 without Host": OLD + ONE + b"\r\na",
    "with an empty Host": POST + b"Host:\r\n" + ONE + b"\r\na",
    "with a port": POST + b"Host: [::1]:4151\r\n" + ONE + b"\r\na",
}

CODINGS = [
    *(
        b"gzip, chunked",
        b"chunked, gzip",
        b"gzip",
        b"chunked, chunked",
        b"identity",
        b"",
        b"xchunked",
    ),
    *(b"chunked;q=1", b"\x0bchunked", b"chunked,", b",chunked", b'"chunked"', b"chunked\x00"),
]
SIZES = [
    *(b"", b"-1", b"+1", b"0x1", b"zz", b"f" * 17, b" 1", b"1 ", b"1_0", b"1\t", b"\x001", b"1,1"),
]
LENGTHS = [b"", b"-1", b"+1", b"0x1", b"1_0", b"1 1", b"1,1", b"1, 1", b"1.0", b"9" * 30, b"\x001"]


def refused() -> Iterator[tuple[str, bytes]]:
    for coding in CODINGS:
        head = HOST + b"Transfer-Encoding: " + coding + b"\r\n"
        yield f"coding {coding!r}", POST + head + b"\r\n" + CHUNKS
        yield f"coding {coding!r}, upgrade", POST + UPGRADE + head + b"\r\n" + CHUNKS
    for size in SIZES:
        yield f"chunk size {size!r}", POST + HOST + CHUNKED + b"\r\n" + size + CHUNKS[1:]
    for length in LENGTHS:
        yield f"length {length!r}", POST + HOST + b"Content-Length: " + length + b"\r\n\r\na"
    heads = {
        "coding twice": HOST + CHUNKED + CHUNKED,
        "two codings": HOST + b"Transfer-Encoding: identity\r\n" + CHUNKED,
        "two codings apart": CHUNKED + HOST + b"TRANSFER-ENCODING: gzip\r\n",
        "length and coding": HOST + ONE + CHUNKED,
        "coding and length": HOST + CHUNKED + ONE,
        "length and coding, upgrade": HOST + UPGRADE + ONE + CHUNKED,
        "two lengths": HOST + ONE + b"Content-Length: 2\r\n",
        "one length twice": HOST + ONE + ONE,
        "no Host": CHUNKED,
        "two Hosts": HOST + b"Host: g\r\n" + CHUNKED,
        "one Host twice": HOST + CHUNKED + HOST,
        "a Host with a space": b"Host: h g\r\n" + CHUNKED,
        "a Host with a path": b"Host: h/x\r\n" + CHUNKED,
        "folded": HOST + b"X: a\r\n b\r\n" + CHUNKED,
        "folded by a tab": HOST + b"X: a\r\n\tb\r\n" + CHUNKED,
        "folded coding": HOST + b"Transfer-Encoding:\r\n chunked\r\n",
        "folded length": HOST + b"Content-Length:\r\n 1\r\n",
        "folded first": b" X: y\r\n" + HOST + CHUNKED,
        "space before the colon": HOST + b"Transfer-Encoding : chunked\r\n",
        "tab before the colon": HOST + b"Transfer-Encoding\t: chunked\r\n",
        "space in a name": HOST + b"X y: z\r\n" + CHUNKED,
        "no name": HOST + b": z\r\n" + CHUNKED,
        "a bare LF": b"Host: h\n" + CHUNKED,
        "a bare CR": HOST + b"X: y\rZ: z\r\n" + CHUNKED,
        "a NUL": HOST + b"X: y\0\r\n" + CHUNKED,
    }
    for name, head in heads.items():
        yield name, POST + head + b"\r\n" + CHUNKS
    yield "coding of 1.0", OLD + HOST + CHUNKED + b"\r\n" + CHUNKS
    for name, chunks in {
        "no CRLF behind a chunk": b"1\r\na0\r\n\r\n",
        "an LF behind a chunk": b"1\r\na\n0\r\n\r\n",
        "a chunk longer than its size": b"1\r\nab\r\n0\r\n\r\n",
        "an LF behind a size": b"1\na\r\n0\r\n\r\n",
        "an LF behind an extension": b"1;x\na\r\n0\r\n\r\n",
        "an LF behind the last size": b"1\r\na\r\n0\n\r\n",
    }.items():
        yield name, POST + HOST + CHUNKED + b"\r\n" + chunks


REFUSED = dict(refused())


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("framing")) as daemon:
        yield daemon
        assert not [t for t in daemon.stats()["topics"] if t["topic_name"] == "smuggled"]
        assert "Traceback" not in daemon.log, daemon.log


@pytest.mark.parametrize("name", TAKEN)
def test_a_proper_request_is_taken(nsqd: Nsqd, name: str) -> None:
    assert status(nsqd.http_port, TAKEN[name]) == 200


@pytest.mark.parametrize("name", REFUSED)
def test_an_ambiguous_request_is_refused_and_the_connection_ends(nsqd: Nsqd, name: str) -> None:
    """Also behind one that was taken, whose head is known by then."""
    assert status(nsqd.http_port, REFUSED[name]) in (400, 501)
    received = exchange(nsqd.http_port, TAKEN["chunked"] + REFUSED[name] + HIDDEN, whole=True)
    assert received.count(b"HTTP/1.") == 2, received
    assert received.startswith(b"HTTP/1.1 200 ")
