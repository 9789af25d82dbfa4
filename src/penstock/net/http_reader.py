"""Bytes in, requests out: httptools' parser, with limits on everything it would keep.

A request whose head was parsed before (http_heads.py), and whose body is there, needs no parser.

Rule 1: no I/O, no clock.  Where the bytes are split never changes the result.
Rule 2: sizes are checked when declared, else as bytes arrive, before anything is kept.
Rule 3: a body beyond its route's limit ends the reading: the request comes out as ``oversize``
        and nothing after it is parsed.  So does anything that is not HTTP.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn

import httptools

from penstock.net.http_heads import KnownHeads
from penstock.net.http_message import TEXT, Request, Response, has_bad_escape, unescape
from penstock.net.http_origins import Origins
from penstock.net.http_router import Gate, Route, Router
from penstock.net.http_states import IN_BODY, TABLE, Event, State
from penstock.record import record

# Repeated, a proxy in front of us may use the one that we do not.
_SINGLE = frozenset((b"host", b"content-length", b"transfer-encoding"))
# What Go's server accepts.
_HOST = re.compile(rb"[A-Za-z0-9!$%&()*+,\-.:;=\[\]'_~]*")

# An attribute of an enum costs 0.1 us, a name of the module 0.02.
_IDLE, _HEAD, _EXPECTING, _ENDED = State.IDLE, State.HEAD, State.EXPECTING, State.ENDED
_BEGIN, _HEAD_READ, _READ = Event.BEGIN, Event.HEAD_READ, Event.READ


@record
class ReadLimits:
    """Limits of a request's head; bodies are limited by their route."""

    target_size_max: int = 8 * 1024
    head_size_max: int = 64 * 1024
    header_count_max: int = 100


@dataclass(slots=True)
class Incoming:
    """A request to answer: by its route, or with ``refusal`` because it is invalid.

    ``partial``: it was not read to its end, and nothing after it will be.
    """

    request: Request
    route: Route | None
    refusal: Response | None = None
    partial: bool = False


class _StopError(Exception):
    """Leaves the parser from inside a callback; the bytes after it are dropped."""


