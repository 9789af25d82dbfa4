"""Kinds of settings: how a text is parsed, which values are allowed, how a value is shown.

A kind is independent of flags and files.  It raises ``ValueError`` for a wrong text; the caller
adds where the text came from, and what ``allowed()`` returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Go's units, and days, because delays of a year are common here.
UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_SIZE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,9}))? ?([A-Za-z]*)")
_INT64_MAX = 2**63 - 1
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h|d)")
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a Go duration: ``250ms``, ``1h30m``, ``1.5s``, ``-2s``, ``0``.

    ``-1`` needs no unit: NSQ uses it for "off" where that is allowed.
    """
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if digits == "0" or text == "-1":
        return sign * int(digits)
    total_ns = offset = 0
    while part := _PART.match(digits, offset):
        whole, fraction, unit = part[1], part[2] or "", part[3]
        if not whole and not fraction:
            break
        unit_ns = UNIT_NS[unit]
        total_ns += int(whole or "0") * unit_ns + int(fraction or "0") * unit_ns // 10 ** len(
            fraction
        )
        offset = part.end()
    if not digits or offset != len(digits) or total_ns > _INT64_MAX:
        raise ValueError(text)
    return sign * total_ns


def format_duration(duration_ns: int) -> str:
    """Return a duration as a person would write it: ``1h30m``, ``250ms``, ``365d``."""
    if duration_ns <= 0:
        return str(duration_ns) if duration_ns in (0, -1) else "-" + format_duration(-duration_ns)
    days, hours = divmod(duration_ns, UNIT_NS["d"])
    if hours == 0 and days > 1:
        return f"{days}d"
    text, left_ns = "", duration_ns
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        count, left_ns = divmod(left_ns, UNIT_NS[unit])
        if count:
            text += f"{count}{unit}"
    return text


def parse_size(text: str) -> int:
    """Return the bytes of ``10GB``, ``1.5 MiB`` or ``4096``."""
    found = _SIZE.fullmatch(text)
    unit = None if found is None else _SIZE_UNITS.get(found[3].upper())
    if found is None or unit is None:
        raise ValueError(text)
    fraction = found[2] or ""
    size: int = int(found[1]) * unit + int(fraction or "0") * unit // int(10 ** len(fraction))
    if size > _INT64_MAX:
        raise ValueError(text)
    return size


def format_size(size: int) -> str:
    """Return a size as ``parse_size`` reads it, in the largest unit that divides it."""
    for unit in ("TB", "TiB", "GB", "GiB", "MB", "MiB", "KB", "KiB"):
        count, odd = divmod(size, _SIZE_UNITS[unit.upper()])
        if count and not odd:
            return f"{count}{unit}"
    return str(size)


def parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(text)


def parse_int(text: str) -> int:
    """As Go's flags do: decimal, 0x, 0o, 0b, and a leading 0 for octal."""
    if re.fullmatch(r"[+-]?0[0-7_]+", text):
        return int(text, 8)
    return int(text, 0)


def format_float(value: float) -> str:
    """As Go's ``%v`` does for the numbers used here: ``2``, ``0.99``."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value)


def _string(value: object) -> str:
    """Return the string of a TOML file for a setting that TOML has no type for."""
    if isinstance(value, str):
        return value
    raise ValueError(value)


def _bounds(low: str | None, high: str | None) -> str:
    if low is not None and high is not None:
        return f"from {low} to {high}"
    if low is not None:
        return f"{low} or more"
    return f"{high} or less" if high is not None else ""


class Text:
    """Any string."""

    kind = "string"
    noun = "a string"
    bare: str | None = None  # what the flag means without a value; None: it needs one

    def parse(self, text: str) -> Any:
        """Return the value of ``text``; raises ValueError if it is not allowed."""
        return text

    def convert(self, value: object) -> Any:
        """Return the setting's value for a ``value`` of a TOML file."""
        return self.parse(_string(value))

    def show(self, value: Any) -> str:
        """Return the text that ``parse`` turns into ``value``."""
        return str(value)

    def to_json(self, value: Any) -> Any:
        """Return ``value`` as NSQ's ``/config`` shows it."""
        return value

    def allowed(self) -> str:
        """Return which values are allowed, as text after "must be"."""
        limits = self.limits()
        return f"{self.noun} {limits}".strip()

    def limits(self) -> str:
        """Return the range alone, for tables; empty if any value of the kind is allowed."""
        return ""


class Bool(Text):
    kind = "bool"
    noun = "true or false"
    bare = "true"

    def parse(self, text: str) -> bool:
        return parse_bool(text)

    def convert(self, value: object) -> bool:
        # NSQ reads the integer 0 as true, so integers are refused.
        return value if isinstance(value, bool) else parse_bool(_string(value))

    def show(self, value: Any) -> str:
        return "true" if value else "false"


