"""TLS contexts made of the options: for clients of a daemon, and for nsqd as a client.

    --tls-client-auth-policy   (none)            clients are not asked for a certificate
                               require           it, or one that signed it, is in the file that
                                                 --tls-root-ca-file names
                               require-verify    an authority in that file signed it

nsqd's ``require`` takes any certificate, even one made up on the spot.  OpenSSL as Python offers
it cannot ask for a certificate without judging it, and to take any proves nothing.

Versions below 1.2 need suites with SHA-1 and OpenSSL's security level 0.  The suites stand in
order of preference, so a client that can do better gets better; from 1.2 on Python's list holds.
"""

from __future__ import annotations

import ssl
import warnings
from typing import Protocol

from penstock.errors import OptionError
from penstock.settings.daemon import TLS_VERSIONS, TlsOptions

_VERSION_1_2 = TLS_VERSIONS["tls1.2"]
# Go's first choices first: what nsqd's clients had, they get.
_SUITES = (
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE+AESGCM:ECDHE+CHACHA20:"
    "ECDHE+AES128:ECDHE+AES256:AESGCM:AES:!aNULL:!eNULL:!PSK:!SRP:!aDSS:!AESCCM:@SECLEVEL=0"
)


class LookupdTlsOptions(Protocol):
    """How nsqd speaks TLS with nsqlookupds."""

    @property
    def lookupd_tls(self) -> bool: ...
    @property
    def lookupd_tls_root_ca_file(self) -> str: ...
    @property
    def lookupd_tls_cert(self) -> str: ...
    @property
    def lookupd_tls_key(self) -> str: ...


def server_context(options: TlsOptions) -> ssl.SSLContext | None:
    """The context for clients; None without a certificate.  Raises OptionError."""
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The peer could have us compute new keys for ever.
    context.options |= ssl.OP_NO_RENEGOTIATION
    _set_version(context, TLS_VERSIONS[options.tls_min_version])
    load_certificate(context, options)
    if options.tls_client_auth_policy:
        if not options.tls_root_ca_file:
            raise OptionError(
                f"--tls-client-auth-policy={options.tls_client_auth_policy} needs "
                "--tls-root-ca-file: certificates are always verified"
            )
        context.verify_mode = ssl.CERT_REQUIRED
        if options.tls_client_auth_policy == "require":
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if options.tls_root_ca_file:
        _load_authorities(context, options.tls_root_ca_file, "tls")
    return context


def load_certificate(context: ssl.SSLContext, options: TlsOptions) -> None:
    """Read certificate and key; connections made from now on use them.  Raises OptionError."""
    _load_chain(context, options.tls_cert, options.tls_key, "tls")


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """The context for requests to auth servers: the given authority, else the system's."""
    context = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
    # An explicit authority is trusted even if it is an intermediate one, as Go does.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def lookupd_context(options: LookupdTlsOptions) -> ssl.SSLContext | None:
    """The context for connections to nsqlookupds; None: they are plain.  Raises OptionError."""
    if not options.lookupd_tls:
        return None
    authority = options.lookupd_tls_root_ca_file
    if authority:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, authority, "lookupd-tls")
    else:
        context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if options.lookupd_tls_cert:
        _load_chain(context, options.lookupd_tls_cert, options.lookupd_tls_key, "lookupd-tls")
    return context


def _set_version(context: ssl.SSLContext, version: int) -> None:
    with warnings.catch_warnings():
        # Python warns of 1.0 and 1.1; they are NSQ's default, for its oldest clients.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion(version)
    if version < _VERSION_1_2:
        context.set_ciphers(_SUITES)


def _load_chain(context: ssl.SSLContext, cert: str, key: str, flags: str) -> None:
    try:
        context.load_cert_chain(cert, key, password=_refuse_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        files = f"--{flags}-cert {cert}, --{flags}-key {key}"
        raise OptionError(f"failed to build TLS config - {files}: {_text(error)}") from None


def _load_authorities(context: ssl.SSLContext, path: str, flags: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            f"failed to build TLS config - --{flags}-root-ca-file {path}: {_text(error)}"
        ) from None


def _refuse_password() -> str:
    # OpenSSL would ask on the terminal, and wait.
    raise ValueError("the key has a password")


def _text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
