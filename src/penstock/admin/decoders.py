"""Decodes JSON from daemons, with limits and without blocking the loop.

    small          decoded in place: SMALL_SIZE takes 2 ms at most, whatever its content
    larger         its values are counted first, in slices; then another process decodes it and
                   sends it back in pieces (``decoder_process.py``)

Python's decoder cannot be interrupted and holds the interpreter lock: 57 MB of ``[]`` take 7 s, in
a thread too, and 1.4 GB.  The other process has its own limits and is killed if it is too slow.

Rule 1: size (by the caller), values, depth, memory and time are limited; above a limit, ValueError.
Rule 2: one response is decoded at a time; the process ends after IDLE_S without work.
"""

from __future__ import annotations

import asyncio
import json
import marshal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from penstock.admin import decoder_process

SMALL_SIZE = 64 << 10
# /stats of 100,000 channels has 2 million.
VALUE_COUNT_MAX = 4_000_000
SECONDS_MAX = 15.0
IDLE_S = 60.0
# The longest run before the loop gets a turn.
SLICE_S = 0.003
_COUNT_SIZE = 1 << 20


class Decoding:
    """Decodes the responses that one nsqadmin receives."""

    def __init__(self, seconds_max: float = SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def decode(self, body: bytes) -> Any:
        """The value of ``body``; raises ValueError if it is not JSON or exceeds a limit."""
        if len(body) <= SMALL_SIZE:
            return loads(body)
        await _count(body)
        async with self._turn:
            self._stop_timer()
            try:
                async with asyncio.timeout(self._seconds_max):
                    return await self._request(body)
            except TimeoutError:
                await self.close()
                raise ValueError("the response takes too long to decode") from None
            except (OSError, asyncio.IncompleteReadError):
                await self.close()
                raise ValueError("the response could not be decoded") from None
            except asyncio.CancelledError:
                # The pipe may hold the remainder of a reply.
                self._kill()
                raise
            finally:
                self._start_timer()

    async def close(self) -> None:
        """End the other process."""
        self._stop_timer()
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _request(self, body: bytes) -> Any:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", decoder_process.__file__), stdin=PIPE, stdout=PIPE
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(len(body).to_bytes(8, "big"))
        process.stdin.write(body)
        await process.stdin.drain()
        building = Building()
        async for piece in _pieces(process.stdout):
            building.add(piece)
        return building.value

    def _start_timer(self) -> None:
        if self._process is not None:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._kill)

    def _stop_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()


class Building:
    """Builds a value from the pieces that ``decoder_process.pieces`` splits it into."""

    def __init__(self) -> None:
        self.value: Any = None
        self._open: list[Any] = []

    def add(self, piece: decoder_process.Piece) -> None:
        kind, key, part = piece
        if kind == decoder_process.ERROR:
            raise ValueError(part)
        if kind == decoder_process.VALUE:
            self.value = part
        elif kind == decoder_process.MORE:
            target = self._open[-1]
            target.update(part) if isinstance(target, dict) else target.extend(part)
        elif kind == decoder_process.OPEN:
            if not self._open:
                self.value = part
            elif isinstance(self._open[-1], dict):
                self._open[-1][key] = part
            else:
                self._open[-1].append(part)
            self._open.append(part)
        else:
            self._open.pop()


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[decoder_process.Piece]:
    """The pieces that the other process sends, with a turn for the loop every SLICE_S."""
    since_s = time.monotonic()
    while size := int.from_bytes(await reader.readexactly(4), "big"):
        yield marshal.loads(await reader.readexactly(size))
        if time.monotonic() - since_s > SLICE_S:
            await asyncio.sleep(0)
            since_s = time.monotonic()


async def _count(body: bytes) -> None:
    """Refuse a body with too many values: each is preceded by one of these characters."""
    count = 0
    for start in range(0, len(body), _COUNT_SIZE):
        end = start + _COUNT_SIZE
        count += sum(body.count(mark, start, end) for mark in (b"[", b"{", b","))
        if count > VALUE_COUNT_MAX:
            raise ValueError(f"the response has more than {VALUE_COUNT_MAX:,} values")
        await asyncio.sleep(0)


def loads(body: bytes) -> Any:
    """The value of a small body; raises ValueError if it is not JSON or nested too deeply."""
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError("the response is not JSON") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
