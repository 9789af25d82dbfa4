"""Message bodies formatted for people.

    json      indented; numbers, escapes and repeated keys stay as written
    text      UTF-8 without control characters
    hex       offsets, bytes in hex, characters, 16 bytes a line

The size is bounded for any body: JSON that would become too long by indenting is shown as text.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

# Requested from nsqd for each message.
BODY_SIZE_MAX = 16 * 1024
HEX_SIZE_MAX = 2 * 1024
INDENTED_SIZE_MAX = 8 * BODY_SIZE_MAX

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# A string, punctuation, space, or anything else: a number or a word.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|\s+|[^\s"{}\[\],:]+', re.S)


class Shown(NamedTuple):
    kind: str
    text: str
    size: int  # bytes of the body that are shown


def shown(body: bytes, whole: bool) -> Shown:
    """Format ``body``; without ``whole`` it is the beginning of a longer one."""
    text = _text(body[:BODY_SIZE_MAX], whole and len(body) <= BODY_SIZE_MAX)
    if text is None:
        head = body[:HEX_SIZE_MAX]
        return Shown("hex", _hex(head), len(head))
    if whole and len(body) <= BODY_SIZE_MAX:
        indented = _indented(text)
        if indented is not None:
            return Shown("json", indented, len(body))
    return Shown("text", text, min(len(body), BODY_SIZE_MAX))


def _text(body: bytes, whole: bool) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        # The cut may split a character, which has at most four bytes.
        if whole or len(body) - error.start > 3 or error.reason != "unexpected end of data":
            return None
        text = body[: error.start].decode()
    return None if _CONTROL.search(text) else text


def _indented(text: str) -> str | None:
    """A JSON object or list on many lines; None if it is not one or would be too long."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = size = 0
    fresh = False  # just after an opening bracket
    for token in _TOKEN.findall(text):
        if token.isspace():
            continue
        if token in "}]":
            depth -= 1
            part = token if fresh else f"\n{'  ' * depth}{token}"
        else:
            part = f"\n{'  ' * depth}{token}" if fresh else token
        fresh = token in "{["
        if fresh:
            depth += 1
        elif token == ",":
            part += f"\n{'  ' * depth}"
        elif token == ":":
            part += " "
        parts.append(part)
        size += len(part)
        if size > INDENTED_SIZE_MAX:
            return None
    return "".join(parts)


def _hex(body: bytes) -> str:
    lines = []
    for at in range(0, len(body), 16):
        row = body[at : at + 16]
        halves = f"{row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}"
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {halves}  |{characters}|")
    return "\n".join(lines)
