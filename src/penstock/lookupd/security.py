"""TLS of one nsqlookupd.

    first byte 0x16, a TLS handshake    TLS, if there is a certificate
    anything else                       plain, unless --tls-required

So nsqds can switch to TLS one by one, on the same port, before plain peers are refused.  NSQ's
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
    """TLS state that all connections share, built from the options.  Raises OptionError."""

    def __init__(self, options: LookupdOptions) -> None:
        self._options = options
        self.tls: SSLContext | None = server_context(options)
        self.https_port = 0

    def renew(self) -> None:
        """Reload the certificate for new connections; on failure keep the old one."""
        if self.tls is None:
            return
        try:
            # Loading a mismatched pair would leave the context with a new certificate, old key.
            server_context(self._options)
            load_certificate(self.tls, self._options)
            log.info("TLS: certificate reloaded, for new connections")
        except OptionError as error:
            log.error("SIGHUP: certificate not reloaded: %s", error)

    def gate(self, secure: bool) -> Gate | None:
        """The check for requests of an HTTP connection, or None."""
        if secure or self._options.tls_required != "true":
            return None
        refusal = plain_http_refusal(self.https_port)
        return lambda _request, _route: refusal

    def begin(self, data: bytes) -> Tls | None:
        """Detect TLS by the first bytes of a connection; None if it is plain."""
        if self.tls is not None and data[0] == _HANDSHAKE:
            return Tls(self.tls)
        if self._options.tls_required != "false":
            raise ProtocolError("E_INVALID", "TLS is required")
        return None
