"""Charts for the template ``_chart.html``: numbers in, SVG coordinates and text out.

    y of a value     0 at the bottom, the axis' maximum at the top, in hundredths of the plot
    x of a value     0 at the left, 1000 at the right (the newest value); the browser scales both
                     to the plot's size, but not the text

They are drawn here and not in the browser, so that a page has its charts before any script runs
and without scripts; static/chart.js adds a cursor that shows the values.

Rule 1: lines differ by dashes and by a name in the legend, not by colour alone.
Rule 2: an unknown value is a gap, never a zero.
Rule 3: of the values that share a point the largest is drawn, so that peaks stay visible.
Rule 4: each chart has a sentence and a table with the same content.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.admin import formats

WIDTH = 1000
HEIGHT = 100
# A plot is at most about 800 pixels wide.
POINTS_MAX = 360
TICKS_MAX = 4
TABLE_ROWS_MAX = 12
# The dashes of lines 1, 2, 3 ...; the first is solid.
DASHES = ("", "7 3", "2 3", "9 3 2 3")
LINES_MAX = len(DASHES)

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Unit:
    """The format of an axis' values."""

    name: str
    text: Callable[[float | None], str]
    axis: Callable[[float | None], str]
    step_min: float  # between two ticks; closer ticks would have the same label


def _per_second(value: float | None) -> str:
    return formats.UNKNOWN if value is None else f"{formats.rate(value)}/s"


COUNT = Unit("count", formats.count, formats.brief, 1.0)
RATE = Unit("rate", _per_second, formats.brief, 0.1)
SPAN = Unit("span", formats.span_s, formats.span_s, 0.001)


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    path: str
    area: str  # filled below the line; empty if there are other lines
    dashes: str
    now: str
    values: str  # for the cursor: numbers separated by commas, gaps empty


@dataclass(frozen=True, slots=True)
class Tick:
    at: str  # percent from the left, or from the top
    label: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    unit: str
    lines: list[Line]
    ticks: list[Tick]
    times: list[Tick]
    step_s: float
    end_ms: int  # wall-clock time of the newest values; 0: unknown
    summary: str
    table: list[tuple[str, list[str]]]  # time, one value for each line
    empty: bool


def chart(
    title: str,
    lines: Sequence[tuple[str, Values]],
    step_s: float,
    unit: Unit,
    newest: Sequence[float | None] = (),
    end_ms: int = 0,
) -> Chart:
    """A chart of values ``step_s`` apart, the newest last; all lines have equally many.

    ``newest`` are values for the legend that are newer than the last of each line, if any.
    ``end_ms`` is the time of the last values.
    """
    lines = [(name, [_finite(value) for value in values]) for name, values in lines[:LINES_MAX]]
    newest = newest or [values[-1] if values else None for _, values in lines]
    size = max((len(values) for _, values in lines), default=0)
    group = max(1, math.ceil(size / POINTS_MAX))
    thin = [(name, _thin(values, group)) for name, values in lines]
    known = [value for _, values in thin for value in values if value is not None]
    top, ticks = _axis(max(known, default=0.0), unit)
    span_s = max(len(thin[0][1]) - 1, 1) * step_s * group if thin else 0.0
    return Chart(
        title=title,
        unit=unit.name,
        lines=[
            _line(name, values, top, DASHES[at], unit.text(newest[at]), len(thin) == 1)
            for at, (name, values) in enumerate(thin)
        ],
        ticks=ticks,
        times=_times(span_s),
        step_s=step_s * group,
        end_ms=end_ms,
        summary=_summary(title, thin, span_s, unit),
        table=_table(thin, step_s * group, unit, end_ms),
        empty=not known,
    )


@dataclass(frozen=True, slots=True)
class Bar:
    x: str
    width: str
    y: str
    height: str
    label: str


@dataclass(frozen=True, slots=True)
class Bars:
    title: str
    bars: list[Bar]
    ticks: list[Tick]
    times: list[Tick]
    summary: str


def bars(title: str, values: Sequence[tuple[str, int]]) -> Bars:
    """A bar chart of counts with labels; every sixth label is on the axis."""
    highest = max((value for _, value in values), default=0)
    top, ticks = _axis(float(highest), COUNT)
    width = WIDTH / max(len(values), 1)
    shown = []
    for at, (label, value) in enumerate(values):
        height = HEIGHT * value / top
        shown.append(
            Bar(
                _short(at * width + width * 0.1),
                _short(width * 0.8),
                _short(HEIGHT - height),
                _short(height),
                f"{label}: {formats.count(value)}",
            )
        )
    busiest = max(values, key=lambda pair: pair[1], default=("", 0))
    return Bars(
        title=title,
        bars=shown,
        ticks=ticks,
        times=[
            Tick(f"{_short((at + 0.5) * width / 10)}%", label)
            for at, (label, _) in enumerate(values)
            if at % 6 == 0
        ],
        summary=f"{title}: most at {busiest[0]}, {formats.count(busiest[1])} messages.",
    )


