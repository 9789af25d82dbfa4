from __future__ import annotations

import pytest

from penstock.wire.names import is_ephemeral, is_valid_name

VALID = ["a", "a" * 64, "a.b_c-D9", ".", "..", "t#ephemeral", "a" * 54 + "#ephemeral"]
INVALID = [
    "",
    "a" * 65,
    "a" * 55 + "#ephemeral",
    "#ephemeral",
    "a#ephemeral#ephemeral",
    "a#other",
    "a b",
    "a\n",
    "a#ephemeral\n",
    "test$%^&",
    "é",
    "\u0661",
    "a/b",
    "a\x00",
]


@pytest.mark.parametrize("name", VALID)
def test_a_valid_name_is_accepted_as_text_and_as_bytes(name: str) -> None:
    assert is_valid_name(name)
    assert is_valid_name(name.encode())


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_name_is_refused_as_text_and_as_bytes(name: str) -> None:
    assert not is_valid_name(name)
    assert not is_valid_name(name.encode())


def test_every_single_byte_is_judged_as_nsqs_expression_does() -> None:
    allowed = b".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
    assert bytes(b for b in range(256) if is_valid_name(bytes([b]))) == bytes(sorted(allowed))


def test_only_the_suffix_makes_a_name_ephemeral() -> None:
    assert is_ephemeral("t#ephemeral")
    assert is_ephemeral(b"t#ephemeral")
    assert not is_ephemeral("ephemeral")
    assert not is_ephemeral(b"t")
