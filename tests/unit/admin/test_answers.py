"""Answers to browsers: compression, and handlers that are coroutines."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from penstock.admin import answers
from penstock.admin.answers import Tasks
from penstock.net.http_message import HttpError, Pending, Request, Response


def test_small_answers_are_not_compressed_and_large_ones_are() -> None:
    request = Request("GET", "/", b"")
    request.headers = {b"accept-encoding": b"gzip"}
    small = answers.json_object(request, {"a": 1})
    assert (small.body, b"gzip" in small.head) == (b'{"a":1}', False)
    large = answers.html(request, "é" * 5000)
    assert gzip.decompress(large.body) == "é".encode() * 5000
    assert b"Content-Encoding: gzip\r\n" in large.head
    assert b"script-src 'self'" in large.head and b"unsafe" not in large.head


def test_handlers_may_be_coroutines_that_fail() -> None:
    async def run() -> list[int]:
        tasks = Tasks()
        statuses = []

        async def fine(request: Request) -> Response:
            await asyncio.sleep(0)
            return Response(200, request.body)

        async def refusing(request: Request) -> Response:
            raise HttpError(418, "TEAPOT")

        async def broken(request: Request) -> Response:
            raise KeyError("x")

        for work in (fine, refusing, broken):
            request = Request("POST", "/", b"")
            request.body = b"kept"
            pending = tasks.handler(work)(request)
            request.body = b""
            assert isinstance(pending, Pending)
            while not pending.ticket.done:
                await asyncio.sleep(0)
            response = pending.then(pending.ticket)
            assert response.status != 200 or response.body == b"kept"
            statuses.append(response.status)
        await tasks.close()
        return statuses

    assert asyncio.run(run()) == [200, 418, 500]


def test_there_are_never_too_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "TASK_COUNT_MAX", 3)

    async def run() -> None:
        tasks = Tasks()

        async def slow(request: Request) -> Response:
            await asyncio.sleep(100)
            return Response(200)

        begin = tasks.handler(slow)
        for _ in range(3):
            begin(Request("GET", "/", b""))
        with pytest.raises(HttpError) as caught:
            begin(Request("GET", "/", b""))
        assert caught.value.status == 503
        await tasks.close()

    asyncio.run(run())
