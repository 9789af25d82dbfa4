"""Names of hosts: which may stand in a URL, and under which nsqadmin answers.

A page of somebody else can point a name of its own at nsqadmin's address (DNS rebinding).  To the
browser both are then one site, so neither Origin nor Sec-Fetch-Site tell them apart; the Host
header does.  So nsqadmin answers only under

    an IP literal         10.0.0.5:4171, [::1]:4171      no name to rebind
    localhost             and names below it, which browsers resolve themselves
    its own host name     as the machine calls itself, and the name in --http-address
    --allowed-host        names of a proxy or DNS; ``.example.org`` for all below it, ``*`` for any

Rule 1: the port is not compared: a name is rebound whatever the port is.
Rule 2: names are compared without regard to case, a final dot, or the form of other alphabets.
Rule 3: a request without Host is HTTP/1.0 and comes from no browser.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Iterable

from penstock.admin.options import AdminOptions
from penstock.engine.options import hostname
from penstock.errors import OptionError
from penstock.server.http_message import Request, error_response
from penstock.server.http_router import Route, refusing

log = logging.getLogger(__name__)

# Nothing that would make the rest of a URL another one: a path, a user, a port of its own.
_HOST = re.compile(r"[^\s\x00-\x20/?#@:%\[\]\\<>\"'\x7f\ud800-\udfff]{1,255}")
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[^\s\[\]:/?#@\\]{1,255})(?::([0-9]{0,5}))?")
LOG_INTERVAL_S = 60.0
FLAG = "--allowed-host"


def is_host(text: str) -> bool:
    """Whether it is a name or an IP literal, and nothing else in a URL either."""
    return _HOST.fullmatch(text) is not None or _is_ip(text)


def is_address(text: str) -> bool:
    """Whether it is ``host:port``, IPv6 in brackets."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return False
    return is_host(host) and re.fullmatch("[0-9]{1,5}", port) is not None and int(port) < 65536


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


class Hosts:
    """The names under which one nsqadmin answers."""

    def __init__(self, options: AdminOptions, own: Iterable[str] | None = None) -> None:
        """Raises OptionError for a value of --allowed-host that no Host header could match."""
        names = [hostname()] if own is None else own
        listening = options.http_address.rpartition(":")[0]
        own_names = {"localhost", listening, *names, *(n.partition(".")[0] for n in names)}
        given = options.allowed_hosts
        for host in given:
            _check(host)
        self._any = "*" in given
        self._below = (".localhost", *("." + folded(h[1:]) for h in given if h.startswith(".")))
        self._names = {folded(name) for name in own_names} | {folded(name) for name in given}
        self._names.discard("")
        self._told_s = -LOG_INTERVAL_S

    def allowed(self, header: str) -> bool:
        """Whether nsqadmin goes by the name in a Host header."""
        if self._any:
            return True
        host = host_of(header)
        if host is None:
            return False
        return host in self._names or _is_ip(host) or host.endswith(self._below)

    def gate(self, request: Request, route: Route) -> Route:
        """``route`` for requests under one of the names, else a refusal that says what to do."""
        raw = request.headers.get(b"host")
        header = "" if raw is None else raw.decode("latin-1")
        if (raw is None and request.version == "1.0") or self.allowed(header):
            return route
        host = host_of(header)
        self._tell(request, header)
        return refusing(error_response(421, _advice(host)))

    def _tell(self, request: Request, header: str) -> None:
        """A line a minute: a page that keeps itself current would write one every few seconds."""
        now_s = time.monotonic()
        if now_s - self._told_s >= LOG_INTERVAL_S:
            self._told_s = now_s
            log.warning(
                "%s %s (%s): refused: Host %r is not known; %s names the hosts that are",
                *(request.method, request.path, request.remote_address, header[:255], FLAG),
            )


def _check(host: str) -> None:
    if host != "*" and not is_host(host.removeprefix(".").strip("[]")):
        raise OptionError(f'{FLAG} "{host}" must be a host name without a port, .domain or *')


def _advice(host: str | None) -> str:
    if host is None:
        return "MISDIRECTED_REQUEST: the Host header is not a host"
    return (
        f'MISDIRECTED_REQUEST: nsqadmin does not go by the name "{host}". '
        f"If it should, start it with {FLAG}={host}"
    )


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
