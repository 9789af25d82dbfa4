"""Refuses requests that a foreign web page makes a browser send to a daemon (CSRF).

    Sec-Fetch-Site: cross-site        403 CROSS_SITE, of every method that may change something
    Origin of another host            the same, if the browser sends no Sec-Fetch-Site (it does only
                                      over HTTPS and to localhost)
    Host that is not the daemon's     421 MISDIRECTED_REQUEST, where hosts are checked

To delete a topic of an open API a page needs neither the answer nor a token: sending is enough.

Rule 1: NSQ's clients send neither of the first two headers, and nothing changes for them.
Rule 2: a head is checked when it is parsed.  Known heads (http_heads.py) have passed: a producer
        that repeats its head is checked once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from penstock.net.hosts import HostNames, advice, check_hosts, folded, host_of
from penstock.net.http_message import JSON, V1, Request, Response, error_response
from penstock.net.http_router import Route, refusing
from penstock.wire import gojson

# Methods that change nothing.
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
# Load balancers check it under any name.
_OPEN = frozenset(("/ping",))
_CROSS_SITE = refusing(error_response(403, "CROSS_SITE"))


class Origins:
    """Checks the heads of one daemon's requests; ``given`` are hosts allowed by the flag."""

    def __init__(
        self, program: str, own: Iterable[str], given: Iterable[str] = (), *, checked: bool = False
    ) -> None:
        given = tuple(given)
        check_hosts(given)
        self._program = program
        self._hosts = HostNames(own, given)
        self._pages = HostNames((), given)  # whose pages may send requests that change something
        self._checked = checked or bool(given)

    def refusal(self, request: Request) -> Route | None:
        """A route that refuses ``request``; None if it may be served."""
        headers = request.headers
        if request.method not in _SAFE and self._is_cross_site(headers):
            return _CROSS_SITE
        host = headers.get(b"host")
        if not self._checked or host is None or request.path in _OPEN:
            return None
        header = host.decode("latin-1")
        return None if self._hosts.allowed(header) else self._misdirected(header)

    def _is_cross_site(self, headers: Mapping[bytes, bytes]) -> bool:
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            return site.strip().lower() == b"cross-site"
        origin = headers.get(b"origin")
        if origin is None:
            return False
        page = _host_of_origin(origin)
        if page is None:
            return True
        own = host_of(headers.get(b"host", b"").decode("latin-1"))
        return page != own and not self._pages.named(page)

    def _misdirected(self, header: str) -> Route:
        body = {"message": "MISDIRECTED_REQUEST", "detail": advice(self._program, header)}
        return refusing(Response(421, gojson.encode(body), (JSON, V1)))


def _host_of_origin(origin: bytes) -> str | None:
    """The host of a page's origin; None for "null" and for malformed ones."""
    try:
        host = urlsplit(origin.decode("latin-1")).hostname
    except ValueError:
        return None
    return folded(host) if host else None
