"""JSON as Go's encoding/json reads and writes it, because NSQ's clients rely on it.

Reading, where it differs from Python's json:
  1. bytes that are not UTF-8 become U+FFFD, one a byte; so does half a surrogate pair
  2. NaN and Infinity are errors
  3. numbers stay text until a field wants one: an integer field takes ``1000``, not ``1000.0``
  4. keys match a field without regard to case (and two characters that fold to s and k)
  5. ``null`` leaves a field as it is; any other value of a wrong type is an error, also when a
     later duplicate of the key would be right; else the last duplicate wins

Writing: compact, UTF-8 as it is, but ``<``, ``>``, ``&`` and the line separators escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NoReturn

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"-?[0-9]+")
# The longest int64 has 20 characters; a longer number is out of range without parsing.
_INTEGER_CHARS_MAX = 20
_FOLD = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_FOLD |= {0x017F: ord("s"), 0x212A: ord("k")}
# The most members and elements, at all depths, of an object that is decoded to fields; clients send
# up to two dozen.  64 KiB of them took 8 ms.
_ITEM_COUNT_MAX = 1024
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_ESCAPED = re.compile("[<>&\u2028\u2029]")
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class Number(str):
    """A number as text; its type depends on the field."""

    __slots__ = ()


class Object(tuple[tuple[str, object], ...]):
    """An object as its pairs, in order, duplicates included."""

    __slots__ = ()


Value = str | int | bool


def decode_object(raw: bytes, fields: Mapping[str, tuple[type, int]]) -> dict[str, Value]:
    """Return the values ``raw`` gives to ``fields``, each a type (and its bits, if int).

    What is absent or null is absent in the result; a top-level null is an empty object.
    Raises ValueError, also for more items than the fields could need: the size of a peer's input
    does not bound the time to decode it.
    """
    if _item_count(raw) > _ITEM_COUNT_MAX and _item_count(_STRING.sub(b"", raw)) > _ITEM_COUNT_MAX:
        raise ValueError(f"more than {_ITEM_COUNT_MAX} members and elements")
    values: dict[str, Value] = {}
    for key, value in _pairs(decode(raw)):
        name = key.translate(_FOLD)
        if name in fields and value is not None:
            kind, bits = fields[name]
            values[name] = typed(value, kind, bits)
    return values


def _item_count(raw: bytes) -> int:
    """An upper bound of the items in ``raw``; each level counts as one."""
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def members(value: object) -> dict[str, object]:
    """The members of an object, null ones left out, by their names in lower case.

    For objects with lists and objects in them; ``typed`` checks the plain values.
    """
    return {key.translate(_FOLD): item for key, item in _pairs(value) if item is not None}


def _pairs(value: object) -> Object:
    if value is None:
        return Object()
    if not isinstance(value, Object):
        raise ValueError("not an object")
    return value


def decode(raw: bytes) -> object:
    """Decode ``raw``: Object, list, str, Number, bool or None.

    Raises ValueError, also for nesting deeper than Python's recursion limit.  A byte that is not
    UTF-8 is half a surrogate pair in the result, which ``typed`` replaces.
    """
    text = raw.decode("utf-8", "surrogateescape")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode(value: object) -> bytes:
    """Return ``value`` as Go would marshal it."""
    text = _ENCODER.encode(value)
    # Rare, and str.translate would cost more than everything else.
    if _ESCAPED.search(text):
        text = text.translate(_ESCAPES)
    return text.encode("utf-8", "replace")


def typed(value: object, kind: type, bits: int = 64) -> Value:
    """``value`` as a ``kind``; raises ValueError if it is not one."""
    if kind is int:
        if isinstance(value, Number):
            return _integer(value, bits)
    elif kind is bool:
        if isinstance(value, bool):
            return value
    elif isinstance(value, str) and not isinstance(value, Number):
        return _SURROGATE.sub(_REPLACEMENT, value)
    raise ValueError(f"not of type {kind.__name__}")


def _integer(number: Number, bits: int) -> int:
    if len(number) <= _INTEGER_CHARS_MAX and _INTEGER.fullmatch(number):
        value = int(number)
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return value
    raise ValueError(f"not an int{bits}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_DECODER = json.JSONDecoder(
    object_pairs_hook=Object,
    parse_int=Number,
    parse_float=Number,
    parse_constant=_refuse,
)
