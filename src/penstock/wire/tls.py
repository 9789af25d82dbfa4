"""A TLS stream: encrypts and decrypts between buffers in memory.

The connection keeps its transport, its write limits and its timers; ``loop.start_tls`` would
replace the first two and needs a task, for the same CPU per byte (0.75 ns, measured with uvloop).

Rule 1: no I/O.  The caller must send what the methods and ``take_output()`` return.
Rule 2: a failure is a StreamError, with the text of Go's TLS where clients may match on it.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence
from typing import Any

from penstock.errors import StreamError
from penstock.wire.compression import Part, joined

_READ_SIZE = 256 << 10
_ALERT, _HANDSHAKE = 0x15, 0x16

_VERSIONS = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}
# OpenSSL names of the suites that nsqd shows by name.
_SUITES = {
    "RC4-SHA": "TLS_RSA_WITH_RC4_128_SHA",
    "DES-CBC3-SHA": "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA",
    "AES256-SHA": "TLS_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-ECDSA-RC4-SHA": "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "ECDHE-ECDSA-AES128-SHA": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "ECDHE-ECDSA-AES256-SHA": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-RC4-SHA": "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "ECDHE-RSA-DES-CBC3-SHA": "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "ECDHE-RSA-AES128-SHA": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "ECDHE-RSA-AES256-SHA": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
}
_numbers: dict[str, int] = {}
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "client didn't provide a certificate",
    "UNSUPPORTED_PROTOCOL": "client offered only unsupported versions",
    "NO_SHARED_CIPHER": "no cipher suite supported by both client and server",
}
# X509_V_ERR_...: the certificate is self-signed, or its issuer is not known here.
_UNKNOWN_AUTHORITY = {18, 19, 20, 21}
_EXPIRED = {9, 10}


class Tls:
    """One connection's TLS; by default the server's side."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool = True) -> None:
        self.ended = False  # the peer has sent close_notify
        self._context = context
        # Only clients are known to start with something other than TLS.
        self._head = b"" if server_side else bytes((_HANDSHAKE, 3))
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.waiting = False
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)

    def handshake(self, data: bytes) -> bool:
        """Process the peer's bytes; return whether the handshake is done.  Raises StreamError."""
        if len(self._head) < 2:
            self._head = (self._head + data)[:2]
            _check_head(self._head)
        self._incoming.write(data)
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, OSError) as error:
            raise StreamError(_reason(error)) from None
        return True

    def receive(self, data: bytes) -> bytes:
        """Decrypt ``data``.  Raises StreamError."""
        incoming, session = self._incoming, self._session
        if self.ended:
            return b""
        incoming.write(data)
        clear: list[bytes] = []
        try:
            # One record at a time; one more read would only cost an exception.
            while not self.ended and (incoming.pending or session.pending()):
                record = session.read(_READ_SIZE)
                clear.append(record)
                self.ended = not record
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except (ssl.SSLError, OSError) as error:
            raise StreamError(_reason(error)) from None
        return clear[0] if len(clear) == 1 else b"".join(clear)

    def receive_into(self, data: bytes, buffer: memoryview) -> int:
        """``receive`` directly into ``buffer``; what does not fit stays pending.

        Returns the size written; ``waiting`` is whether there is more.
        """
        incoming, session = self._incoming, self._session
        incoming.write(data)
        size = 0
        try:
            while not self.ended and size < len(buffer) and (incoming.pending or session.pending()):
                # With a buffer, it returns the number of bytes.
                count = int(session.read(len(buffer) - size, buffer[size:]))
                size += count
                self.ended = not count
        except ssl.SSLWantReadError:
            self.waiting = False
            return size
        except ssl.SSLZeroReturnError:
            self.ended = True
        except (ssl.SSLError, OSError) as error:
            raise StreamError(_reason(error)) from None
        self.waiting = bool(incoming.pending or session.pending())
        return size

    def send(self, parts: Sequence[Part]) -> bytes:
        """Encrypt ``parts``."""
        data = joined(parts)
        size = len(data)
        written = self._session.write(data) if size else 0
        while written < size:
            written += self._session.write(memoryview(data)[written:])
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """The bytes that TLS itself has to send: handshake, alerts, new keys."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def close(self) -> bytes:
        """Return the close_notify alert."""
        # Do not wait for the peer's close_notify.
        with contextlib.suppress(ssl.SSLError, OSError):
            self._session.unwrap()
        return self.take_output()

    # What /stats shows

    @property
    def version(self) -> str:
        version = self._session.version() or ""
        return _VERSIONS.get(version, version)

    @property
    def cipher_suite(self) -> str:
        """The suite as nsqd shows it: its name, or its number if nsqd has no name for it."""
        cipher = self._session.cipher()
        name = cipher[0] if cipher is not None else ""
        if name in _SUITES:
            return _SUITES[name]
        if name not in _numbers:
            # Cached: making the list takes longer than all other parts of /stats.
            _numbers.update({c["name"]: c["id"] & 0xFFFF for c in self._context.get_ciphers()})
        return f"Unknown {_numbers.get(name, name)}"

    @property
    def protocol(self) -> str:
        return self._session.selected_alpn_protocol() or ""

    @property
    def common_name(self) -> str:
        """The common name in the client's certificate; empty without one."""
        certificate: Any = self._session.getpeercert() or {}
        names = [pair for part in certificate.get("subject", ()) for pair in part]
        return next((str(value) for key, value in names if key == "commonName"), "")


def _check_head(head: bytes) -> None:
    """Reject at once what is not TLS, with Go's text, which clients show."""
    if (head and head[0] not in (_ALERT, _HANDSHAKE)) or (len(head) > 1 and head[1] >= 0x10):
        raise StreamError("tls: first record does not look like a TLS handshake")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        if error.verify_code in _UNKNOWN_AUTHORITY:
            why = "certificate signed by unknown authority"
        elif error.verify_code in _EXPIRED:
            why = "certificate has expired or is not yet valid"
        return f"tls: failed to verify client certificate: x509: {why}"
    if isinstance(error, ssl.SSLError) and error.reason:
        text = error.reason
        return f"tls: {_REASONS.get(text, text.lower().replace('_', ' '))}"
    return f"tls: {error}"
