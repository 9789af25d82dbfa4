"""HTTP requests and answers as objects, and NSQ's "V1" form of answers.

    success, text      200, the text, Content-Type text/plain
    success, nothing   200, empty, no Content-Type
    success, other     200, compact JSON
    error              its status, {"message":"<TEXT>"}

All V1 answers have ``X-Nsq-Content-Type: nsq; version=1.0``: without it go-nsq and nsqadmin
expect the wrapper of versions before 1.0.

Parameters come from the query string only, and the first value of a repeated key wins.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from penstock.core.ticket import Ticket
from penstock.errors import PenstockError
from penstock.page_cache import FileSlice
from penstock.wire import gojson
from penstock.wire.names import is_valid_name

TEXT = ("Content-Type", "text/plain; charset=utf-8")
JSON = ("Content-Type", "application/json; charset=utf-8")
HTML = ("Content-Type", "text/html; charset=utf-8")
V1 = ("X-Nsq-Content-Type", "nsq; version=1.0")

_BAD_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2})")
_NUMBER = re.compile(r"[0-9]{1,19}")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class HttpError(PenstockError):
    """Ends a request with a status and a V1 error text; ``more``: fields to add to the answer."""

    def __init__(self, status: int, text: str, **more: Any) -> None:
        super().__init__(f"{status} {text}")
        self.status = status
        self.text = text
        self.more = more

    def response(self) -> Response:
        body = gojson.encode({"message": self.text, **self.more})
        return Response(self.status, body, (JSON, V1))


class Response:
    """An answer; immutable, so that constant ones are made once.

    ``head`` begins with ``HTTP/1.1`` and ends before the headers that vary (Date, Connection).
    After the body come large ``pieces``, which are not joined, or a slice of a ``file``.  ``done``
    is called when they are no longer needed: all is sent, or the connection is closed.
    """

    __slots__ = ("body", "done", "file", "head", "pieces", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (),
        pieces: Sequence[bytes | memoryview] = (),
        done: Callable[[], None] | None = None,
        file: FileSlice | None = None,
    ) -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers]
        self.status = status
        self.body = body
        self.pieces = pieces
        self.file = file
        self.done = done
        size = len(body) + sum(map(len, pieces)) + (file.size if file is not None else 0)
        lines.append(f"Content-Length: {size}\r\n")
        self.head = "\r\n".join(lines).encode("latin-1")


class Pending:
    """An answer that waits for a ticket; ``then`` makes it from the settled ticket.

    ``hurry`` is called when the peer has closed its side or is gone: there is no need to wait any
    longer before the ticket is settled.
    """

    __slots__ = ("hurry", "then", "ticket")

    def __init__(
        self,
        ticket: Ticket,
        then: Callable[[Ticket], Response],
        hurry: Callable[[], None] | None = None,
    ) -> None:
        self.ticket = ticket
        self.then = then
        self.hurry = hurry


class Request:
    """A request whose head, and maybe body, has been read."""

    __slots__ = (
        *("body", "content_size", "headers", "keep_alive", "method", "oversize"),
        *("params", "path", "raw_query", "remote_address", "version"),
    )

    def __init__(self, method: str, path: str, raw_query: bytes) -> None:
        self.method = method
        self.path = path
        self.raw_query = raw_query
        self.version = "1.1"
        self.headers: Mapping[bytes, bytes] = {}  # names in lower case; the first value of each
        self.params: Mapping[str, str] = {}  # of the route, such as ":opt"
        self.body = b""
        self.content_size: int | None = None  # as declared; None for a chunked body
        self.oversize = False  # over the route's limit; ``body`` is then incomplete
        self.keep_alive = True
        self.remote_address = ""

    def with_same_head(self, remote_address: str = "") -> Request:
        """A new request with the same head, from another peer."""
        request = Request(self.method, self.path, self.raw_query)
        request.version, request.headers = self.version, self.headers
        request.content_size, request.remote_address = self.content_size, remote_address
        return request

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters; raises HttpError 400 if the query cannot be parsed."""
        return parse_query(self.raw_query) if self.raw_query else {}

    def argument(self, name: str) -> str:
        """A required parameter."""
        value = parse_query(self.raw_query).get(name)
        if value is None:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        return value

    def name(self, name: str, refusal: str = "") -> str:
        """A valid name of a topic or channel; ``refusal`` in place of INVALID_ARG_<NAME>."""
        value = self.argument(name)
        if not is_valid_name(value):
            raise HttpError(400, refusal or f"INVALID_ARG_{name.upper()}")
        return value

    def names(self, *names: str) -> list[str]:
        """Several names: all must be present before the first is checked."""
        for name in names:
            self.argument(name)
        return [self.name(name) for name in names]

    def number(
        self,
        name: str,
        maximum: int,
        *,
        minimum: int = 0,
        absent: int | None = None,
        refusal: str = "",
    ) -> int:
        """Decimal digits; required unless there is a value for ``absent``."""
        if absent is not None and name not in self.query:
            return absent
        text = self.argument(name)
        if not _NUMBER.fullmatch(text) or not minimum <= int(text) <= maximum:
            raise HttpError(400, refusal or f"INVALID_ARG_{name.upper()}")
        return int(text)

    def boolean(self, name: str) -> bool:
        """``true``, ``false`` or nothing, which is false; anything else is refused."""
        value = self.query.get(name, "false")
        if value not in ("true", "false"):
            raise HttpError(400, f"INVALID_{name.upper()}")
        return value == "true"

    def flag(self, name: str, *, absent: bool) -> bool:
        """A boolean as nsqd reads it: anything it does not know is true."""
        value = parse_query(self.raw_query).get(name)
        return absent if value is None else _BOOLEANS.get(value, True)

    @property
    def target(self) -> str:
        """Path and query for log lines."""
        if not self.raw_query:
            return self.path
        return f"{self.path}?{self.raw_query.decode('latin-1')}"


