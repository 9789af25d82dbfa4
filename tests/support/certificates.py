"""Certificates for one test run: an authority, a server and clients it signs, and others.

pki = Pki(folder)
Nsqd(path, *pki.options())                      # a certificate, HTTPS on a port of its own
pki.client_context()                            # trusts the authority
pki.client_context("bob")                       # and presents a certificate with that name
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Pki:
    """Files in ``folder``: ca.pem, and <name>.pem with <name>.key for each certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ca_key = _new_key()
        self._ca_name = _name("test authority")
        self._write("ca", self._ca_key, self._sign(self._ca_key, self._ca_name, authority=True))
        self.issue("server")

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def ca(self) -> str:
        return self.path("ca.pem")

    def issue(self, name: str, *, age_days: int = 0) -> str:
        """A certificate signed by the authority, with ``name`` as its common name."""
        key = _new_key()
        self._write(name, key, self._sign(key, _name(name), age_days=age_days))
        return name

    def issue_self_signed(self, name: str) -> str:
        key = _new_key()
        certificate = _builder(_name(name), _name(name), key).sign(key, hashes.SHA256())
        self._write(name, key, certificate)
        return name

    def options(self, name: str = "server") -> tuple[str, ...]:
        """Flags of an nsqd with the certificate ``name``."""
        return (
            f"--tls-cert={self.path(name)}.pem",
            f"--tls-key={self.path(name)}.key",
            "--https-address=127.0.0.1:0",
        )

    def client_context(self, name: str = "") -> ssl.SSLContext:
        """A context that trusts the authority and presents the certificate ``name``, if any."""
        context = ssl.create_default_context(cafile=self.ca)
        if name:
            context.load_cert_chain(f"{self.path(name)}.pem", f"{self.path(name)}.key")
        return context

    def server_context(self, name: str = "server") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{self.path(name)}.pem", f"{self.path(name)}.key")
        return context

    def _sign(
        self, key: rsa.RSAPrivateKey, name: x509.Name, *, authority: bool = False, age_days: int = 0
    ) -> x509.Certificate:
        builder = _builder(name, self._ca_name, key, age_days)
        basic = x509.BasicConstraints(ca=authority, path_length=None)
        builder = builder.add_extension(basic, critical=True)
        if not authority:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._ca_key, hashes.SHA256())

    def _write(self, name: str, key: rsa.RSAPrivateKey, certificate: x509.Certificate) -> None:
        pem = serialization.Encoding.PEM
        (self.folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
        (self.folder / f"{name}.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, age_days: int = 0
) -> x509.CertificateBuilder:
    """Valid for a month, from ``age_days`` and a day ago."""
    begin = datetime.datetime.now(datetime.UTC) - (1 + age_days) * _DAY
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + 30 * _DAY)
    )
