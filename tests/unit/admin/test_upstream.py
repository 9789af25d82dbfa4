"""Asking daemons, telling endpoints, answering browsers: limits and words."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.admin import answers, upstream
from penstock.admin.answers import Tasks
from penstock.admin.jsontext import read_object
from penstock.admin.notify import QUEUE_COUNT_MAX, Notifier, basic_user
from penstock.admin.options import AdminOptions
from penstock.admin.upstream import Upstream, UpstreamError, ask_all, https_port, read_token
from penstock.errors import OptionError
from penstock.server.http_message import HttpError, Pending, Request, Response
from tests.endpoint import Endpoint


def upstream_of(**options: Any) -> Upstream:
    return Upstream(dataclasses.replace(AdminOptions(), **options))


def ask(endpoint: Endpoint, path: str = "/x", **query: str) -> Any:
    address = endpoint.url.removeprefix("http://")
    return asyncio.run(upstream_of().nsqd_get(address, path, **query))


def test_json_comes_back_and_names_are_escaped() -> None:
    with Endpoint(200, b'{"a":[1]}') as endpoint:
        assert ask(endpoint, "/lookup", topic="t#ephemeral&x=1") == {"a": [1]}
        [asked] = endpoint.wait(1)
        assert asked.target == "/lookup?topic=t%23ephemeral%26x%3D1"
        assert asked.headers["accept"] == "application/vnd.nsq; version=1.0"
        assert "authorization" not in asked.headers


def test_a_refusal_has_nsqs_words() -> None:
    with Endpoint(404, b'{"message":"TOPIC_NOT_FOUND"}') as endpoint:
        with pytest.raises(UpstreamError) as caught:
            ask(endpoint)
        assert caught.value.text == (
            'got response 404 Not Found "{\\"message\\":\\"TOPIC_NOT_FOUND\\"}"'
        )
        assert caught.value.status == 404
        endpoint.answer = (799, b"x" * 10_000, "")
        with pytest.raises(UpstreamError) as caught:
            ask(endpoint)
        assert len(caught.value.text) < 600


@pytest.mark.parametrize("body", [b"", b"<html>", b"{", b"[" * 100_000])
def test_what_is_not_json_is_told(body: bytes) -> None:
    with Endpoint(200, body) as endpoint, pytest.raises(UpstreamError, match="not JSON"):
        ask(endpoint)


def test_an_answer_that_is_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "BODY_SIZE_MAX", 1000)
    with Endpoint(200, b'"' + b"x" * 2000 + b'"') as endpoint:
        with pytest.raises(UpstreamError) as caught:
            ask(endpoint)
        assert caught.value.short == "body too big"


def test_the_token_goes_to_nsqds_only(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("# ours\nadmin secret-token\n")
    with Endpoint(200, b"{}") as endpoint:
        address = endpoint.url.removeprefix("http://")
        asking = upstream_of(nsqd_auth_token_file=str(tmp_path / "token"))

        async def run() -> None:
            await asking.nsqd_get(address, "/stats")
            await asking.lookupd_get(address, "/nodes")
            await asking.lookupd_post(address, "/topic/create", topic="t")
            await asking.elsewhere("POST", endpoint.url, {}, b"x")

        asyncio.run(run())
        given = [asked.headers.get("authorization") for asked in endpoint.wait(4)]
        assert given == ["Bearer secret-token", None, None, None]


@pytest.mark.parametrize("text", ["", "\n# only a comment\n", "a b c", "x" * 600, "é"])
def test_a_token_file_must_hold_a_token(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(OptionError):
        read_token(str(tmp_path / "token"))


def test_the_port_of_https_is_read_with_care() -> None:
    assert https_port(b'{"message": "TLS_REQUIRED", "https_port": 4152}') == 4152
    for body in (
        b"",
        b"[]",
        b"{}",
        b'{"https_port":"4152"}',
        b'{"https_port":0}',
        b'{"https_port":70000}',
    ):
        assert https_port(body) == 0


def test_not_more_than_so_many_are_asked_at_once() -> None:
    running = most = 0

    async def run() -> None:
        asking = upstream_of()

        async def one(address: str) -> None:
            nonlocal running, most
            async with asking._turns:
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1

        await ask_all((f"a:{n}" for n in range(500)), one)

    asyncio.run(run())
    assert most == upstream.REQUEST_COUNT_MAX


# Notifications


def test_a_slow_endpoint_loses_notices_but_holds_nobody(caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier("http://127.0.0.1:9/", upstream_of())
    request = Request("POST", "/api/topics/t", b"")
    for _ in range(QUEUE_COUNT_MAX + 7):
        notifier.tell("pause_topic", request, "t")
    assert notifier.dropped_count == 7
    quiet = Notifier("", upstream_of())
    quiet.tell("pause_topic", request, "t")
    asyncio.run(quiet.drain(1.0))


@pytest.mark.parametrize(
    ("header", "user"),
    [
        (b"Basic Y2Fyb2w6c2VjcmV0", "carol"),
        (b"Basic !!!", ""),
        (b"Basic Y2Fyb2w=", ""),
        (b"Bearer Y2Fyb2w6c2VjcmV0", ""),
        (b"", ""),
    ],
)
def test_the_user_is_that_of_basic_authentication(header: bytes, user: str) -> None:
    assert basic_user(header) == user


# Answers


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


# What is posted to NSQ's API


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b'{"topic":"t","channel":"c"}', {"topic": "t", "channel": "c"}),
        (b' {"Topic":"t"} trailing', {"topic": "t"}),
        (b'{"topic":null,"x":3}', {}),
        (b"null", {}),
    ],
)
def test_objects_are_read_as_go_reads_them(body: bytes, fields: dict[str, str]) -> None:
    assert read_object(body) == fields


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "EOF"),
        (b" \n", "EOF"),
        (b'{"a', "unexpected EOF"),
        (b'{"topic":3}', "json: cannot unmarshal number into Go struct field .topic"),
        (b'{"topic":[]}', "json: cannot unmarshal array into Go struct field .topic"),
        (b"true", "json: cannot unmarshal bool into Go value"),
        (b"'", "invalid character '\\'' looking for beginning of value"),
    ],
)
def test_what_is_no_object_is_told(body: bytes, text: str) -> None:
    with pytest.raises(HttpError) as caught:
        read_object(body)
    assert (caught.value.status, caught.value.text) == (400, text)
    assert json.dumps(caught.value.text)
