"""Draining over HTTP; engine/drain/drain.py says what it is.

POST   /drain[?to=host:port]   refuse publishes, and end when nothing is left
GET    /drain                  how far it is
DELETE /drain                  cancel it
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.core.ticket import Ticket
from penstock.engine.components import Components
from penstock.engine.health import is_full
from penstock.net.http_message import (
    INTERNAL_ERROR,
    HttpError,
    Pending,
    Request,
    Response,
    error_response,
    json_response,
)
from penstock.net.http_router import Route, Router
from penstock.nsqd.security import Security
from penstock.wire.url import parse_url

if TYPE_CHECKING:
    from penstock.engine.drain.handover import Answered
    from penstock.nsqd.handover_requests import HandoverRequests

ADDRESS_SIZE_MAX = 300
# A name or an address; IPv6 in brackets.
_AUTHORITY = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")

_DISK_FULL = error_response(503, "DISK_FULL")


class DrainApi:
    """The routes."""

    def __init__(self, components: Components, security: Security) -> None:
        self._drain = components.drain
        self._context = components.context
        self._security = security
        self._requests: HandoverRequests | None = None
        self._drain.handover.send = self._send

    def add_routes(self, router: Router) -> None:
        router.add("POST", "/drain", Route(self.begin, logged=True))
        router.add("GET", "/drain", Route(self.show))
        router.add("DELETE", "/drain", Route(self.cancel, logged=True))

    def begin(self, request: Request) -> Pending:
        to = request.query.get("to", "")
        return self._when(self._drain.begin(_address(to) if to else ""))

    def show(self, request: Request) -> Response:
        return json_response(self._drain.progress())

    def cancel(self, request: Request) -> Pending:
        return self._when(self._drain.cancel())

    def _when(self, saved: Ticket) -> Pending:
        def then(ticket: Ticket) -> Response:
            if ticket.error is None:
                return json_response(self._drain.progress())
            return _DISK_FULL if is_full(ticket.error) else INTERNAL_ERROR

        return Pending(saved, then)

    def _send(
        self, method: str, address: str, target: str, body: bytes, answered: Answered
    ) -> None:
        if self._requests is None:
            # Loaded only if used: every module makes a start slower.
            from penstock.nsqd.handover_requests import HandoverRequests

            self._requests = HandoverRequests(self._context, self._security)
        self._requests.send(method, address, target, body, answered)


def _address(text: str) -> str:
    """``host:port`` or a URL with a port, as a URL; raises HttpError 400."""
    try:
        if len(text) > ADDRESS_SIZE_MAX:
            raise ValueError(text)
        url = parse_url(text if "://" in text else f"http://{text}")
        whole = url.target == "/" and url.authority.endswith(f":{url.port}")
        if not whole or not _AUTHORITY.fullmatch(url.authority):
            raise ValueError(text)
    except ValueError:
        detail = "to must be host:port or https://host:port, the HTTP address of another nsqd"
        raise HttpError(400, "INVALID_TO", detail=detail) from None
    return f"http{'s' if url.secure else ''}://{url.authority}"
