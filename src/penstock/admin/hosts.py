"""Host names: which are valid in a URL, and for which nsqadmin responds.

Another site can point a name of its own at nsqadmin's address (DNS rebinding).  To the browser both
are then one site, so Origin and Sec-Fetch-Site do not differ; the Host header does.  So nsqadmin
responds only for

    an IP literal         10.0.0.5:4171, [::1]:4171      no name to rebind
    localhost             and names below it, which browsers resolve themselves
    its own host name     the machine's name, and the name in --http-address
    --allowed-host        names of a proxy or in DNS; ``.example.org``: its subdomains, ``*``: any

Rule 1: the port is not compared: rebinding works with any port.
Rule 2: case, a final dot, and the encoding of other alphabets are ignored.
Rule 3: a request without Host is HTTP/1.0 and not from a browser.
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
    """Whether it is ``host:port``, with IPv6 in brackets."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return False
    return is_host(host) and re.fullmatch("[0-9]{1,5}", port) is not None and int(port) < 65536


class Hosts:
    """The names for which one nsqadmin responds."""

    def __init__(self, options: AdminOptions, own: Iterable[str] | None = None) -> None:
        """Raise OptionError for a value of --allowed-host that no Host header could match."""
        names = [hostname()] if own is None else own
        check_hosts(options.allowed_hosts)
        listening = options.http_address.rpartition(":")[0]
        self._names = HostNames([listening, *names], options.allowed_hosts)
        self._logged_s = -LOG_INTERVAL_S

    def allowed(self, header: str) -> bool:
        """Whether nsqadmin responds for the name in a Host header."""
        return self._names.allowed(header)

    def gate(self, request: Request, route: Route) -> Route:
        """``route`` if the request is for one of the names, else a refusal with advice."""
        raw = request.headers.get(b"host")
        header = "" if raw is None else raw.decode("latin-1")
        if (raw is None and request.version == "1.0") or self.allowed(header):
            return route
        self._log(request, header)
        return refusing(error_response(421, f"MISDIRECTED_REQUEST: {advice('nsqadmin', header)}"))

    def _log(self, request: Request, header: str) -> None:
        """Log one line a minute: a page that refreshes itself would cause one every few seconds."""
        now_s = time.monotonic()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            log.warning(
                "%s %s (%s): refused: unknown Host %r; allow it with %s",
                *(request.method, request.path, request.remote_address, header[:255], FLAG),
            )