class RequestReader:
    """Reads the requests of one connection.  The ``on_*`` methods are httptools' callbacks."""

    def __init__(
        self,
        router: Router,
        limits: ReadLimits,
        known: KnownHeads,
        remote_address: str,
        gate: Gate | None = None,
        origins: Origins | None = None,
    ) -> None:
        self.state = _IDLE
        self.message_count = 0
        self.body_size = 0
        self._router = router
        self._limits = limits
        self._known = known
        self._remote_address = remote_address
        self._gate = gate
        self._origins = origins
        self._refused = False  # the current head must not become a known one
        self._parser: Any = httptools.HttpRequestParser(self)
        self._out: list[Incoming] = []
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._head_size = 0
        self._head_fed_size = 0
        self._request: Request | None = None
        self._route: Route | None = None
        # The first piece as it came, or all pieces joined: a list of many small ones would take ten
        # times the memory.
        self._body: bytes | bytearray = b""
        self._upgrade = False
        self._resuming = False

    def feed(self, data: bytes) -> list[Incoming]:
        """Return the requests that ``data`` completes."""
        if self.state is _ENDED:
            return []
        at = self._take_known(data) if self.state is _IDLE else 0
        if at < len(data):
            self._parse(data[at:] if at else data)
        out, self._out = self._out, []
        return out

    @property
    def body_left(self) -> int:
        """How many bytes of the current body are missing; 0 if its size was not declared."""
        request = self._request
        if self.state not in IN_BODY or request is None:
            return 0
        return (request.content_size or 0) - self.body_size

    @property
    def body_total(self) -> int:
        """The size of the current body; its maximum if that was not declared."""
        request, route = self._request, self._route
        if self.state not in IN_BODY or request is None or route is None:
            return 0
        return route.body_size_max if request.content_size is None else request.content_size

    def resume(self) -> None:
        """The peer has been sent 100 Continue."""
        self.state = TABLE[self.state][Event.CONTINUE]

    def give_up(self, status: int) -> list[Incoming]:
        """Return the refusal of a request that takes too long, or too much room, to arrive."""
        self.refuse(status)
        out, self._out = self._out, []
        return out

    def _take_known(self, data: bytes) -> int:
        """Read the requests at the start whose heads are known; return where they end."""
        at = 0
        while at < len(data):
            head = self._known.find(data, at)
            if head is None:
                break
            request = head.request.with_same_head(self._remote_address)
            route = self._find_route(request)
            if head.body_size > route.body_size_max:
                break
            end = at + head.size + head.body_size
            request.body = data[at + head.size : end]
            self._out.append(Incoming(request, route))
            self.message_count += 1
            at = end
        return at

    def _parse(self, data: bytes) -> None:
        message_count, idle = self.message_count, self.state is _IDLE
        self._feed(data)
        # The parser buffers an unfinished header line of any length.
        if self.state is _HEAD and self.message_count == message_count:
            self._head_fed_size += len(data)
            if self._head_fed_size > self._limits.head_size_max:
                self.refuse(431)
        whole = idle and self.state is _IDLE and self.message_count == message_count + 1
        if whole and not self._refused:
            self._known.add(self._out[-1].request, data)

    def _feed(self, data: bytes) -> None:
        upgraded_at = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            upgraded_at = upgrade.args[0]
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _StopError):
                raise
        except httptools.HttpParserError:
            # To the parser, bytes after "Connection: close" are an error; here they are dropped.
            if self.state is not _ENDED:
                self.refuse(400)
        # Outside of the except clause: its exception would be the context of those raised in there.
        if upgraded_at is not None:
            self._ignore_upgrade(data[upgraded_at:])

    def _ignore_upgrade(self, after: bytes) -> None:
        """Serve a request that offers an upgrade (Java's client offers h2c) without upgrading.

        The parser stops at such a head.  A new parser is fed the body's framing and continues.
        """
        request = self._request
        assert request is not None
        self._upgrade = False
        if request.method == "CONNECT":
            request.keep_alive = False
            self.on_message_complete()
            return
        head = b"POST / HTTP/1.1\r\n"
        for name in (b"content-length", b"transfer-encoding"):
            if name in self._headers:
                head += name + b": " + self._headers[name] + b"\r\n"
        self._parser = httptools.HttpRequestParser(self)
        self._resuming = True
        self._feed(head + b"\r\n")
        self._resuming = False
        if after and self.state is not _ENDED:
            self._feed(after)

    # httptools' callbacks

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        self.message_count += 1
        self.state = TABLE[self.state][_BEGIN]
        self._target = b""
        self._headers = {}
        self._header_count = 0
        self._head_size = 0
        self._head_fed_size = 0
        self._request = None

    def on_url(self, url: bytes) -> None:
        if self._resuming:
            return
        self._target += url
        if len(self._target) > self._limits.target_size_max:
            self._stop(414)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._resuming:
            return
        self._header_count += 1
        self._head_size += len(name) + len(value)
        limits = self._limits
        if self._header_count > limits.header_count_max or self._head_size > limits.head_size_max:
            self._stop(431)
        if self._request is None:  # not a trailer
            name = name.lower()
            if name in self._headers and name in _SINGLE:
                self._stop(400, f"more than one {name.decode()} header")
            self._headers.setdefault(name, value)

    def on_headers_complete(self) -> None:
        if self._resuming:
            return
        parser = self._parser
        request = self._request = self._read_head(parser.get_method().decode("ascii"))
        request.version = parser.get_http_version()
        request.keep_alive = parser.should_keep_alive()
        self._upgrade = parser.should_upgrade()
        if request.version not in ("1.1", "1.0"):
            self._stop(505)
        self._check_framing(request)
        route = self._route = self._check_origin(request) or self._find_route(request)
        self._body = b""
        self.body_size = 0
        self.state = TABLE[self.state][_HEAD_READ]
        if request.content_size is not None and request.content_size > route.body_size_max:
            self._stop_oversize()
        if b"expect" in self._headers:
            self._expect(request)

    def on_body(self, data: bytes) -> None:
        assert self._route is not None
        if self.state is _EXPECTING:
            self.resume()
        self.body_size += len(data)
        if self.body_size > self._route.body_size_max:
            self._stop_oversize()
        if not self._body:
            self._body = data
        else:
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            self._body += data

    def on_message_complete(self) -> None:
        if self._upgrade:
            return
        request = self._request
        assert request is not None
        request.body = bytes(self._body)
        self._body = b""
        self.state = TABLE[self.state][_READ if request.keep_alive else Event.LAST]
        self._out.append(Incoming(request, self._route))

    # Checks

    def _read_head(self, method: str) -> Request:
        raw_path, _, raw_query = self._target.partition(b"?")
        if not raw_path.startswith(b"/"):
            raw_path = _origin_form(raw_path)
        if b"%" in raw_path:
            if has_bad_escape(raw_path):
                self._stop(400)
            path = unescape(raw_path)
        else:
            path = raw_path.decode("latin-1")
        request = Request(method, path, raw_query)
        request.headers = self._headers
        request.remote_address = self._remote_address
        content_size = self._headers.get(b"content-length")
        if content_size is not None:
            request.content_size = int(content_size)
        return request

    def _check_origin(self, request: Request) -> Route | None:
        refusal = self._origins.refusal(request) if self._origins is not None else None
        self._refused = refusal is not None
        return refusal

    def _check_framing(self, request: Request) -> None:
        """Refuse what a proxy in front of us may interpret differently.

        The parser refuses Content-Length together with Transfer-Encoding, and sizes that are no
        numbers.
        """
        host = self._headers.get(b"host")
        if host is None:
            if request.version == "1.1":
                self._stop(400, "missing required Host header")
        elif not _HOST.fullmatch(host):
            self._stop(400, "malformed Host header")
        coding = self._headers.get(b"transfer-encoding")
        if coding is None:
            return
        if request.version != "1.1":
            self._stop(400, "unexpected Transfer-Encoding")
        if coding.strip(b" \t").lower() != b"chunked":
            self._stop(400, "unsupported Transfer-Encoding")

    def _find_route(self, request: Request) -> Route:
        route, request.params = self._router.resolve(request.method, request.path)
        return route if self._gate is None else self._gate(request, route)

    def _expect(self, request: Request) -> None:
        if self._headers[b"expect"].lower() != b"100-continue":
            self._stop(417)
        has_body = request.content_size or b"transfer-encoding" in self._headers
        if has_body and request.version == "1.1":
            self.state = TABLE[self.state][Event.EXPECT]

    def _stop_oversize(self) -> NoReturn:
        request = self._request
        assert request is not None
        request.oversize = True
        self._end(Incoming(request, self._route, partial=True))
        raise _StopError

    def _stop(self, status: int, text: str = "") -> NoReturn:
        self.refuse(status, text)
        raise _StopError

    def refuse(self, status: int, text: str = "") -> None:
        """Answer an invalid request with ``status``, and read no more."""
        request = self._request or Request("", "", b"")
        self._end(Incoming(request, None, plain(status, text), partial=True))

    def _end(self, last: Incoming) -> None:
        last.request.keep_alive = False
        self.state = TABLE[self.state][Event.LAST]
        self._body = b""
        self._out.append(last)


def plain(status: int, text: str = "") -> Response:
    """An answer outside of NSQ's API, in the form of Go's server."""
    line = f"{status} {HTTPStatus(status).phrase}" + (f": {text}" if text else "")
    return Response(status, line.encode(), (TEXT,))


def _origin_form(raw_path: bytes) -> bytes:
    """The path of a target in the form sent to proxies, ``http://host/path``; otherwise "*"."""
    _, separator, after = raw_path.partition(b"://")
    if not separator:
        return b"*"
    return b"/" + after.partition(b"/")[2]
