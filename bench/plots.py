"""Charts of a run, as SVG for docs/images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Mapping[str, Mapping[str, float]]

COLOURS = {
    "penstock": "#0b7285",
    "penstock-sample": "#66b2b2",
    "old": "#66b2b2",
    "go": "#adb5bd",
    "redis": "#e8590c",
    "floor": "#343a40",
}
NAMES = {
    "penstock": "Penstock",
    "penstock-sample": "Penstock, sampling",
    "old": "Penstock before",
    "go": "Go nsqd",
    "redis": "Redis",
    "floor": "floor",
}


def draw(folder: Path, found: Mapping[str, Found]) -> list[Path]:
    """Draw the charts for which ``found`` (by workload) has figures; return the files."""
    _prepare(folder)
    drawn = []
    for name, paint in (("throughput", throughput), ("growth", growth), ("on-time", on_time)):
        path = folder / f"bench-{name}.svg"
        if paint(path, found):
            drawn.append(path)
    return drawn


# The bars of a panel: metric, label, whether it is ours.
SPARK_PANELS = {
    "scan": (
        "batch read, million rows a second",
        1e6,
        (
            ("all", "all columns", True),
            ("parquet_all", "Parquet", False),
            ("few", "three", True),
            ("parquet_few", "Parquet", False),
        ),
    ),
    "micro-batch": (
        "micro-batch p50, ms",
        1,
        (("p50_ours", "topic", True), ("p50_theirs", "rate source", False)),
    ),
    "end-to-end": (
        "PUB to committed row, ms",
        1,
        (("p50_ms", "p50", True), ("p99_ms", "p99", True)),
    ),
    "sink": (
        "into a topic, million rows a second",
        1e6,
        (("rate", "exactly once", True),),
    ),
    "beside": (
        "clients, million messages a second",
        1e6,
        (
            ("publish_beside", "publish", True),
            ("publish_alone", "alone", False),
            ("consume_beside", "consume", True),
            ("consume_alone", "alone", False),
        ),
    ),
}


def draw_spark(folder: Path, results: Mapping[str, Mapping[str, float]]) -> list[Path]:
    """Bars: each figure of Spark's works beside the figure it is compared with."""
    names = [name for name in SPARK_PANELS if name in results]
    if not names:
        return []
    _prepare(folder)
    figure, axes = _figure(len(names))
    for axis, name in zip(axes, names, strict=True):
        title, unit, bars = SPARK_PANELS[name]
        heights = [results[name][metric] / unit for metric, _, _ in bars]
        colours = [COLOURS["penstock" if ours else "go"] for _, _, ours in bars]
        drawn = axis.bar(range(len(bars)), heights, 0.7, color=colours)
        axis.bar_label(drawn, fmt="%.2f" if unit > 1 else "%.0f", fontsize=8)
        axis.set_xticks(range(len(bars)), [name for _, name, _ in bars], fontsize=8)
        axis.set_title(title, fontsize=10)
    path = folder / "bench-spark.svg"
    figure.savefig(path, metadata={"Date": None})
    return [path]


# The panels of bench.turn: title, metric, its unit, rows.
PACKET_PANELS = (
    ("each OK awaited: thousand messages a second", "rate", 1e3, ("alone", "fifty")),
    ("the same after a sync", "rate", 1e3, ("alone-synced", "fifty-synced")),
    ("as NSQ's benchmarks: million a second", "rate", 1e6, ("finish", "write")),
    ("PUB to consumer, 5,000 a second: p50, us", "p50_us", 1, ("latency",)),
    ("server CPU, us a message", "cpu_us", 1, ("alone", "fifty")),
    ("server CPU, us a message", "cpu_us", 1, ("alone-synced", "fifty-synced")),
    ("server CPU, us a message", "cpu_us", 1, ("finish", "write")),
    ("p99, us", "p99_us", 1, ("latency",)),
)


def draw_packets(folder: Path, found: Mapping[str, Found]) -> list[Path]:
    """Bars: what a packet costs, beside the peers that were there."""
    if any(name not in found for *_, names in PACKET_PANELS for name in names):
        return []
    _prepare(folder)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 6.4), layout="constrained")
    for axis, panel in zip(figure.subplots(2, 4).flat, PACKET_PANELS, strict=True):
        title, metric, unit, names = panel
        axis.spines[["top", "right"]].set_visible(False)
        _bars(axis, found, list(names), metric, unit, title)
        if names == ("latency",):
            axis.set_yscale("log")
    path = folder / "bench-packets.svg"
    _save(figure, path)
    return [path]