# Producers use one target for all messages; 256 of the longest targets are 2 MiB.
@lru_cache(maxsize=256)
def parse_query(raw: bytes) -> Mapping[str, str]:
    """Return the first value of each key; raises HttpError 400 for a bad escape or a ``;``."""
    if b";" in raw or _BAD_ESCAPE.search(raw):
        raise HttpError(400, "INVALID_REQUEST")
    params: dict[str, str] = {}
    for part in raw.split(b"&"):
        if part:
            key, _, value = part.partition(b"=")
            params.setdefault(
                unescape(key.replace(b"+", b" ")), unescape(value.replace(b"+", b" "))
            )
    return params


def unescape(raw: bytes) -> str:
    """Undo percent-encoding; bytes that are not UTF-8 are kept by ``surrogateescape``."""
    return unquote_to_bytes(raw).decode("utf-8", "surrogateescape")


def has_bad_escape(raw: bytes) -> bool:
    return _BAD_ESCAPE.search(raw) is not None


def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; raises HttpError 400 if it is not one or is nested too deeply."""
    try:
        value = json.loads(request.body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise HttpError(400, "INVALID_BODY") from None
    if not isinstance(value, dict):
        raise HttpError(400, "INVALID_BODY")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def text_response(text: str) -> Response:
    return Response(200, text.encode("utf-8", "surrogateescape"), (TEXT, V1))


def json_response(value: object) -> Response:
    return Response(200, gojson.encode(value), (JSON, V1))


def error_response(status: int, text: str, *more: tuple[str, str]) -> Response:
    return Response(status, gojson.encode({"message": text}), (JSON, V1, *more))


OK = text_response("OK")
EMPTY = Response(200, b"", (V1,))
INTERNAL_ERROR = error_response(500, "INTERNAL_ERROR")


def encode_response(response: Response, request: Request, keep_alive: bool) -> bytes:
    """Head and body; the pieces of a large answer follow them as they are."""
    head, connection = response.head, b""
    if not keep_alive:
        connection = b"Connection: close\r\n"
    if request.version == "1.0":
        head = b"HTTP/1.0" + head[8:]
        if keep_alive:
            connection = b"Connection: keep-alive\r\n"
    body = b"" if request.method == "HEAD" else response.body
    return b"".join((head, _date_header(), connection, b"\r\n", body))


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_date: tuple[int, bytes] = (-1, b"")


def _date_header() -> bytes:
    """The header Date, built once a second."""
    global _date
    second = int(time.time())
    if second != _date[0]:
        utc = time.gmtime(second)
        text = (
            f"Date: {_DAYS[utc.tm_wday]}, {utc.tm_mday:02d} {_MONTHS[utc.tm_mon - 1]} "
            f"{utc.tm_year} {utc.tm_hour:02d}:{utc.tm_min:02d}:{utc.tm_sec:02d} GMT\r\n"
        )
        _date = (second, text.encode())
    return _date[1]
