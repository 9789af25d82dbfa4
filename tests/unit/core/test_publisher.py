"""Commands of producers, and the answers to them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.frames import FrameReader, Reply
from penstock.core.publisher import Publication, answer, mpub, single
from penstock.errors import RefusedError
from penstock.wire import commands

OK = b"\0\0\0\6\0\0\0\0OK"
ERROR = b"\0\0\0\x0d\0\0\0\1E_INVALID"


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=50))
def test_a_batch_is_what_the_protocol_says(bodies: list[bytes]) -> None:
    command = commands.mpub("t", bodies)
    assert mpub(b"MPUB t\n", bodies) == command
    assert mpub(b"MPUB t\n", tuple(bodies)) == command
    assert mpub(b"MPUB t\n", iter(bodies)) == command
    mixed = [(bytearray, memoryview, bytes)[at % 3](body) for at, body in enumerate(bodies)]
    assert mpub(b"MPUB t\n", mixed) == command
    assert [type(body) for body in mixed][:2] == [bytearray, memoryview][: len(bodies)]


@pytest.mark.parametrize(
    ("bodies", "code", "text"),
    [
        ([], "E_BAD_BODY", "invalid message count 0"),
        ([b""], "E_BAD_MESSAGE", r"invalid message\(0\) body size 0"),
        ([b"a", bytearray()], "E_BAD_MESSAGE", r"invalid message\(1\) body size 0"),
    ],
)
def test_a_batch_that_nsqd_would_refuse_is_refused(
    bodies: list[bytes], code: str, text: str
) -> None:
    with pytest.raises(RefusedError, match=text) as caught:
        mpub(b"MPUB t\n", bodies)
    assert caught.value.code == code


@pytest.mark.parametrize("body", [5, "text", None, [1, 2]])
def test_what_is_no_bytes_is_no_body(body: object) -> None:
    wrong: Any = [b"a", body]
    with pytest.raises(TypeError):
        mpub(b"MPUB t\n", wrong)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def replies(*frames: bytes) -> list[Reply]:
    found = FrameReader().feed(b"".join(frames))
    assert all(isinstance(frame, Reply) for frame in found)
    return [frame for frame in found if isinstance(frame, Reply)]


def test_a_single_body_is_a_pub_of_its_size() -> None:
    async def work() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        publication = single(b"PUB t\n", b"body", future, 3, 7.5)
        assert publication.command == commands.pub("t", b"body")
        assert (publication.size, publication.retries, publication.unknown) == (4, 3, False)
        assert (publication.begun_s, publication.sent_s) == (7.5, 7.5)
        assert publication.futures == (future,)

    run(work())


def test_answers_go_to_the_first_that_wait() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(6)]
        futures[1].cancel()
        pending = deque(
            Publication(b"", 10 + at, futures[2 * at : 2 * at + 2], 0, 0.0) for at in range(3)
        )
        assert answer(pending, replies(OK, OK)) == (10 + 11, None)
        assert [future.done() for future in futures] == [True] * 4 + [False] * 2
        assert futures[1].cancelled()
        (last,) = pending

        # An error answers the next one, which stays; nothing behind it is looked at.
        size, other = answer(pending, replies(ERROR, OK))
        assert (size, list(pending)) == (0, [last])
        assert other is not None and other.error
        pending.popleft().fail(ValueError("refused"))
        assert [type(future.exception()) for future in futures[4:]] == [ValueError] * 2

        size, other = answer(pending, replies(OK))
        assert (size, other is None) == (0, False), "an answer to nothing"

    run(work())
