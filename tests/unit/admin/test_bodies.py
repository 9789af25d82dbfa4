"""penstock.admin.bodies: what people see of a message's body."""

from __future__ import annotations

import json

import pytest

from penstock.admin.bodies import BODY_SIZE_MAX, HEX_SIZE_MAX, INDENTED_SIZE_MAX, shown


def test_json_is_indented_and_otherwise_as_written() -> None:
    body = b'{"a":1.10,"a":[1,{}, []],"big":123456789012345678901,"\\u0041":"x\\n{,}"}'
    kind, text, size = shown(body, whole=True)
    assert (kind, size) == ("json", len(body))
    assert text == (
        '{\n  "a": 1.10,\n  "a": [\n    1,\n    {},\n    []\n  ],\n'
        '  "big": 123456789012345678901,\n  "\\u0041": "x\\n{,}"\n}'
    )
    assert json.loads(text) == json.loads(body)


@pytest.mark.parametrize("body", [b"[]", b"{}", b'[ {"a" : null } ]', b"[[1,2],[true,false]]"])
def test_indenting_changes_nothing_but_space(body: bytes) -> None:
    kind, text, _ = shown(body, whole=True)
    assert kind == "json"
    assert "".join(text.split()) == "".join(body.decode().split())


@pytest.mark.parametrize(
    "body", [b"", b"12", b'"word"', b"{not json", "grüße\n\t".encode(), b"{}x"]
)
def test_other_text_is_shown_as_it_is(body: bytes) -> None:
    assert shown(body, whole=True) == ("text", body.decode(), len(body))


@pytest.mark.parametrize("body", [b"\x00\x01", b"\xff\xfe", b"a\x1bb", b"\xc3", b"ok \x7f"])
def test_what_is_not_text_is_shown_in_hex(body: bytes) -> None:
    kind, text, size = shown(body, whole=True)
    assert (kind, size) == ("hex", len(body))
    assert bytes.fromhex(text[10:58]) == body


def test_hex_has_offsets_and_characters() -> None:
    text = shown(b"\x00" + b"0123456789abcdef" + b"\xff", whole=True).text
    assert text == (
        "00000000  00 30 31 32 33 34 35 36  37 38 39 61 62 63 64 65  |.0123456789abcde|\n"
        "00000010  66 ff                                             |f.|"
    )


def test_a_cut_within_a_character_is_still_text() -> None:
    body = ("é" * 20).encode()[:-1]
    assert shown(body, whole=False) == ("text", "é" * 19, len(body))
    assert shown(body, whole=True).kind == "hex"


def test_what_is_shown_is_bounded() -> None:
    long = shown(b"x" * (BODY_SIZE_MAX * 2), whole=True)
    assert (long.kind, long.size, len(long.text)) == ("text", BODY_SIZE_MAX, BODY_SIZE_MAX)
    assert shown(b"\x00" * BODY_SIZE_MAX, whole=True).size == HEX_SIZE_MAX
    assert shown(b'{"a":1}', whole=False).kind == "text"


def test_json_that_would_grow_without_measure_is_shown_as_text() -> None:
    deep = b"[" * 500 + b",".join(b"1" for _ in range(7000)) + b"]" * 500
    kind, text, _ = shown(deep, whole=True)
    assert (kind, text) == ("text", deep.decode())
    assert len(deep) < BODY_SIZE_MAX < INDENTED_SIZE_MAX
    assert shown(b"[" * 16_000, whole=True).kind == "text"
    assert shown(b"[" * 8_000 + b"]" * 8_000, whole=True).kind == "text"
