"""Reads the small JSON objects posted to NSQ's API, with the errors of Go's decoder.

A body is read up to the end of its first value; keys are case-insensitive.
"""

from __future__ import annotations

import json

from penstock.net.http_message import HttpError
from penstock.wire.quote import quote

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


def read_object(body: bytes) -> dict[str, str]:
    """The string members.  Raises HttpError 400 with Go's error text if it is not an object."""
    text = body.decode("utf-8", "replace").lstrip(_SPACE)
    if not text:
        raise HttpError(400, "EOF")
    try:
        value, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, _go_error(text, error)) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise HttpError(400, f"json: cannot unmarshal {_kind(value)} into Go value")
    members: dict[str, str] = {}
    for name, member in value.items():
        if isinstance(member, str):
            members[name.lower()] = member
        elif member is not None and name.lower() in ("topic", "channel", "action"):
            raise HttpError(
                400, f"json: cannot unmarshal {_kind(member)} into Go struct field .{name.lower()}"
            )
    return members


def _go_error(text: str, error: Exception) -> str:
    at = getattr(error, "pos", len(text))
    if at >= len(text) or str(error).startswith("Unterminated"):
        return "unexpected EOF"
    char = {"'": "\\'", '"': '"'}.get(text[at]) or quote(text[at].encode())[1:-1]
    return f"invalid character '{char}' looking for beginning of value"


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
