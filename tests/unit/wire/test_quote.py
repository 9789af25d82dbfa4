"""Go's %q, checked against what Go prints."""

from __future__ import annotations

import pytest

from penstock.wire.quote import quote


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"", '""'),
        (b"bad$", '"bad$"'),
        (b"test$%^&", '"test$%^&"'),
        (b'say "hi"\\', r'"say \"hi\"\\"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x00\x1f\x7f", r'"\x00\x1f\x7f"'),
        ("ünïcödé ☃".encode(), '"ünïcödé ☃"'),
        (b"\xff\xc3", r'"\xff\xc3"'),
        (b"\xe2\x82x", r'"\xe2\x82x"'),
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),
        ("\u00a0\u200b\ufeff".encode(), r'"\u00a0\u200b\ufeff"'),
        ("\U000e0001".encode(), r'"\U000e0001"'),
        ("\U0001f600".encode(), '"\U0001f600"'),
    ],
)
def test_quoting_is_gos(raw: bytes, quoted: str) -> None:
    assert quote(raw) == quoted


def test_every_byte_quotes_to_ascii_or_itself() -> None:
    for byte in range(256):
        inside = quote(bytes([byte]))[1:-1]
        assert inside.isascii()
        assert inside.isprintable()
