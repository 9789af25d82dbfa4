"""From a method and a path to a handler, as NSQ's router does it.

    known path, known method      its handler
    known path, OPTIONS           200, empty, Allow
    known path, another method    405 METHOD_NOT_ALLOWED, Allow (HEAD too)
    differs by a final slash, letter case, ``//``, ``.`` or ``..`` from a path that has the method
                                  redirect: 301 for GET, 307 for others
    anything else                 404 NOT_FOUND

A pattern's segment ``:name`` matches any one segment; the last may be ``*name``, which matches all
that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from penstock.net.http_message import HTML, JSON, V1, Pending, Request, Response, error_response
from penstock.record import record

Handler = Callable[[Request], Response | Pending]
# Gets a request's head and its route; returns the route to use, which may be one that refuses.
Gate = Callable[[Request, "Route"], "Route"]

# A body that the handler ignores is still read, to find the next request after it; up to the limit
# of Go's server.
IGNORED_BODY_SIZE_MAX = 256 * 1024

_NO_PARAMS: Mapping[str, str] = {}


@record
class Route:
    """A handler and how its requests are received.

    A request with a body over ``body_size_max`` is answered before it is read: with ``judges_size``
    by the handler, which checks ``request.oversize``, otherwise with 413 BODY_TOO_BIG.  ``limited``
    is the route for tokens that allow the request but are not of the role admin.  A connection that
    has used a route with ``publishes`` is not closed to make room for others.
    """

    handler: Handler
    body_size_max: int = IGNORED_BODY_SIZE_MAX
    judges_size: bool = False
    logged: bool = False
    limited: Route | None = None
    publishes: bool = False


@dataclass(slots=True)
class _Node:
    """A path, and its routes by method."""

    segments: tuple[str, ...]
    routes: dict[str, Route] = field(default_factory=dict)


class Router:
    """A table of routes; fixed paths are found by one lookup."""

    def __init__(self) -> None:
        self._fixed: dict[str, _Node] = {}
        self._patterns: list[_Node] = []

    def add(self, method: str, pattern: str, route: Route) -> None:
        """Add a route; there must be none for the same method and pattern."""
        node = self._node(pattern)
        assert method not in node.routes, (method, pattern)
        node.routes[method] = route

    def routes(self) -> list[tuple[str, str]]:
        """All (method, pattern) pairs, for documentation and its test."""
        nodes = [*self._fixed.values(), *self._patterns]
        return [(method, "/" + "/".join(node.segments)) for node in nodes for method in node.routes]

    def resolve(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route for a request, and the values of its ``:name`` segments.

        There always is one: answers such as 404 are routes too.
        """
        node = self._fixed.get(path)
        params = _NO_PARAMS
        if node is None:
            node, params = self._match(path)
        if node is None:
            return self._elsewhere(method, path), _NO_PARAMS
        route = node.routes.get(method)
        if route is not None:
            return route, params
        allow = ("Allow", ", ".join(sorted({*node.routes, "OPTIONS"})))
        if method == "OPTIONS":
            return _constant(Response(200, b"", (allow,))), params
        return _constant(error_response(405, "METHOD_NOT_ALLOWED", allow)), params

    def _node(self, pattern: str) -> _Node:
        segments = _split(pattern)
        if not any(segment[:1] in (":", "*") for segment in segments):
            return self._fixed.setdefault(pattern, _Node(segments))
        for node in self._patterns:
            if node.segments == segments:
                return node
        node = _Node(segments)
        self._patterns.append(node)
        return node

    def _match(self, path: str) -> tuple[_Node | None, Mapping[str, str]]:
        segments = _split(path)
        for node in self._patterns:
            params = _bind(node.segments, segments)
            if params is not None:
                return node, params
        return None, _NO_PARAMS

    def _elsewhere(self, method: str, path: str) -> Route:
        fixed = self._fix(method, path)
        if fixed is None:
            return _NOT_FOUND
        return Route(lambda request: _redirect(request, fixed))

    def _fix(self, method: str, path: str) -> str | None:
        """The path that a nearly correct one stands for, if it has the method."""
        segments = _clean(path)
        folded = tuple(segment.lower() for segment in segments)
        for node in (*self._fixed.values(), *self._patterns):
            if method not in node.routes:
                continue
            params = _bind(tuple(s.lower() for s in node.segments), folded)
            if params is not None:
                named = zip(node.segments, segments, strict=False)
                tail = segments[len(node.segments) :]
                fixed = [given if own[:1] in (":", "*") else own for own, given in named]
                return "/" + "/".join((*fixed, *tail))
        return None


def _split(path: str) -> tuple[str, ...]:
    return tuple(path[1:].split("/"))


def _bind(pattern: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str] | None:
    """The parameters of ``segments`` if they match ``pattern``, else None."""
    has_tail = pattern[-1][:1] == "*"
    if len(pattern) != len(segments) and not (has_tail and len(segments) > len(pattern)):
        return None
    params: dict[str, str] = {}
    for at, (own, given) in enumerate(zip(pattern, segments, strict=False)):
        if own[:1] == ":":
            if not given:
                return None
            params[own[1:]] = given
        elif own[:1] == "*":
            params[own[1:]] = "/".join(segments[at:])
        elif own != given:
            return None
    return params


def _clean(path: str) -> tuple[str, ...]:
    """The segments without empty ones and dots, as Go's path cleaning leaves them."""
    clean: list[str] = []
    for segment in _split(path):
        if segment == "..":
            del clean[-1:]
        elif segment not in ("", "."):
            clean.append(segment)
    return tuple(clean) or ("",)


def _redirect(request: Request, path: str) -> Response:
    location = quote(path.encode("utf-8", "surrogateescape"), safe="/:@!$&'()*+,;=~")
    if request.raw_query:
        location += "?" + request.raw_query.decode("latin-1")
    if request.method != "GET":
        return Response(307, b"", (("Location", location),))
    href = location.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&#34;")
    body = f'<a href="{href}">Moved Permanently</a>.\n\n'.encode("latin-1")
    return Response(301, body, (HTML, ("Location", location)))


def refusing(response: Response) -> Route:
    """A route that answers every request with ``response``, before a large body is read."""
    return Route(lambda request: response, judges_size=True)


def plain_http_refusal(https_port: int) -> Route:
    """The answer over plain HTTP where TLS is required."""
    # Not encoded by gojson: clients match on the spaces.
    body = f'{{"message": "TLS_REQUIRED", "https_port": {https_port}}}'
    return refusing(Response(403, body.encode(), (JSON, V1)))


def _constant(response: Response) -> Route:
    return Route(lambda request: response)


_NOT_FOUND = _constant(error_response(404, "NOT_FOUND"))
