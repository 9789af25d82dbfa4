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

import logging
import re
import time
from collections.abc import Iterable

from penstock.admin.options import AdminOptions
from penstock.net.hosts import FLAG, HostNames, advice, check_hosts, host_of, is_host
from penstock.net.http_message import Request, error_response
from penstock.net.http_router import Route, refusing
from penstock.settings.daemon import hostname

__all__ = ["Hosts", "host_of", "is_address", "is_host"]

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 60.0


def is_address(text: str) -> bool:
    """Whether it is ``host:port``, IPv6 in brackets."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return False
    return is_host(host) and re.fullmatch("[0-9]{1,5}", port) is not None and int(port) < 65536


class Hosts:
    """The names under which one nsqadmin answers."""

    def __init__(self, options: AdminOptions, own: Iterable[str] | None = None) -> None:
        """Raises OptionError for a value of --allowed-host that no Host header could match."""
        names = [hostname()] if own is None else own
        check_hosts(options.allowed_hosts)
        listening = options.http_address.rpartition(":")[0]
        self._names = HostNames([listening, *names], options.allowed_hosts)
        self._told_s = -LOG_INTERVAL_S

    def allowed(self, header: str) -> bool:
        """Whether nsqadmin goes by the name in a Host header."""
        return self._names.allowed(header)

    def gate(self, request: Request, route: Route) -> Route:
        """``route`` for requests under one of the names, else a refusal that says what to do."""
        raw = request.headers.get(b"host")
        header = "" if raw is None else raw.decode("latin-1")
        if (raw is None and request.version == "1.0") or self.allowed(header):
            return route
        self._tell(request, header)
        return refusing(error_response(421, f"MISDIRECTED_REQUEST: {advice('nsqadmin', header)}"))

    def _tell(self, request: Request, header: str) -> None:
        """A line a minute: a page that keeps itself current would write one every few seconds."""
        now_s = time.monotonic()
        if now_s - self._told_s >= LOG_INTERVAL_S:
            self._told_s = now_s
            log.warning(
                "%s %s (%s): refused: Host %r is not known; %s names the hosts that are",
                *(request.method, request.path, request.remote_address, header[:255], FLAG),
            )
