"""Asking daemons: limits and words."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from penstock.admin import upstream
from penstock.admin.options import AdminOptions
from penstock.admin.upstream import Upstream, UpstreamError, https_port, read_token, request_all
from penstock.errors import OptionError
from tests.support.endpoint import Endpoint


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
        assert caught.value.short == caught.value.text
        endpoint.answer = (404, b'{"message":"NOT_FOUND"}', "")
        with pytest.raises(UpstreamError, match="NOT_FOUND") as caught:
            ask(endpoint)
        assert caught.value.short == "cannot do this: it is NSQ's own nsqd, or an earlier version"
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

        await request_all((f"a:{n}" for n in range(500)), one)

    asyncio.run(run())
    assert most == upstream.REQUEST_COUNT_MAX
