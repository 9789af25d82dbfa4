"""The HTTP client of the daemons: answers in every form, and limits on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import HttpClientError
from penstock.net.http_client import BODY_SIZE_MAX, HEAD_SIZE_MAX, Answer, Timeouts, fetch

TIMEOUTS = Timeouts(2.0, 2.0)


def exchange(answer: bytes, *, step: int = 1 << 30, close: bool = True) -> tuple[Answer, bytes]:
    """Make a request of a server that says ``answer``; return what came and what was asked."""
    asked = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        if b"content-length: 4" in asked.lower():
            asked += await reader.readexactly(4)
        for at in range(0, len(answer), step):
            writer.write(answer[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()
        else:
            await asyncio.sleep(1)

    async def run() -> Answer:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            url = f"http://127.0.0.1:{port}/a/b?c=d"
            return await fetch(url, TIMEOUTS, method="POST", headers={"X-Y": "z"}, body=b"body")
        finally:
            server.close()

    return asyncio.run(run()), asked


def test_the_request() -> None:
    _, asked = exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    head, _, body = asked.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /a/b?c=d HTTP/1.1"
    assert lines[1].startswith("Host: 127.0.0.1:")
    assert set(lines[2:]) == {"Connection: close", "X-Y: z", "Content-Length: 4"}
    assert body == b"body"


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 5\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"\r\nhello",
    ],
    ids=["sized", "chunked", "until the end"],
)
def test_answers_in_every_form(rest: bytes, step: int) -> None:
    answer, _ = exchange(b"HTTP/1.1 403 Forbidden\r\nX-A: b\r\n" + rest, step=step)
    assert (answer.status, answer.body, answer.headers["x-a"]) == (403, b"hello", "b")


def test_an_interim_answer_is_not_the_answer() -> None:
    answer, _ = exchange(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    )
    assert (answer.status, answer.body) == (200, b"ok")


def test_an_answer_without_a_body_is_not_waited_for() -> None:
    answer, _ = exchange(b"HTTP/1.1 204 No Content\r\n\r\n", close=False)
    assert answer.status == 204


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (BODY_SIZE_MAX + 1),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * HEAD_SIZE_MAX,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * (2 * HEAD_SIZE_MAX),
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(HttpClientError):
        exchange(answer)


def fails(request: Callable[[], Awaitable[Answer]]) -> str:
    async def run() -> str:
        with pytest.raises(HttpClientError) as caught:
            await request()
        return str(caught.value)

    return asyncio.run(run())


@pytest.mark.parametrize("url", ["ftp://x/", "http://", "nonsense", "http://127.0.0.1:99999/"])
def test_addresses_that_make_no_sense(url: str) -> None:
    assert url.partition("?")[0] in fails(lambda: fetch(url, TIMEOUTS))


def test_nobody_listens_and_the_secret_is_not_told() -> None:
    text = fails(lambda: fetch("http://127.0.0.1:1/auth?secret=s3cret", TIMEOUTS))
    assert text.startswith("http://127.0.0.1:1/auth: ")
    assert "s3cret" not in text


def test_a_server_that_says_nothing() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda r, w: asyncio.sleep(5), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(HttpClientError, match="timed out"):
            await fetch(f"http://127.0.0.1:{port}/", Timeouts(1.0, 0.05))
        server.close()

    asyncio.run(run())
