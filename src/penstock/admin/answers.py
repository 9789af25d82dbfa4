"""Responses to browsers and API clients: NSQ's JSON, and pages with security headers; compressed.

Every page has a Content-Security-Policy: it may load files only from nsqadmin, and no inline
script.  A name or a message that gets past a template's escaping still does not run.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.core.ticket import Ticket
from penstock.net.http_message import (
    HTML,
    INTERNAL_ERROR,
    JSON,
    V1,
    HttpError,
    Pending,
    Request,
    Response,
)
from penstock.net.http_router import Handler
from penstock.wire import gojson

log = logging.getLogger(__name__)

Coroutines = Callable[[Request], Coroutine[Any, Any, Response]]
Headers = Sequence[tuple[str, str]]

# A smaller body fits into one packet anyway.
COMPRESS_SIZE_MIN = 1024
# 400 KB of topics: 5 ms, 30 KB.  The best level takes four times as long and saves a sixth.
COMPRESS_LEVEL = 3
TASK_COUNT_MAX = 256

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Headers = (
    ("Content-Security-Policy", CONTENT_POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
DATA_HEADERS: Headers = (("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store"))


def html(request: Request, text: str, status: int = 200) -> Response:
    """An HTML response."""
    return packed(request, status, text.encode("utf-8", "replace"), (HTML, *PAGE_HEADERS))


def json_object(request: Request, value: object) -> Response:
    """A response in NSQ's V1 JSON."""
    return packed(request, 200, gojson.encode(value), (JSON, V1, *DATA_HEADERS))


def packed(request: Request, status: int, body: bytes, headers: Headers) -> Response:
    """A response, compressed if it is large enough and the client accepts gzip."""
    if len(body) < COMPRESS_SIZE_MIN:
        return Response(status, body, headers)
    vary = ("Vary", "Accept-Encoding")
    if not takes_gzip(request):
        return Response(status, body, (*headers, vary))
    return Response(status, gzipped(body), (*headers, ("Content-Encoding", "gzip"), vary))


def takes_gzip(request: Request) -> bool:
    for part in request.headers.get(b"accept-encoding", b"").split(b","):
        coding, _, quality = part.strip().partition(b";")
        if coding.strip().lower() in (b"gzip", b"*"):
            return quality.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def gzipped(body: bytes) -> bytes:
    # Window bits above 16 select the gzip format instead of zlib.
    packer = zlib.compressobj(COMPRESS_LEVEL, zlib.DEFLATED, 31)
    return packer.compress(body) + packer.flush()


class Tasks:
    """Runs handlers that are coroutines; the server waits for their tickets."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def handler(self, work: Coroutines) -> Handler:
        """Wrap a coroutine function as a handler for a Route."""

        def begin(request: Request) -> Pending:
            if len(self._tasks) >= TASK_COUNT_MAX:
                raise HttpError(503, "TOO_MANY_REQUESTS")
            # The server releases the body when the handler returns.
            body = request.body
            waiting = _Waiting()

            async def run() -> None:
                request.body = body
                await waiting.run(work, request)

            task = asyncio.get_running_loop().create_task(run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return Pending(waiting.ticket, waiting.answer)

        return begin

    async def close(self) -> None:
        """Cancel the running handlers."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Waiting:
    """The response of a running task."""

    def __init__(self) -> None:
        self.ticket = Ticket()
        self._response = INTERNAL_ERROR

    async def run(self, work: Coroutines, request: Request) -> None:
        try:
            self._response = await work(request)
        except HttpError as error:
            self._response = error.response()
        except Exception:
            log.exception("%s %s failed", request.method, request.target)
        self.ticket.settle()

    def answer(self, _: Ticket) -> Response:
        return self._response
