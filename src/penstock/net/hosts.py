"""Host names: which ones a daemon answers to over HTTP.

A foreign web page can make its own name resolve to a daemon's address (DNS rebinding).  To the
browser both are then one site, and neither Origin nor Sec-Fetch-Site distinguishes them; the Host
header does.  So a daemon that checks it answers only to

    an IP literal         10.0.0.5:4151, [::1]:4151      no name to rebind
    localhost             and names below it, which browsers resolve themselves
    its own names         the machine's host name, with and without its domain, and others
    --allowed-host        names in DNS, or of a proxy; ``.example.org`` for all below, ``*`` for any

Rule 1: the port is not compared: a name is rebound whatever the port is.
Rule 2: names are compared in lower case, without a final dot, and in their IDNA form.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from penstock.errors import OptionError

# Nothing that would change the meaning of a URL: a path, a user, a port.
_HOST = re.compile(r"[^\s\x00-\x20/?#@:%\[\]\\<>\"'\x7f\ud800-\udfff]{1,255}")
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[^\s\[\]:/?#@\\]{1,255})(?::([0-9]{0,5}))?")
FLAG = "--allowed-host"


class HostNames:
    """The names that one daemon answers to: its ``own``, and those ``given`` by the flag."""

    def __init__(self, own: Iterable[str], given: Iterable[str] = ()) -> None:
        listed = [host for text in given for host in text.split(",") if host]
        names = list(own)
        short = (name.partition(".")[0] for name in names if not is_ip(name))
        self._any = "*" in listed
        self._below = tuple("." + folded(h[1:]) for h in listed if h.startswith("."))
        self._names = {folded(name) for name in (*names, *short, *listed)} - {""}

    def allowed(self, header: str) -> bool:
        """Whether the daemon answers to the name in a Host header."""
        if self._any:
            return True
        host = host_of(header)
        if host is None:
            return False
        local = host == "localhost" or host.endswith(".localhost")
        return local or is_ip(host) or self.named(host)

    def named(self, host: str) -> bool:
        """Whether a folded name is one of those configured."""
        return self._any or host in self._names or host.endswith(self._below)


def is_host(text: str) -> bool:
    """Whether ``text`` is a host name or an IP literal, in a URL too."""
    return _HOST.fullmatch(text) is not None or is_ip(text)


def host_of(header: str) -> str | None:
    """The folded host of a Host header; None if the header is malformed."""
    match = _AUTHORITY.fullmatch(header.strip(" \t"))
    return None if match is None else folded(match[1])


def folded(name: str) -> str:
    """A name in the form that is compared (rule 2)."""
    name = name.strip("[]").lower().removesuffix(".")
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode("ascii")
    except UnicodeError:
        return name


def is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def check_hosts(given: Iterable[str]) -> None:
    """Raise OptionError for a value of --allowed-host that no Host header could match."""
    for text in given:
        for host in text.split(","):
            if host != "*" and not is_host(host.removeprefix(".").strip("[]")):
                raise OptionError(
                    f'{FLAG} "{host}" must be a host name without a port, .domain or *'
                )


def advice(program: str, header: str) -> str:
    """The text for a user whose request has an unknown host name."""
    host = host_of(header)
    if host is None:
        return "the Host header is not a host"
    return f'{program} does not serve the name "{host}". To allow it, start it with {FLAG}={host}'
