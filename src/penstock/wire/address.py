"""Addresses as options, URLs and the answers of daemons write them.

host:port, [::1]:port      join_address, split_address
/run/nsqd.sock             a unix socket: split_address gives it without a port
https://host:port/path?q   parse_url
"""

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
    authority: str  # what the Host header says
    target: str  # path and query


def join_address(host: str, port: int) -> str:
    """``host:port``, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int | None]:
    """(host, port) of ``host:port``; (path, None) of a unix socket's path."""
    if "/" in address:
        return address, None
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise OptionError(f'"{address}" must be host:port or a path')
    return host.strip("[]"), int(port)


def peer_address(peername: object, unix: str = "@") -> str:
    """The address of a socket's other end; a unix socket has none and is called ``unix``."""
    return join_address(*peername[:2]) if isinstance(peername, tuple) else unix


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
    """The URL to ask at an nsqlookupd, whose ``address`` may be a URL with a path of its own."""
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
