"""TLS contexts built from options: for servers, and for clients.

    --tls-client-auth-policy   (none)            clients are not asked for a certificate
                               require           it, or one that signed it, is in the file that
                                                 --tls-root-ca-file names
                               require-verify    an authority in that file signed it

nsqd's ``require`` accepts any certificate, even one the client has just made.  Python's ssl module
cannot request a certificate without verifying it, and accepting any would prove nothing.

Versions below 1.2 need suites with SHA-1 and OpenSSL's security level 0.  The suites are in order
of preference, so a client gets the best one it supports; from 1.2 on Python's list is used.
"""

from __future__ import annotations

import ssl
import warnings

from penstock.errors import OptionError
from penstock.settings.daemon import TLS_VERSIONS, TlsOptions

_VERSION_1_2 = TLS_VERSIONS["tls1.2"]
# In Go's order of preference: clients get the suites that they had with nsqd.
_SUITES = (
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE+AESGCM:ECDHE+CHACHA20:"
    "ECDHE+AES128:ECDHE+AES256:AESGCM:AES:!aNULL:!eNULL:!PSK:!SRP:!aDSS:!AESCCM:@SECLEVEL=0"
)


def server_context(options: TlsOptions) -> ssl.SSLContext | None:
    """The context for clients; None without a certificate.  Raises OptionError."""
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A peer could make us renegotiate keys forever.
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


def client_context(
    root_ca_file: str = "",
    cert: str = "",
    key: str = "",
    *,
    insecure: bool = False,
    version: str = "tls1.2",
    flags: str = "",
) -> ssl.SSLContext:
    """The context of a client: the authorities of a file, else the system's.  Raises OptionError.

    ``insecure`` accepts any certificate; errors name the files by flags that begin with ``flags``.
    """
    if root_ca_file or insecure:
        # Reading the system's authorities would take 50 ms.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = ssl.create_default_context()
    if root_ca_file:
        _load_authorities(context, root_ca_file, flags)
    context.minimum_version = ssl.TLSVersion(TLS_VERSIONS[version])
    # An explicit authority is trusted even if it is an intermediate one, as Go does.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert:
        _load_chain(context, cert, key, flags)
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
        context.load_cert_chain(cert, key or None, password=_refuse_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise _unusable({"cert": cert, "key": key}, flags, error) from None


def _load_authorities(context: ssl.SSLContext, path: str, flags: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise _unusable({"root-ca-file": path}, flags, error) from None


def _unusable(files: dict[str, str], flags: str, error: Exception) -> OptionError:
    named = [f"--{flags}-{name} {path}" if flags else path for name, path in files.items() if path]
    text = getattr(error, "strerror", None) or str(error)
    return OptionError(f"failed to build TLS config - {', '.join(named)}: {text}")


def _refuse_password() -> str:
    # OpenSSL would prompt on the terminal, and wait.
    raise ValueError("the key has a password")
