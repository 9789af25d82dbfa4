"""Line charts over time: an SVG file for browsers, and rows of block characters for the terminal.

The points are stored beside the picture (``x.svg.json``), so a restarted pipeline continues it.  A
point is identified by its series and time: if it comes again, it is replaced.
"""

from __future__ import annotations

import datetime
import html
import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.spec import PlotSink

SERIES_MAX = 12  # a picture with more is unreadable; the largest are drawn
WIDTH, HEIGHT = 860, 200
LEFT, TOP, BOTTOM = 70, 40, 30
GAP_FACTOR = 3  # a line breaks where points are missing for longer than this many steps
BLOCKS = "▁▂▃▄▅▆▇█"
COLOURS = (
    *("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2"),
    *("#be185d", "#4d7c0f", "#9333ea", "#b45309", "#0f766e", "#475569"),
)

Points = dict[str, dict[float, dict[str, float]]]  # series: time: column: value


class History:
    """The points of one plot."""

    def __init__(self, path: str, title: str, sink: PlotSink) -> None:
        self._sink = sink
        self._title = title
        target = Path(path)
        self._folder = LocalFolder(str(target.parent))
        self._name = target.name
        stored = self._folder.read(f"{self._name}.json")
        self.points: Points = {}
        if stored is not None:
            for series, points in json.loads(stored).items():
                self.points[series] = {float(time): values for time, values in points.items()}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add rows; return how many had a time."""
        count = 0
        for row in rows:
            time = row[self._sink.time]
            if time is None:
                continue
            series = str(row[self._sink.series]) if self._sink.series else ""
            values = {name: float(row[name]) for name in self._sink.values if row[name] is not None}
            self.points.setdefault(series, {})[_seconds(time)] = values
            count += 1
        for series, points in self.points.items():
            newest = sorted(points)[-self._sink.points :]
            self.points[series] = {time: points[time] for time in newest}
        return count

    def draw(self) -> None:
        stored = json.dumps(self.points).encode()
        self._folder.write(f"{self._name}.json", stored)
        self._folder.write(self._name, svg(self._title, self.points, self._sink.values).encode())

    def text(self) -> str:
        return "\n".join(
            line
            for name in self._sink.values
            for line in blocks(name, largest(self.points, name), name)
        )


def _seconds(time: Any) -> float:
    if isinstance(time, datetime.datetime):
        # Spark returns naive times in the driver's time zone.
        return time.timestamp()
    return float(time)


def largest(points: Points, name: str) -> Points:
    """The series with the largest totals of a value, largest first."""

    def total(series: str) -> float:
        return sum(values.get(name, 0.0) for values in points[series].values())

    return {series: points[series] for series in sorted(points, key=total)[::-1][:SERIES_MAX]}


def blocks(title: str, points: Points, name: str, width: int = 60) -> list[str]:
    """One line per series: its newest points as block characters of eight heights."""
    high = max(
        (values[name] for times in points.values() for values in times.values() if name in values),
        default=0.0,
    )
    lines = []
    for series, times in points.items():
        newest = [times[time].get(name, 0.0) for time in sorted(times)[-width:]]
        steps = [min(7, int(value / high * 8)) if high > 0 else 0 for value in newest]
        last = _short(newest[-1]) if newest else ""
        label = f"{title} {series}".strip()
        lines.append(f"{label:<30} {''.join(BLOCKS[step] for step in steps)} {last}")
    return lines


def svg(title: str, points: Points, names: tuple[str, ...]) -> str:
    """One chart for each value, one below the other."""
    height = TOP + len(names) * (HEIGHT + BOTTOM + TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 190} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{html.escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        parts += _picture(name, largest(points, name), TOP + number * (HEIGHT + BOTTOM + TOP))
    return "\n".join([*parts, "</svg>", ""])


def _picture(name: str, points: Points, top: int) -> list[str]:
    times = sorted({time for series in points.values() for time in series})
    found = [v[name] for series in points.values() for v in series.values() if name in v]
    if not times or not found:
        return []
    first, span = times[0], max(times[-1] - times[0], 1e-9)
    high = max(*found, 1e-9)
    base = top + TOP + HEIGHT
    title = f'<text x="{LEFT}" y="{top + TOP - 12}" font-weight="bold">{html.escape(name)}</text>'
    parts = [title, *_axes(base, high, first, span)]
    step = min((after - before for before, after in pairwise(times)), default=span)
    for number, (series, values) in enumerate(points.items()):
        colour = COLOURS[number % len(COLOURS)]
        shown = {time: item[name] for time, item in values.items() if name in item}
        for run in _runs(sorted(shown), step * GAP_FACTOR):
            corners = " ".join(
                f"{LEFT + (t - first) / span * WIDTH:.1f},{base - shown[t] / high * HEIGHT:.1f}"
                for t in run
            )
            parts.append(
                f'<polyline points="{corners}" fill="none" stroke="{colour}" '
                'stroke-width="1.5" stroke-linecap="round"/>'
            )
        x, y = LEFT + WIDTH + 12, top + TOP + 12 + number * 16
        parts.append(f'<text x="{x}" y="{y}" fill="{colour}">{html.escape(series)}</text>')
    return parts


def _axes(base: int, high: float, first: float, span: float) -> list[str]:
    """Five horizontal lines with values, five times below."""
    parts = []
    for part in range(5):
        y = base - HEIGHT * part / 4
        value = _short(high * part / 4)
        parts += [
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>',
        ]
        when = datetime.datetime.fromtimestamp(first + span * part / 4, datetime.UTC)
        x = LEFT + WIDTH * part / 4
        text = when.strftime("%H:%M:%S" if span < 86_400 else "%m-%d %H:%M")
        parts.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{text}</text>')
    return parts


def _runs(times: list[float], gap: float) -> list[list[float]]:
    runs: list[list[float]] = []
    for time in times:
        if runs and time - runs[-1][-1] <= gap:
            runs[-1].append(time)
        else:
            runs.append([time])
    return runs


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
