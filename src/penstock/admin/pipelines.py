"""The Spark queries that read topics, one row each, in the form of ``views.pipelines``.

A query has a pull channel on every topic it reads, on every node.  It reports to some of them after
each batch (``penstock.progress``); the newest report counts.

Rule 1: channels whose reports name the same query are one row.  A channel without a report belongs
        to the query that reports from channels of the same name; if there is none, the channels of
        that name are a row.
Rule 2: a query's rows and rates are those of its whole batch, and are in its row once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.admin.history import History
from penstock.admin.sample import ChannelPart, ChannelSum, NodePart, Pull, Sample
from penstock.progress import OVER, Progress

View = dict[str, Any]
Part = tuple[NodePart, ChannelPart]

# A reader that has made no request for this long is not reading.
IDLE_MS = 60_000
# Below this, warn that the reader's channel will be deleted.
LAPSING_MS = 3_600_000

# In addition to the states of ``PipelineState``.
SILENT = "silent"  # reported that it runs, but has made no request for IDLE_MS
UNKNOWN = "unknown"  # has not reported

CHARTED = ("depth", "in_rate", "out_rate", "lag_s")


def rows(sample: Sample, history: History) -> list[View]:
    """All queries, by name."""
    made = [_row(sample, history, channels) for channels in _queries(sample)]
    return sorted(made, key=lambda row: (row["name"], row["channels"]))


def _queries(sample: Sample) -> list[list[ChannelSum]]:
    """The pull channels of each query."""
    queries: dict[tuple[str, str], list[ChannelSum]] = {}
    silent: list[ChannelSum] = []
    of_name: dict[str, set[tuple[str, str]]] = {}
    for topic in sample.topics.values():
        for channel in topic.channels.values():
            if not channel.pull:
                continue
            report = _newest(part.pull for _, part in _parts(sample, channel))
            if report is None or not report.query:
                silent.append(channel)
                continue
            key = ("query", report.query)
            queries.setdefault(key, []).append(channel)
            of_name.setdefault(channel.name, set()).add(key)
    for channel in silent:
        known = of_name.get(channel.name, set())
        key = next(iter(known)) if len(known) == 1 else ("channel", channel.name)
        queries.setdefault(key, []).append(channel)
    return list(queries.values())


def _row(sample: Sample, history: History, channels: list[ChannelSum]) -> View:
    parts = [part for channel in channels for part in _parts(sample, channel)]
    pulls = [part.pull for _, part in parts if part.pull is not None]
    report = _newest(pulls)
    progress = report or Progress()
    slowest = max(channels, key=lambda channel: (channel.lag_s, channel.lag_open))
    names = sorted({channel.name for channel in channels})
    lapses = [pull.lapses_in_ms for pull in pulls if pull.lapses_in_ms is not None]
    return {
        "name": progress.name or progress.query or names[0],
        "query": progress.query or None,
        "state": _state(pulls, report),
        "lapsing": min(lapses, default=LAPSING_MS) < LAPSING_MS,
        "readers": sorted({pull.reader or pull.identity for pull in pulls if pull.identity}),
        "channels": names,
        "topics": [
            {
                "topic": channel.topic,
                "channel": channel.name,
                "depth": channel.depth,
                "lag_s": round(channel.lag_s, 1),
                "lag_open": channel.lag_open,
            }
            for channel in sorted(channels, key=lambda channel: (channel.topic, channel.name))
        ],
        "depth": sum(channel.depth for channel in channels),
        "lag_s": round(slowest.lag_s, 1),
        "lag_open": slowest.lag_open,
        "input_rate": progress.input_rate,
        "processed_rate": progress.processed_rate,
        "batch": progress.batch,
        "batch_ms": progress.batch_ms,
        "rows": progress.rows,
        "sink": progress.sink or None,
        "error": progress.error or None,
        "at_ms": progress.at_ms,
        "nodes": _nodes(parts),
        "chart": summed([history.chart(("channel", c.topic, c.name), *CHARTED) for c in channels]),
    }


def _nodes(parts: list[Part]) -> list[View]:
    """A query's figures on each node, over all its topics there."""
    found: dict[str, View] = {}
    for node, part in parts:
        pull = part.pull
        if pull is None:
            continue
        row = found.setdefault(
            node.node, {"node": node.node, "depth": 0, "idle_ms": None, "lapses_in_ms": None}
        )
        row["depth"] += part.depth
        row["idle_ms"] = _least(row["idle_ms"], pull.idle_ms)
        row["lapses_in_ms"] = _least(row["lapses_in_ms"], pull.lapses_in_ms)
    return [found[name] for name in sorted(found)]


def _least(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _state(pulls: list[Pull], report: Progress | None) -> str:
    if report is not None and report.state in OVER:
        return str(report.state)
    idle = [pull.idle_ms for pull in pulls if pull.idle_ms is not None]
    if idle and min(idle) > IDLE_MS:
        return SILENT
    return UNKNOWN if report is None else str(report.state)


def _newest(pulls: Iterable[Pull | None]) -> Progress | None:
    reports = [
        (pull.progress.at_ms or pull.progress_ms, pull.progress)
        for pull in pulls
        if pull is not None and pull.progress is not None
    ]
    return max(reports, key=lambda report: report[0])[1] if reports else None


def _parts(sample: Sample, channel: ChannelSum) -> list[Part]:
    return [
        (node, node.topics[channel.topic].channels[channel.name])
        for node in (sample.nodes[name] for name in channel.nodes)
    ]


def summed(charts: list[View]) -> View:
    """The charts of several channels as one: sums, and the longest lag."""
    total = charts[0]
    for chart in charts[1:]:
        total = {span: _added(total[span], chart[span]) for span in total}
    return total


def _added(one: View, other: View) -> View:
    series = {
        name: [_both(name, a, b) for a, b in zip(values, other["series"][name], strict=True)]
        for name, values in one["series"].items()
    }
    return one | {"series": series}


def _both(name: str, one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other) if name == "lag_s" else round(one + other, 3)
