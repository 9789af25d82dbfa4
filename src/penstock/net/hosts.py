"""Names of hosts: those under which a daemon answers HTTP.

A page of somebody else can point a name of its own at a daemon's address (DNS rebinding).  To the
browser both are then one site, so neither Origin nor Sec-Fetch-Site tell them apart; the Host
header does.  So a daemon that checks it answers only under

    an IP literal         10.0.0.5:4151, [::1]:4151      no name to rebind
    localhost             and names below it, which browsers resolve themselves
    its own names         as the machine calls itself, with and without its domain, and others
    --allowed-host        names of a proxy or DNS; ``.example.org`` for all below it, ``*`` for any

Rule 1: the port is not compared: a name is rebound whatever the port is.
Rule 2: names are compared without regard to case, a final dot, or the form of other alphabets.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from penstock.errors import OptionError

# Nothing that would make the rest of a URL another one: a path, a user, a port of its own.
_HOST = re.compile(r"[^\s\x00-\x20/?#@:%\[\]\\<>\"'\x7f\ud800-\udfff]{1,255}")
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[^\s\[\]:/?#@\\]{1,255})(?::([0-9]{0,5}))?")
FLAG = "--allowed-host"


class HostNames:
    """The names under which one daemon answers: ``own`` ones, and those ``given`` by the flag."""

    def __init__(self, own: Iterable[str], given: Iterable[str] = ()) -> None:
        listed = [host for text in given for host in text.split(",") if host]
        names = list(own)
        short = (name.partition(".")[0] for name in names if not is_ip(name))
        self._any = "*" in listed
        self._below = tuple("." + folded(h[1:]) for h in listed if h.startswith("."))
        self._names = {folded(name) for name in (*names, *short, *listed)} - {""}

    def allowed(self, header: str) -> bool:
        """Whether the daemon goes by the name in a Host header."""
        if self._any:
            return True
        host = host_of(header)
        if host is None:
            return False
        local = host == "localhost" or host.endswith(".localhost")
        return local or is_ip(host) or self.named(host)

    def named(self, host: str) -> bool:
        """Whether a folded name is one of those given."""
        return self._any or host in self._names or host.endswith(self._below)


def is_host(text: str) -> bool:
    """Whether it is a name or an IP literal, and nothing else in a URL either."""
    return _HOST.fullmatch(text) is not None or is_ip(text)


def host_of(header: str) -> str | None:
    """The host of a Host header in one form; None if it is none."""
    match = _AUTHORITY.fullmatch(header.strip(" \t"))
    return None if match is None else folded(match[1])


def folded(name: str) -> str:
    """A name in the form in which names are compared."""
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
    """What a person is told whose request comes under a name that is not known."""
    host = host_of(header)
    if host is None:
        return "the Host header is not a host"
    return f'{program} does not go by the name "{host}". If it should, start it with {FLAG}={host}'
