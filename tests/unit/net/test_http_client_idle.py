"""Requests over connections that stay, and servers that do not keep them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from penstock.errors import HttpClientError
from penstock.net import http_client
from penstock.net.http_client import Answer, HttpClient, Timeouts

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"

# What a server does with the nth request of its connection; False closes.
Script = Callable[[int, asyncio.StreamWriter], Awaitable[bool]]


class Server:
    """Reads requests, counts connections and does what the script says."""

    def __init__(self, script: Script) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self.url = ""
        self._script = script

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        count = 0
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head + await reader.readexactly(4))
                if not await self._script(count, writer):
                    break
                count += 1
        writer.close()


def run(
    script: Script,
    work: Callable[[Server, HttpClient], Awaitable[None]],
    *,
    idle_count_max: int = 10,
    request_s: float = 10.0,
) -> Server:
    async def main() -> Server:
        answering = Server(script)
        server = await asyncio.start_server(answering.serve, "127.0.0.1", 0)
        answering.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/in"
        timeouts = Timeouts(10.0, request_s)
        pool = HttpClient(timeouts, ssl.create_default_context, idle_count_max=idle_count_max)
        try:
            await work(answering, pool)
        finally:
            await pool.close()
            server.close()
        return answering

    return asyncio.run(main())


def post(server: Server, pool: HttpClient) -> Awaitable[Answer]:
    return pool.fetch(server.url, method="POST", headers={"X-Y": "z"}, body=b"body")


async def three(server: Server, pool: HttpClient) -> None:
    """One request after the other."""
    for _ in range(3):
        answer = await post(server, pool)
        assert (answer.status, answer.body) == (200, b"ok")


def saying(answer: bytes, *, goes_on: bool = True) -> Script:
    async def script(count: int, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer)
        return goes_on

    return script


def test_requests_in_a_row_share_a_connection() -> None:
    server = run(saying(OK), three)
    assert server.connections == 1
    assert len(server.requests) == 3
    lines = server.requests[0].decode().split("\r\n")
    assert lines[0] == "POST /in HTTP/1.1"
    assert set(lines[2:4]) == {"X-Y: z", "Content-Length: 4"}


@pytest.mark.parametrize(
    "answer",
    [
        CLOSING,
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
    ],
    ids=["said so", "HTTP/1.0", "until the end"],
)
def test_a_server_that_closes_is_asked_on_another_connection(answer: bytes) -> None:
    server = run(saying(answer, goes_on=False), three)
    assert server.connections == 3
    assert len(server.requests) == 3


def test_a_chunked_answer_keeps_its_connection() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    assert run(saying(chunked), three).connections == 1


def test_a_connection_that_the_server_has_left_costs_no_message() -> None:
    """Closed without a word, at each possible moment: after the answer, or with the request."""

    async def closes_behind_the_answer(count: int, writer: asyncio.StreamWriter) -> bool:
        writer.write(OK)
        return False

    async def closes_at_the_next_request(count: int, writer: asyncio.StreamWriter) -> bool:
        if count == 0:
            writer.write(OK)
        return count == 0

    assert run(closes_behind_the_answer, three).connections == 3
    server = run(closes_at_the_next_request, three)
    assert server.connections == 3
    # Two requests were met by the end of their connection and sent again.
    assert len(server.requests) == 5


def test_many_idle_connections_gone_at_once_are_all_passed_over() -> None:
    leaving = asyncio.Event()

    async def script(count: int, writer: asyncio.StreamWriter) -> bool:
        if count == 0:
            writer.write(OK)
            return True
        if leaving.is_set():
            return False
        writer.write(OK)
        return True

    async def work(server: Server, pool: HttpClient) -> None:
        await asyncio.gather(*(post(server, pool) for _ in range(8)))
        assert server.connections == 8
        leaving.set()
        assert (await post(server, pool)).body == b"ok"
        assert server.connections == 9

    run(script, work)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "closed without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", "before the end"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "before the end"),
        (b"nonsense\r\n\r\n", "/in: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 2_000_000, "on_body"),
    ],
)
def test_an_answer_that_is_none_is_an_error(answer: bytes, text: str) -> None:
    async def work(server: Server, pool: HttpClient) -> None:
        with pytest.raises(HttpClientError, match=text):
            await post(server, pool)

    # A new connection that fails is not tried again.
    assert run(saying(answer, goes_on=False), work).connections == 1


def test_a_request_has_a_limit_and_its_connection_is_not_used_again() -> None:
    async def script(count: int, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(30)
        return False

    async def work(server: Server, pool: HttpClient) -> None:
        for _ in range(2):
            with pytest.raises(HttpClientError, match="timed out"):
                await post(server, pool)
        assert server.connections == 2

    run(script, work, request_s=0.2)


def test_idle_connections_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "IDLE_S", 0.2)

    async def work(server: Server, pool: HttpClient) -> None:
        await asyncio.gather(*(post(server, pool) for _ in range(8)))
        await asyncio.gather(*(post(server, pool) for _ in range(8)))
        assert server.connections == 8 + 5, "three were kept"
        while pool._idle:
            await asyncio.sleep(0.02)
        await post(server, pool)
        assert server.connections == 14

    run(saying(OK), work, idle_count_max=3)


@pytest.mark.parametrize("url", ["ftp://a/", "http://", "http://a\n/", "http://127.0.0.1:1/"])
def test_an_address_that_leads_nowhere_is_an_error(url: str) -> None:
    async def work(server: Server, pool: HttpClient) -> None:
        with pytest.raises(HttpClientError):
            await pool.fetch(url, headers={})

    run(saying(OK), work)