def _finite(value: float | None) -> float | None:
    """The value, or None if it cannot be drawn: one bad value must not break an hour's chart."""
    return value if value is not None and 0 <= value < formats.NUMBER_MAX else None


def _thin(values: Values, group: int) -> list[float | None]:
    """The largest of each ``group`` (Rule 3); groups end at the newest value."""
    if group == 1:
        return list(values)
    thin: list[float | None] = []
    for end in range(len(values), 0, -group):
        known = [value for value in values[max(0, end - group) : end] if value is not None]
        thin.append(max(known) if known else None)
    return thin[::-1]


def _axis(highest: float, unit: Unit) -> tuple[float, list[Tick]]:
    """The top of the axis, and ticks at 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        highest = 1.0
    step = max(_nice(highest / TICKS_MAX), unit.step_min)
    top = math.ceil(highest / step - 1e-9) * step
    steps = round(top / step)
    ticks = [
        Tick(f"{_short(100 - 100 * at / steps)}%", unit.axis(at * step)) for at in range(steps + 1)
    ]
    return top, ticks


def _nice(value: float) -> float:
    power = math.pow(10.0, math.floor(math.log10(value)))
    return float(next(power * by for by in (1, 2, 5, 10) if power * by >= value * (1 - 1e-9)))


def _times(span_s: float) -> list[Tick]:
    """Age labels at the ends and the middle of the axis."""
    if span_s <= 0:
        return []
    anchors = enumerate(("start", "middle", "end"))
    return [Tick(f"{50 * at}%", _ago(span_s * (2 - at) / 2), anchor) for at, anchor in anchors]


def _ago(ago_s: float) -> str:
    """An age in one unit: an axis has no room for two."""
    if ago_s < 1:
        return "now"
    if ago_s < 100:
        return f"\N{MINUS SIGN}{round(ago_s)} s"
    return f"\N{MINUS SIGN}{formats.rate(round(ago_s / 60, 1 if ago_s < 600 else 0))} min"


def _line(
    name: str, values: list[float | None], top: float, dashes: str, now: str, alone: bool
) -> Line:
    return Line(
        name=name,
        path=_path(values, top),
        area=_area(values, top) if alone else "",
        dashes=dashes,
        now=now,
        values=",".join("" if value is None else _exact(value) for value in values),
    )


def _path(values: Sequence[float | None], top: float) -> str:
    """SVG path data; a value between two gaps is a short dash, so that it is visible."""
    parts: list[str] = []
    for run in _runs(values, top):
        first, *others = run
        parts.append(f"M{first[0]} {first[1]}")
        parts += [f"L{x} {y}" for x, y in others] or ["h2"]
    return "".join(parts)


def _area(values: Sequence[float | None], top: float) -> str:
    parts: list[str] = []
    for run in _runs(values, top):
        parts.append(f"M{run[0][0]} {HEIGHT}")
        parts += [f"L{x} {y}" for x, y in run]
        parts.append(f"L{run[-1][0]} {HEIGHT}Z")
    return "".join(parts)


def _runs(values: Sequence[float | None], top: float) -> list[list[tuple[str, str]]]:
    """The points between gaps, as text."""
    runs: list[list[tuple[str, str]]] = [[]]
    step = WIDTH / max(len(values) - 1, 1)
    for at, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            y = HEIGHT - HEIGHT * min(value / top, 1.0)
            runs[-1].append((_short(at * step), _short(y)))
    return [run for run in runs if run]


def _summary(
    title: str, lines: Sequence[tuple[str, list[float | None]]], span_s: float, unit: Unit
) -> str:
    parts = []
    for name, values in lines:
        known = [value for value in values if value is not None]
        if known:
            now, low, high = unit.text(values[-1]), unit.text(min(known)), unit.text(max(known))
            parts.append(f"{name} now {now}, lowest {low}, highest {high}")
    if not parts:
        return f"{title}: nothing recorded yet."
    return f"{title}, the last {formats.span_s(round(span_s))}: {'; '.join(parts)}."


def _table(
    lines: Sequence[tuple[str, list[float | None]]], step_s: float, unit: Unit, end_ms: int
) -> list[tuple[str, list[str]]]:
    """At most TABLE_ROWS_MAX rows, the newest first, each with the maxima of its interval."""
    size = len(lines[0][1]) if lines else 0
    group = max(1, math.ceil(size / TABLE_ROWS_MAX))
    columns = [_thin(values, group)[::-1] for _, values in lines]
    rows = []
    for at, row in enumerate(zip(*columns, strict=True)):
        ago_s = at * group * step_s
        ago = formats.span_s(round(ago_s)) + " ago" if at else "now"
        clock = f"{formats.clock(end_ms - ago_s * 1000)}, " if end_ms else ""
        rows.append((clock + ago, [unit.text(value) for value in row]))
    return rows


def _short(value: float) -> str:
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def _exact(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))
