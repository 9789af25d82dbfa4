"""TLS of one nsqlookupd.

    first byte 0x16, a TLS handshake    TLS, if there is a certificate
    anything else                       plain, unless --tls-required

So nsqds move to TLS one by one, on the same port, and at the end plain peers are refused.  NSQ's
nsqlookupd has no TLS; an nsqd of NSQ stays plain.
"""

from __future__ import annotations

import logging
from ssl import SSLContext

from penstock.errors import OptionError, ProtocolError
from penstock.lookupd.options import LookupdOptions
from penstock.net.http_router import Gate, plain_http_refusal
from penstock.net.tls import load_certificate, server_context
from penstock.wire.tls import Tls

log = logging.getLogger(__name__)

_HANDSHAKE = 0x16


class Security:
    """What all connections share; made of the options once.  Raises OptionError."""

    def __init__(self, options: LookupdOptions) -> None:
        self._options = options
        self.tls: SSLContext | None = server_context(options)
        self.https_port = 0

    def renew(self) -> None:
        """Read the certificate again, for new connections; if that fails all stays as it was."""
        if self.tls is None:
            return
        try:
            # A pair that does not fit would leave the context with half of it.
            server_context(self._options)
            load_certificate(self.tls, self._options)
            log.info("TLS: certificate read again, for new connections")
        except OptionError as error:
            log.error("SIGHUP: the certificate stays as it was: %s", error)

    def gate(self, secure: bool) -> Gate | None:
        """What the requests of an HTTP connection have to pass, if anything."""
        if secure or self._options.tls_required != "true":
            return None
        refusal = plain_http_refusal(self.https_port)
        return lambda _request, _route: refusal

    def begin(self, data: bytes) -> Tls | None:
        """Judge a connection by its first bytes: TLS, or None for a plain one."""
        if self.tls is not None and data[0] == _HANDSHAKE:
            return Tls(self.tls)
        if self._options.tls_required != "false":
            raise ProtocolError("E_INVALID", "TLS is required")
        return None