def _prepare(folder: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    # Text as text, and no random ids, so that the same figures give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "penstock"})
    folder.mkdir(parents=True, exist_ok=True)


def throughput(path: Path, found: Mapping[str, Found]) -> bool:
    """Bars: messages per second, and server CPU per message."""
    batched = [n for n in ("publish", "publish-4", "consume", "consume-4") if n in found]
    single = [n for n in ("publish-single", "publish-alone", "publish-http") if n in found]
    if not batched and not single:
        return False
    figure, (left, middle, right) = _figure(3)
    _bars(left, found, batched, "rate", 1e6, "million messages a second")
    _bars(middle, found, batched, "cpu_us", 1, "server CPU, us a message")
    _bars(right, found, single, "cpu_us", 1, "one by one: server CPU, us a message")
    return _save(figure, path)


def growth(path: Path, found: Mapping[str, Found]) -> bool:
    """Lines: server CPU per message against the number of channels, and against the backlog."""
    names = [name for name in ("channels", "backlogs") if name in found]
    if not names:
        return False
    figure, axes = _figure(len(names))
    for axis, name in zip(axes, names, strict=True):
        for make, metrics in found[name].items():
            points = {int(k.partition("@")[2]): v for k, v in metrics.items() if "cpu_us@" in k}
            axis.plot(*zip(*points.items(), strict=True), "o-", **_style(make))
        axis.set_xscale("log")
        axis.set_xticks(list(points), [_short(x) for x in points], minor=False)
        axis.set_xticks([], minor=True)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("channels of the topic" if name == "channels" else "messages of backlog")
        axis.set_ylabel(f"{'publish' if name == 'channels' else 'consume'}: us a message")
    return _save(figure, path)


def on_time(path: Path, found: Mapping[str, Found]) -> bool:
    """Bars on a logarithmic axis: p50, p99 and the maximum of delays."""
    titles = {
        "redelivery": "deadline to redelivery",
        "deferred": "deferred: lateness",
        "lost-consumer": "lost consumer to heir",
        "latency": "publisher to consumer",
    }
    names = [name for name in titles if name in found]
    if not names:
        return False
    figure, axes = _figure(len(names))
    for axis, name in zip(axes, names, strict=True):
        for place, (make, metrics) in enumerate(found[name].items()):
            values = [max(metrics[m], 0.01) for m in ("p50_ms", "p99_ms", "max_ms")]
            axis.bar([x + place * 0.27 for x in range(3)], values, 0.25, **_style(make))
        axis.set_yscale("log")
        axis.set_ylim(0.05, 20_000)
        ticks = [0.1, 1, 10, 100, 1_000, 10_000]
        axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.set_xticks([x + 0.27 for x in range(3)], ["p50", "p99", "max"])
        axis.set_title(titles[name], fontsize=10)
        axis.set_ylabel("ms")
    return _save(figure, path)


def _figure(count: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * count, 3.2), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def _bars(
    axis: Axes, found: Mapping[str, Found], names: list[str], metric: str, unit: float, title: str
) -> None:
    makes = list(dict.fromkeys(make for name in names for make in found[name]))
    step = 0.8 / max(1, len(makes))
    for place, make in enumerate(makes):
        made = [(x, found[name][make]) for x, name in enumerate(names) if make in found[name]]
        heights = [metrics[metric] / unit for _, metrics in made]
        places = [x + place * step for x, _ in made]
        bars = axis.bar(places, heights, step * 0.93, **_style(make))
        axis.bar_label(bars, fmt=_figures, fontsize=8 if len(makes) < 4 else 7)
    axis.set_xticks([x + step * (len(makes) - 1) / 2 for x in range(len(names))], names)
    axis.set_title(title, fontsize=10)


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _style(make: str) -> dict[str, str]:
    return {"label": NAMES[make], "color": COLOURS[make]}


def _short(count: int) -> str:
    return f"{count // 1_000_000} M" if count >= 1_000_000 else f"{count:,}"


def _save(figure: Figure, path: Path) -> bool:
    marks = {}
    for axis in figure.axes:
        handles, names = axis.get_legend_handles_labels()
        marks |= dict(zip(names, handles, strict=True))
    figure.legend(
        marks.values(), marks, loc="outside lower center", ncols=len(marks), frameon=False
    )
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True
