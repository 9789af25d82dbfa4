"""URLs: the parts that a request needs, and the URLs of queries to nsqlookupd."""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit

from penstock.errors import OptionError
from penstock.record import record


@record
class Url:
    """An ``http`` or ``https`` URL, as a request needs it."""

    host: str
    port: int
    secure: bool
    authority: str  # the value of the Host header
    target: str  # path and query


def parse_url(url: str) -> Url:
    """Raises ValueError for anything that is not an http or https URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http or https address")
    secure = parts.scheme == "https"
    return Url(
        parts.hostname,
        parts.port or (443 if secure else 80),
        secure,
        parts.netloc.rpartition("@")[2],
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )


def lookupd_url(address: str, path: str, **query: str) -> str:
    """The URL of a query to an nsqlookupd, whose ``address`` may be a URL with a path."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.hostname is None or (port is None and parts.scheme != "https"):
        raise OptionError(f"nsqlookupd address {address!r}: missing port")
    path = parts.path if parts.path not in ("", "/") else path
    asked = [parts.query] if parts.query else []
    asked += [f"{name}={quote(value)}" for name, value in query.items()]
    return urlunsplit((parts.scheme, parts.netloc, path, "&".join(asked), ""))
