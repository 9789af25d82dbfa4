"""Answers that take long to make: one slice of time per turn, so that the loop is not blocked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from penstock.core.ticket import Ticket
from penstock.net.http_message import INTERNAL_ERROR, Pending, Response

LOGGER = logging.getLogger(__name__)

# How long one turn works on one answer.
SLICE_NS = 2_000_000


def gather(pieces: Iterator[bytes], headers: Sequence[tuple[str, str]]) -> Response | Pending:
    """A 200 of all ``pieces``; those that take more than one slice are made in later turns."""
    gathering = _Gathering(pieces)
    gathering.resume()
    if gathering.ticket.done:
        return gathering.response(headers)
    return Pending(gathering.ticket, lambda _: gathering.response(headers))


def gather_after(
    first: Ticket,
    pieces: Iterator[bytes],
    headers: Sequence[tuple[str, str]],
    failed: Callable[[Exception], Response],
) -> Pending:
    """As ``gather``, after ``first`` is settled; if it fails, ``failed`` makes the answer."""
    gathering = _Gathering(pieces)

    def begin(done: Ticket) -> None:
        if done.error is None:
            gathering.resume()
        else:
            gathering.ticket.settle(done.error)

    def answer(_: Ticket) -> Response:
        return gathering.response(headers) if first.error is None else failed(first.error)

    first.add(begin)
    return Pending(gathering.ticket, answer)


class _Gathering:
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.ticket = Ticket()
        self._pieces = pieces
        self._parts: list[bytes] = []

    def resume(self) -> None:
        end_ns = time.perf_counter_ns() + SLICE_NS
        try:
            for piece in self._pieces:
                self._parts.append(piece)
                if time.perf_counter_ns() >= end_ns:
                    asyncio.get_running_loop().call_soon(self.resume)
                    return
        except Exception as error:
            LOGGER.exception("failed to make an answer")
            self.ticket.settle(error)
        else:
            self.ticket.settle()

    def response(self, headers: Sequence[tuple[str, str]]) -> Response:
        if self.ticket.error is not None:
            return INTERNAL_ERROR
        return Response(200, b"".join(self._parts), headers)
