"""Bearer tokens for the HTTP API: off unless --http-auth-token-file names a file of them.

    # role  token
    publish 3f6c1e...        POST /pub and /mpub, and /staging...
    read    58d0c2...        GET /log and below, /policy and /channel/dead; POST /channel/pull,
                             /commit and /pattern
    metrics 91ab77...        GET /stats, /metrics, /damage and /info
    admin   c0ffee...        everything

    Authorization: Bearer 3f6c1e...

NSQ's HTTP API is open to everyone who can connect, including publishing and deleting.  With tokens
only /ping is open, for load balancers.  A missing or unknown token is 401 UNAUTHORIZED; a role that
does not allow the request is 403 FORBIDDEN.

Rule 1: without a token, paths that do not exist get the same answer as those that do.
Rule 2: a token is compared with all known ones, each in constant time.
Rule 3: a request is checked when its head is read: no client uploads 5 MiB to be refused.
"""

from __future__ import annotations

import hmac
import re
from pathlib import Path

from penstock.errors import OptionError
from penstock.net.http_message import Request, error_response
from penstock.net.http_router import Route, refusing

PUBLISH, READ, ADMIN, METRICS = "publish", "read", "admin", "metrics"
ROLES = (PUBLISH, READ, ADMIN, METRICS)

STAGING = frozenset(
    f"/staging/{name}"
    for name in ("part", "seal", "decide", "decision", "publish", "abort", "coordinator")
)
LOG = frozenset(f"/log/{name}" for name in ("ends", "seek", "count", "counts", "read"))
PULL = frozenset(f"/channel/{name}" for name in ("pull", "commit", "pattern", "patterns"))
_OPEN = frozenset({"/ping"})
_BY_ROLE = {
    PUBLISH: frozenset({"/pub", "/mpub", "/staging", *STAGING}),
    READ: frozenset({"/log", "/policy", "/channel/dead", *LOG, *PULL}),
    METRICS: frozenset({"/stats", "/metrics", "/damage"}),
}
_ANY_ROLE = frozenset({"/info"})

_FILE_SIZE_MAX = 1 << 20
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]{8,512}")
_CHALLENGE = ("WWW-Authenticate", 'Bearer realm="nsqd"')
_UNAUTHORIZED = refusing(error_response(401, "UNAUTHORIZED", _CHALLENGE))
_FORBIDDEN = refusing(error_response(403, "FORBIDDEN"))


class Tokens:
    """The tokens of one daemon."""

    def __init__(self, path: str) -> None:
        self._tokens = read_tokens(path)

    def replace(self, tokens: list[tuple[str, bytes]]) -> None:
        self._tokens = tokens

    def of(self, role: str) -> str:
        """A token of the role, or of admin; "" if there is none."""
        for wanted in (role, ADMIN):
            for known, token in self._tokens:
                if known == wanted:
                    return token.decode("ascii")
        return ""

    def gate(self, request: Request, route: Route) -> Route:
        """``route`` if the token allows it, else a route that refuses."""
        if request.path in _OPEN:
            return route
        roles = self._roles(request.headers.get(b"authorization", b""))
        if not roles:
            return _UNAUTHORIZED
        if ADMIN in roles:
            return route
        if not any(_may(role, request.path) for role in roles):
            return _FORBIDDEN
        return route.limited or route

    def _roles(self, header: bytes) -> set[str]:
        scheme, _, given = header.partition(b" ")
        if scheme.lower() != b"bearer":
            return set()
        given = given.strip()
        roles = set()
        for role, token in self._tokens:
            if hmac.compare_digest(token, given):
                roles.add(role)
        return roles


def _may(role: str, path: str) -> bool:
    return path in _ANY_ROLE or path in _BY_ROLE[role]


def read_tokens(path: str) -> list[tuple[str, bytes]]:
    """The (role, token) lines of a file; skips empty lines and those that begin with ``#``."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_FILE_SIZE_MAX + 1)
    except OSError as error:
        raise OptionError(f"--http-auth-token-file {path}: {error.strerror}") from None
    if len(text) > _FILE_SIZE_MAX:
        raise OptionError(f"--http-auth-token-file {path}: more than {_FILE_SIZE_MAX} bytes")
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        role = words[0].decode("ascii", "replace")
        if len(words) != 2 or role not in ROLES or not _TOKEN.fullmatch(words[1]):
            raise OptionError(
                f"--http-auth-token-file {path}: line {number} must be a role "
                f"({', '.join(ROLES)}) and a token of 8 to 512 letters, digits or ._~+/=-"
            )
        tokens.append((role, words[1]))
    if not tokens:
        raise OptionError(f"--http-auth-token-file {path}: no tokens")
    return tokens
