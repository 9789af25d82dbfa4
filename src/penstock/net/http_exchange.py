"""A request that has begun, until there is an answer to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.core.ticket import Ticket
from penstock.net.http_message import (
    INTERNAL_ERROR,
    HttpError,
    Pending,
    Request,
    Response,
    error_response,
)
from penstock.net.http_reader import Incoming
from penstock.net.http_router import Route

LOGGER = logging.getLogger(__name__)

EXITING = error_response(503, "EXITING")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class ExchangeConnection(Protocol):
    """The connection that sends the answer."""

    @property
    def closed(self) -> bool:
        """Whether nothing more is answered."""

    def advance(self) -> None:
        """Begin the requests that may begin, write the answers that are there."""


class Exchange:
    """A request and its answer, which may come later."""

    __slots__ = ("_hurry", "_owner", "_then", "partial", "request", "response", "route", "size")

    def __init__(self, owner: ExchangeConnection, request: Request) -> None:
        self.request = request
        self.response: Response | None = None
        self.partial = False
        self.route: Route | None = None  # whose handler was called
        self.size = len(request.body)
        self._owner = owner
        self._then: Callable[[Ticket], Response] | None = None
        self._hurry: Callable[[], None] | None = None

    def begin(self, incoming: Incoming) -> None:
        route, request = incoming.route, self.request
        self.partial = incoming.partial
        if route is None or incoming.refusal is not None:
            self.response = incoming.refusal
            return
        self.route = route
        try:
            if request.oversize and not route.judges_size:
                raise HttpError(413, "BODY_TOO_BIG")
            result = route.handler(request)
        except Exception as error:
            self.response = self._failure(error)
        else:
            if isinstance(result, Response):
                self.response = result
            else:
                self._wait(result)
        # The broker has copied it; a request that waits must not keep 5 MiB.
        request.body = b""

    def refuse(self) -> bool:
        """Refuse a request that changes something, because nsqd stops; return whether it was."""
        if self.request.method not in _READING:
            self.response = EXITING
        return self.response is not None

    def _wait(self, pending: Pending) -> None:
        self._then = pending.then
        if pending.ticket.done:
            self._answer(pending.ticket)
        else:
            self._hurry = pending.hurry
            pending.ticket.add(self._settled)

    def hurry(self) -> None:
        """The peer sends nothing more or is gone: do not wait for anything optional."""
        hurry, self._hurry = self._hurry, None
        if hurry is not None:
            hurry()

    def _settled(self, ticket: Ticket) -> None:
        self._answer(ticket)
        if self._owner.closed:
            self.drop()
        else:
            self._owner.advance()

    def drop(self) -> None:
        """The connection is closed: free what the answer holds."""
        if self.response is not None and self.response.done is not None:
            self.response.done()

    def _answer(self, ticket: Ticket) -> None:
        assert self._then is not None
        try:
            self.response = self._then(ticket)
        except Exception as error:
            self.response = self._failure(error)

    def _failure(self, error: Exception) -> Response:
        if isinstance(error, HttpError):
            return error.response()
        LOGGER.error("%s %s failed", self.request.method, self.request.target, exc_info=error)
        return INTERNAL_ERROR
