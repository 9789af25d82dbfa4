"""Go's ``%q``: how nsqd shows a name in an error text.

Clients match on these texts (``E_BAD_TOPIC PUB topic name "bad$" is not valid``), so the
quoting is exact: printable UTF-8 stays, bytes that are not UTF-8 become ``\\xNN``.
"""

from __future__ import annotations

_NAMED = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def quote(raw: bytes) -> str:
    """Return ``raw`` in double quotes with Go's escapes."""
    text = raw.decode("utf-8", "surrogateescape")
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(char: str) -> str:
    if named := _NAMED.get(char):
        return named
    if char.isprintable():
        return char
    point = ord(char)
    if 0xDC80 <= point <= 0xDCFF:  # surrogateescape: a byte that is not UTF-8
        return f"\\x{point - 0xDC00:02x}"
    if point < 0x20 or point == 0x7F:
        return f"\\x{point:02x}"
    if point < 0x10000:
        return f"\\u{point:04x}"
    return f"\\U{point:08x}"
