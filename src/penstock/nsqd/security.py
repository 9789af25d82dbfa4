"""Security of all connections of one nsqd: certificate, auth servers, HTTP tokens."""

from __future__ import annotations

import logging
from ssl import SSLContext
from typing import TYPE_CHECKING

from penstock.engine.options import Options
from penstock.errors import OptionError
from penstock.net.http_router import Gate, Route, plain_http_refusal
from penstock.net.http_tokens import Tokens, read_tokens
from penstock.net.tls import client_context, load_certificate, server_context

if TYPE_CHECKING:
    from penstock.nsqd.auth import AuthServers

log = logging.getLogger(__name__)


class Security:
    """Created from the options once; ``read_again`` and ``renew`` reload the files."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.tls: SSLContext | None = server_context(options)
        self.tls_required = options.tls_required != "false"
        self.lookupd_tls = lookupd_context(options)
        self.auth: AuthServers | None = None
        if options.auth_http_addresses:
            # Loaded only if used: every module makes a start slower.
            from penstock.nsqd.auth import AuthServers

            self.auth = AuthServers(options)
        self.tokens: Tokens | None = None
        if options.http_auth_token_file:
            self.tokens = Tokens(options.http_auth_token_file)
        self._plain_http_refusal: Route | None = None

    @property
    def reloads(self) -> bool:
        """Whether there are files to reload."""
        return bool(self.tls or self.lookupd_tls or self.tokens)

    @property
    def offers(self) -> frozenset[str]:
        """The upgrades that a client may negotiate."""
        always = frozenset(("snappy", "deflate"))
        return always if self.tls is None else always | {"tls_v1"}

    def read_again(self) -> list[tuple[str, bytes]]:
        """Check that certificate and tokens are valid; return the tokens.

        Blocking.  Raises OptionError.
        """
        server_context(self._options)
        lookupd_context(self._options)
        path = self._options.http_auth_token_file
        return read_tokens(path) if path else []

    def renew(self, tokens: list[tuple[str, bytes]] | None, error: Exception | None) -> None:
        """Apply what ``read_again`` read; if it failed, keep everything as it was.

        On the loop, because OpenSSL's contexts must not change while they are in use.
        """
        try:
            if error is not None:
                raise error
            if self.tls is not None:
                load_certificate(self.tls, self._options)
                log.info("TLS: certificate reloaded, for new connections")
            if self.lookupd_tls is not None:
                self.lookupd_tls = lookupd_context(self._options)
                log.info("TLS: certificate for nsqlookupds reloaded, for new connections")
            if self.tokens is not None and tokens is not None:
                self.tokens.replace(tokens)
                log.info("HTTP: %d tokens", len(tokens))
        except OptionError as failure:
            log.error("SIGHUP: certificate and tokens stay as they were: %s", failure)

    # HTTP

    def refuse_plain_http(self, https_port: int) -> None:
        """With --tls-required=true plain HTTP only returns the HTTPS port."""
        if self._options.tls_required == "true":
            self._plain_http_refusal = plain_http_refusal(https_port)

    def gate(self, secure: bool) -> Gate | None:
        """The check that requests of an HTTP connection must pass, if any."""
        refusal = self._plain_http_refusal
        if refusal is not None and not secure:
            return lambda _request, _route: refusal
        return None if self.tokens is None else self.tokens.gate


def lookupd_context(options: Options) -> SSLContext | None:
    """The context for connections to nsqlookupds; None without TLS.  Raises OptionError."""
    if not options.lookupd_tls:
        return None
    return client_context(
        options.lookupd_tls_root_ca_file,
        options.lookupd_tls_cert,
        options.lookupd_tls_key,
        flags="lookupd-tls",
    )
