"""The TLS context of everything of ours that is a client."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from penstock.errors import OptionError
from penstock.net.tls import client_context


def test_it_verifies_unless_told_otherwise() -> None:
    context = client_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    careless = client_context(insecure=True)
    assert (careless.verify_mode, careless.check_hostname) == (ssl.CERT_NONE, False)


def test_the_oldest_version_is_an_option() -> None:
    assert client_context(insecure=True, version="tls1.3").minimum_version == (
        ssl.TLSVersion.TLSv1_3
    )


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    with pytest.raises(OptionError, match=r"TLS config - /none/ca\.pem: No such file"):
        client_context("/none/ca.pem")
    with pytest.raises(OptionError, match=r"- --http-client-tls-root-ca-file .*empty\.pem: "):
        client_context(str(empty), insecure=True, flags="http-client-tls")
    with pytest.raises(OptionError, match=r"- --x-cert /none/a, --x-key /none/b: No such file"):
        client_context(cert="/none/a", key="/none/b", insecure=True, flags="x")
