"""The permissions that an auth server grants to a client.

    {"ttl": 3600, "identity": "bob", "identity_url": "...", "authorizations": [
       {"topic": "^ok.*$", "channels": [".*"], "permissions": ["subscribe", "publish"]}]}

An entry allows something if it has the permission, its topic matches and one of its channels does:
patterns are searched for, not anchored.  A publish has the empty string for its channel, so an
entry whose channels cannot match it never allows publishing.

Rule 1: one invalid entry makes the whole reply invalid.
Rule 2: patterns are RE2's, like Go's: replies written for nsqd mean the same here, and any pattern
        is matched in linear time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import AuthError
from penstock.record import record
from penstock.wire import gojson

SUBSCRIBE, PUBLISH = "subscribe", "publish"
# Longer than any connection; more would overflow timers.
TTL_S_MAX = 10 * 365 * 86400
ENTRY_COUNT_MAX = 10_000


@record
class Entry:
    """One permission entry, with compiled patterns."""

    topic: Any
    channels: tuple[Any, ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        return (
            permission in self.permissions
            and self.topic.search(topic) is not None
            and any(pattern.search(channel) is not None for pattern in self.channels)
        )


@record
class Authorizations:
    """A valid reply of an auth server."""

    ttl_s: int
    identity: str
    identity_url: str
    entries: tuple[Entry, ...]

    def allows(self, topic: str, channel: str = "") -> bool:
        """Whether the client may subscribe or, without a channel, publish."""
        permission = SUBSCRIBE if channel else PUBLISH
        return any(entry.allows(permission, topic, channel) for entry in self.entries)


def read_reply(body: bytes) -> Authorizations:
    """Parse the body of an auth server's response.  Raises AuthError."""
    try:
        fields = gojson.members(gojson.decode(body))
        ttl_s = gojson.typed(fields.get("ttl", gojson.Number("0")), int, 64)
        listed = fields.get("authorizations", [])
        if not isinstance(listed, list):
            raise ValueError("authorizations is not a list")
        if len(listed) > ENTRY_COUNT_MAX:
            raise ValueError(f"more than {ENTRY_COUNT_MAX} authorizations")
        entries = tuple(_entry(value) for value in listed)
        identity = gojson.typed(fields.get("identity", ""), str)
        identity_url = gojson.typed(fields.get("identity_url", ""), str)
    except ValueError as error:
        raise AuthError(f"invalid reply: {error}") from None
    if int(ttl_s) <= 0:
        raise AuthError(f"invalid TTL {ttl_s} (must be >0)")
    return Authorizations(min(int(ttl_s), TTL_S_MAX), str(identity), str(identity_url), entries)


def _entry(value: object) -> Entry:
    fields = gojson.members(value)
    permissions = _strings(fields.get("permissions", []))
    for permission in permissions:
        if permission not in (SUBSCRIBE, PUBLISH):
            raise ValueError(f"unknown permission {permission}")
    return Entry(
        _compiled(str(gojson.typed(fields.get("topic", ""), str))),
        tuple(_compiled(pattern) for pattern in _strings(fields.get("channels", []))),
        frozenset(permissions),
    )


def _strings(value: object) -> Sequence[str]:
    if not isinstance(value, list):
        raise ValueError("not a list of strings")
    # null is the empty string, as everywhere in Go.
    return [str(gojson.typed("" if item is None else item, str)) for item in value]


def _compiled(pattern: str) -> Any:
    # Imported only if an auth server is used.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"unable to compile {pattern!r}: {error}") from None
