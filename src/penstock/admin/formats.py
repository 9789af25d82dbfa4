"""Numbers and times formatted for people; the templates' filters.

    count      1234567        1,234,567
    brief      1234567        1.23 M            axes and large tiles
    rate       0.25           0.25              events per second, without the unit
    span       90_000_000_000 1 min 30 s        nanoseconds
    size       2048           2 KiB

``None``, a value that a node did not report, is shown as a dash; so is anything that is not a
number, because some values come from peers unchecked.

Cells are whole ``<td>`` elements, built here because a template macro takes four times as long,
and the page of 2,000 topics has 20,000 cells.
"""

from __future__ import annotations

import datetime
from typing import TypeGuard
from urllib.parse import quote

from markupsafe import Markup

UNKNOWN = "\N{EN DASH}"
# No count is larger, and floats are far from exact.
NUMBER_MAX = 1e30
_THOUSANDS = ("", " k", " M", " G", " T", " P", " E")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# (minimum, divisor, unit)
_SHORT_SPANS = ((1_000_000_000, 1e9, "s"), (1_000_000, 1e6, "ms"), (1_000, 1e3, "µs"), (0, 1, "ns"))
_LONG_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def _known(value: object) -> TypeGuard[float]:
    """Whether it is a number in range."""
    return isinstance(value, int | float) and -NUMBER_MAX < value < NUMBER_MAX


def count(value: float | None) -> str:
    return f"{round(value):,}" if _known(value) else UNKNOWN


def brief(value: float | None) -> str:
    """Three significant digits."""
    if not _known(value):
        return UNKNOWN
    power = 0
    scaled = float(value)
    while abs(scaled) >= 999.5 and power < len(_THOUSANDS) - 1:
        scaled /= 1000
        power += 1
    return _three_digits(scaled) + _THOUSANDS[power]


def rate(value: float | None) -> str:
    if not _known(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 999.5 else _three_digits(value)


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    size = abs(value)
    places = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def span(value_ns: float | None) -> str:
    """A duration: two units from one minute, one below."""
    if not _known(value_ns):
        return UNKNOWN
    if value_ns >= 60_000_000_000:
        return _long_span(int(value_ns // 1_000_000_000))
    if value_ns <= 0:
        return "0 s"
    for least, divisor, unit in _SHORT_SPANS:
        if value_ns >= least:
            return f"{_three_digits(value_ns / divisor)} {unit}"
    return f"{value_ns} ns"


def _long_span(seconds: int) -> str:
    parts: list[str] = []
    for divisor, unit in _LONG_SPANS:
        amount, seconds = divmod(seconds, divisor)
        if amount or parts:
            parts.append(f"{amount} {unit}" if amount else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def span_ms(value_ms: float | None) -> str:
    return span(value_ms * 1_000_000) if _known(value_ms) else UNKNOWN


def span_s(value_s: float | None) -> str:
    return span(value_s * 1_000_000_000) if _known(value_s) else UNKNOWN


def size(value: float | None) -> str:
    if not _known(value):
        return UNKNOWN
    power = 0
    scaled = float(value)
    while scaled >= 1023.5 and power < len(_SIZES) - 1:
        scaled /= 1024
        power += 1
    return f"{_three_digits(scaled)} {_SIZES[power]}"


def moment(at_ms: float | None) -> str:
    """A point in time, in UTC."""
    if not _known(at_ms):
        return UNKNOWN
    try:
        at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return UNKNOWN
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def clock(at_ms: float | None) -> str:
    """The time of day, in UTC."""
    text = moment(at_ms)
    return text if text == UNKNOWN else text.partition(" ")[2]


def quantile(value: float | None) -> str:
    """0.99 is p99."""
    return f"p{value * 100:.6g}" if _known(value) else UNKNOWN


def several(value: float, noun: str) -> str:
    """1 topic, 2 topics."""
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}s"


def segment(name: str) -> str:
    """A name as a segment of a path; a name that is not valid text does not raise."""
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = name.encode("utf-8", "replace")
    return quote(raw, safe=":[]!$&'()*+,;=~@")


def only(name: str) -> str:
    """A pattern for a form's field that accepts only this name."""
    return "".join(c if c.isalnum() or c in "_-#" else f"[{c}]" for c in name)


def lag(value_s: float | None, is_open: bool = False) -> str:
    """A lag; with ``is_open`` it is at least that much."""
    if not _known(value_s):
        return UNKNOWN
    return f"\N{GREATER-THAN OR EQUAL TO} {span_s(value_s)}" if is_open else span_s(value_s)


def _cell(text: str, zero: bool) -> Markup:
    return Markup(f'<td class="number zero">{text}' if zero else f'<td class="number">{text}')


def count_cell(value: float | None) -> Markup:
    return _cell(count(value), not value)


def rate_cell(value: float | None) -> Markup:
    return _cell(rate(value), not value)


def size_cell(value: float | None) -> Markup:
    return _value_cell(size(value), value)


def lag_cell(value_s: float | None, is_open: bool = False) -> Markup:
    return _value_cell(lag(value_s, is_open), value_s)


def _value_cell(text: str, value: float | None) -> Markup:
    """A cell with its sort key, for a text that does not sort by itself."""
    if not value or not _known(value):
        return _cell(text, True)
    return Markup(f'<td class="number" data-value="{float(value):.3f}">{text}')


FILTERS = {
    "count": count,
    "brief": brief,
    "rate": rate,
    "span_ms": span_ms,
    "span_s": span_s,
    "size": size,
    "moment": moment,
    "quantile": quantile,
    "several": several,
    "segment": segment,
    "only": only,
    "lag": lag,
    "count_cell": count_cell,
    "rate_cell": rate_cell,
    "size_cell": size_cell,
    "lag_cell": lag_cell,
}