class Int(Text):
    """``checked=False``: the range is documented here but enforced elsewhere, with NSQ's texts."""

    kind = "int"
    noun = "an integer"

    def __init__(
        self, minimum: int | None = None, maximum: int | None = None, *, checked: bool = True
    ) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.checked = checked

    def parse(self, text: str) -> int:
        return self._within(parse_int(text))

    def convert(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return self._within(value)
        return self.parse(_string(value))

    def _within(self, value: int) -> int:
        low = -_INT64_MAX if self.minimum is None or not self.checked else self.minimum
        high = _INT64_MAX if self.maximum is None or not self.checked else self.maximum
        if not low <= value <= high:
            raise ValueError(value)
        return value

    def limits(self) -> str:
        low = None if self.minimum is None else str(self.minimum)
        high = None if self.maximum is None else str(self.maximum)
        return _bounds(low, high)


class SetInt(Int):
    """An integer for which it matters whether it was set; None: it was not, and ``unset`` holds."""

    def __init__(self, minimum: int, maximum: int, unset: int) -> None:
        super().__init__(minimum, maximum)
        self.unset = unset

    def show(self, value: Any) -> str:
        return str(self.to_json(value))

    def to_json(self, value: Any) -> Any:
        return self.unset if value is None else value


class Float(Text):
    kind = "float"
    noun = "a number"

    def __init__(
        self, minimum: float | None = None, maximum: float | None = None, *, checked: bool = True
    ) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.checked = checked

    def parse(self, text: str) -> float:
        value = float(text)
        low = -1e300 if self.minimum is None or not self.checked else self.minimum
        high = 1e300 if self.maximum is None or not self.checked else self.maximum
        if not low <= value <= high:  # not-a-number fails here too
            raise ValueError(text)
        return value

    def convert(self, value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self.parse(repr(value))
        return self.parse(_string(value))

    def show(self, value: Any) -> str:
        return format_float(value)

    def limits(self) -> str:
        low = None if self.minimum is None else format_float(self.minimum)
        high = None if self.maximum is None else format_float(self.maximum)
        return _bounds(low, high)


class Duration(Text):
    kind = "duration"
    noun = "a duration such as 250ms or 1h30m,"

    def __init__(self, minimum_ns: int = 0, maximum_ns: int | None = None) -> None:
        self.minimum_ns = minimum_ns
        self.maximum_ns = maximum_ns

    def parse(self, text: str) -> int:
        value_ns = parse_duration(text)
        high_ns = _INT64_MAX if self.maximum_ns is None else self.maximum_ns
        if not self.minimum_ns <= value_ns <= high_ns:
            raise ValueError(text)
        return value_ns

    def convert(self, value: object) -> int:
        # NSQ reads an integer in a config file as milliseconds.
        if isinstance(value, int) and not isinstance(value, bool):
            return self.parse(f"{value}ms")
        return self.parse(_string(value))

    def show(self, value: Any) -> str:
        return format_duration(value)

    def limits(self) -> str:
        low = format_duration(self.minimum_ns)
        high = None if self.maximum_ns is None else format_duration(self.maximum_ns)
        return _bounds(low, high)


class Size(Int):
    kind = "size"
    noun = "a size such as 64MB or 10GiB,"

    def parse(self, text: str) -> int:
        return self._within(parse_size(text))

    def show(self, value: Any) -> str:
        return format_size(value)


class DurationRange(Text):
    """Two durations, ``1s..15m``: a wait and the longest one it grows to.  Empty: none."""

    kind = "duration range"
    noun = '"" or two durations such as 1s..15m, the second not shorter,'

    def __init__(self, minimum_ns: int, maximum_ns: int) -> None:
        self.minimum_ns = minimum_ns
        self.maximum_ns = maximum_ns

    def parse(self, text: str) -> tuple[int, int] | None:
        if not text:
            return None
        first, dots, last = text.partition("..")
        first_ns, last_ns = parse_duration(first), parse_duration(last)
        if not dots or not self.minimum_ns <= first_ns <= last_ns <= self.maximum_ns:
            raise ValueError(text)
        return first_ns, last_ns

    def show(self, value: Any) -> str:
        if value is None:
            return ""
        return f"{format_duration(value[0])}..{format_duration(value[1])}"

    def to_json(self, value: Any) -> Any:
        return self.show(value)

    def limits(self) -> str:
        return _bounds(format_duration(self.minimum_ns), format_duration(self.maximum_ns))


class Choice(Text):
    """One of a few words.  ``codes``: the number that NSQ's ``/config`` shows for each, if any."""

    kind = "choice"
    noun = ""

    def __init__(
        self,
        codes: Mapping[str, int | None],
        *,
        aliases: Mapping[str, str] | None = None,
        bare: str | None = None,
    ) -> None:
        self.codes = codes
        self.aliases = aliases or {}
        self.bare = bare

    def parse(self, text: str) -> str:
        word = text.lower()
        word = self.aliases.get(word, word)
        if word not in self.codes:
            raise ValueError(text)
        return word

    def convert(self, value: object) -> str:
        if isinstance(value, bool):  # tls_required = true
            return self.parse(str(value))
        return self.parse(_string(value))

    def to_json(self, value: Any) -> Any:
        code = self.codes[value]
        return value if code is None else code

    def limits(self) -> str:
        return "one of " + ", ".join(word or '""' for word in self.codes)


class Listed(Text):
    """A tuple of values of one kind; ``descending`` sorts it."""

    def __init__(self, item: Text, *, descending: bool = False) -> None:
        self.item = item
        self.kind = f"{item.kind} list"
        self.noun = f"{item.noun}, or several separated by commas"
        self.descending = descending

    def parse(self, text: str) -> tuple[Any, ...]:
        return self._ordered([self.item.parse(part.strip()) for part in text.split(",") if part])

    def convert(self, value: object) -> tuple[Any, ...]:
        if isinstance(value, list):
            return self._ordered([self.item.convert(part) for part in value])
        return self.parse(_string(value))

    def join(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._ordered([*first, *second])

    def _ordered(self, values: list[Any]) -> tuple[Any, ...]:
        return tuple(sorted(values, reverse=True) if self.descending else values)

    def show(self, value: Any) -> str:
        return ",".join(self.item.show(part) for part in value)

    def to_json(self, value: Any) -> Any:
        return list(value)

    def limits(self) -> str:
        return self.item.limits()
