"""Authorization of requests.

As in NSQ: without --admin-user everybody may run actions.  Otherwise the header --acl-http-header,
which a proxy in front must set and protect, has to name one of the users.  Reading needs no rights.

Another site's page can make a browser send a POST to any address, with the user's cookies and from
inside the user's network.  A request that changes something must therefore not be cross-site:

    Sec-Fetch-Site   set by the browser, unchanged by proxies: must be same-origin or none
    Origin           older browsers, or plain http: must be the requested host
    Referer          still older browsers: the same
    none of them     not a browser: curl and NSQ's API clients are accepted

and a form of our pages has a token that no other site can read.

Rule 1: a refusal is 403 FORBIDDEN without a reason; the reason is logged.
Rule 2: the token is bound to the user and to this process, and is valid for 12 hours.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from penstock.admin.options import AdminOptions, config_network
from penstock.net.http_message import HttpError, Request

log = logging.getLogger(__name__)

TOKEN_HOURS = 12
_HOUR_S = 3600


class Access:
    """Checks what requests may do."""

    def __init__(self, options: AdminOptions, now_s: Callable[[], float] = time.time) -> None:
        self._header = options.acl_http_header.lower().encode("latin-1", "replace")
        self._users = frozenset(options.admin_users)
        self._config_from = config_network(options) if options.allow_config_from_cidr else None
        self._secret = secrets.token_bytes(32)
        self._now_s = now_s

    def user(self, request: Request) -> str:
        """The user's name as set by the proxy; empty if it is not set."""
        return request.headers.get(self._header, b"").decode("utf-8", "replace")

    def is_admin(self, request: Request) -> bool:
        """Whether the user may run actions."""
        return not self._users or self.user(request) in self._users

    def check_change(self, request: Request) -> None:
        """Raise HttpError unless the request may run actions."""
        if not self.is_admin(request):
            raise refusal(request, f"user {self.user(request)!r} is not an admin")
        if reason := foreign(request):
            raise refusal(request, reason)

    # Forms

    def token(self, request: Request) -> str:
        """The value of a form's field ``token``."""
        return self._sign(self.user(request), int(self._now_s()) // _HOUR_S)

    def check_token(self, request: Request, token: str) -> None:
        """Raise HttpError unless the token is this user's and has not expired."""
        user, hour = self.user(request), int(self._now_s()) // _HOUR_S
        given = token.encode("utf-8", "replace")
        known = (self._sign(user, hour - age).encode() for age in range(TOKEN_HOURS))
        if not any(hmac.compare_digest(given, one) for one in known):
            raise refusal(request, "the token is missing, expired or another user's")

    def _sign(self, user: str, hour: int) -> str:
        return hmac.new(self._secret, f"{hour} {user}".encode(), hashlib.sha256).hexdigest()

    # /config

    def check_config(self, request: Request) -> None:
        """Raise HttpError unless the peer may read and change options."""
        if self._config_from is None:
            return
        try:
            peer = ipaddress.ip_address(request.remote_address.rpartition(":")[0].strip("[]"))
        except ValueError:
            raise HttpError(400, "INVALID_REMOTE_ADDR") from None
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        if peer not in self._config_from:
            raise refusal(request, "the address may not use /config")


def foreign(request: Request) -> str:
    """The reason why a request is cross-site; empty if it is not."""
    headers = request.headers
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return "" if site in (b"same-origin", b"none") else f"cross-site request: {site!r}"
    for name in (b"origin", b"referer"):
        value = headers.get(name)
        if value is not None:
            return "" if _host(value) in _own_hosts(request) else f"cross-site request: {value!r}"
    return ""


def _host(url: bytes) -> str:
    """Host and port of a URL, or "?", which matches no host, if it is not one."""
    try:
        return urlsplit(url.decode("latin-1").lower()).netloc or "?"
    except ValueError:
        return "?"


def _own_hosts(request: Request) -> set[str]:
    """The requested hosts.  No page can make a browser send X-Forwarded-Host cross-site."""
    own = set()
    for name in (b"host", b"x-forwarded-host"):
        for value in request.headers.get(name, b"").split(b","):
            if value.strip():
                own.add(value.strip().decode("latin-1").lower())
    return own


def refusal(request: Request, reason: str) -> HttpError:
    log.warning(
        "%s %s (%s): refused: %s", request.method, request.path, request.remote_address, reason
    )
    return HttpError(403, "FORBIDDEN")
