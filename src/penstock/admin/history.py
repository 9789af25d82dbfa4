"""The figures of every node, topic and channel in the last hour, in memory, for charts.

    recent    a column for each sample of the last 10 minutes    at 5 s: 120 columns
    hour      the mean of three columns, for the last hour       at 15 s: 240 columns

    column    ids   | 3 | 4 | 9 |          objects, ascending
              rows  | 8 numbers | 8 numbers | 8 numbers |

A column has only the objects that were active: a channel without messages costs nothing, each of
2,000 busy topics 36 bytes.  Reading one object back searches every column, in half a millisecond.

Rule 1: memory is bounded twice: by the number of columns, and by HISTORY_SIZE_MAX, above which the
        oldest columns are dropped, those of the hour first.
Rule 2: an id is never reused, so a topic that is deleted and created again has a new history.
Rule 3: a step without a sample and a node that did not respond are None, never zero.
Rule 4: a rate times its duration is the count.  Two samples of one step become one with the rates
        over both, and a missed step has the rates of the next sample.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from operator import add
from typing import Any

from penstock.admin.sample import Figures, Sample, TopicSum

Key = tuple[str, ...]
CLUSTER: Key = ("cluster",)

# The columns of a row, in order.
GAUGES = ("depth", "in_flight", "deferred")
RATES = ("in_rate", "out_rate", "requeue_rate", "timeout_rate")
METRICS = (*GAUGES, *RATES, "lag_s")
WIDTH = len(METRICS)
RATES_AT = slice(len(GAUGES), len(GAUGES) + len(RATES))
NOTHING = (0.0,) * WIDTH

RECENT_S = 600
HOUR_S = 3600
MERGED_COUNT = 3
MISSED_COUNT_MAX = 2
HISTORY_SIZE_MAX = 256 << 20

Row = tuple[float, ...]


@dataclass(slots=True)
class Column:
    """The rows of one point in time."""

    at_ms: int
    tick: int
    ids: array[int]
    values: array[float]
    span_s: float = 0.0  # over which the rates are measured

    @property
    def size(self) -> int:
        return len(self.ids) * self.ids.itemsize + len(self.values) * self.values.itemsize

    def row(self, id: int) -> Row | None:
        at = bisect_left(self.ids, id)
        if at == len(self.ids) or self.ids[at] != id:
            return None
        return tuple(self.values[at * WIDTH : at * WIDTH + WIDTH])


class History:
    """The columns, and the ids of objects in them."""

    def __init__(self, interval_s: float, size_max: int = HISTORY_SIZE_MAX) -> None:
        self._interval_s = interval_s
        self._size_max = size_max
        self._recent: deque[Column] = deque(maxlen=_count(RECENT_S, interval_s))
        self._hour: deque[Column] = deque(maxlen=_count(HOUR_S, interval_s * MERGED_COUNT))
        self._ids: dict[Key, int] = {}
        self._next_id = 0

    @property
    def size(self) -> int:
        """The bytes of all columns."""
        return sum(column.size for column in (*self._recent, *self._hour))

    def record(self, sample: Sample) -> None:
        """Add a sample; two in one tick are joined."""
        column = self._column(sample)
        recent = self._recent
        if recent:
            column.span_s = (column.at_ms - recent[-1].at_ms) / 1000
        if recent and recent[-1].tick == column.tick:
            column = _joined(recent.pop(), column)
        elif recent and recent[-1].tick // MERGED_COUNT != column.tick // MERGED_COUNT:
            self._merge(recent[-1].tick // MERGED_COUNT)
        recent.append(column)
        while self.size > self._size_max and len(self._hour) > 1:
            self._hour.popleft()
        while self.size > self._size_max and len(recent) > MERGED_COUNT:
            recent.popleft()

    def _merge(self, group: int) -> None:
        """Merge the columns of a complete group into one of the hour."""
        columns = [c for c in list(self._recent)[-MERGED_COUNT:] if c.tick // MERGED_COUNT == group]
        nodes = {id for key, id in self._ids.items() if key[0] == "node"}
        self._hour.append(_mean(columns, group, nodes))

    def chart(self, key: Key, *metrics: str) -> dict[str, Any]:
        """The series of one object: ``{"recent": SERIES, "hour": SERIES}``, see ``views``."""
        names = metrics or METRICS
        return {
            "recent": self._series(self._recent, self._interval_s, key, names),
            "hour": self._series(self._hour, self._interval_s * MERGED_COUNT, key, names),
        }

    def _series(
        self, columns: deque[Column], step_s: float, key: Key, names: tuple[str, ...]
    ) -> dict[str, Any]:
        places = [METRICS.index(name) for name in names]
        series: dict[str, list[float | None]] = {name: [] for name in names}
        id = self._ids.get(key, -1)
        absent = None if key[0] == "node" else NOTHING
        tick = columns[0].tick if columns else 0
        row: Row | None = None
        for column in columns:
            # One or two ticks without a sample mean a slow sample; more are a gap.
            missed = column.tick - tick
            last, row = row, column.row(id) or absent
            rows = [_bridge(last, row) if missed <= MISSED_COUNT_MAX else None] * missed
            for found in (*rows, row):
                for name, place in zip(names, places, strict=True):
                    series[name].append(None if found is None else round(found[place], 3))
            tick = column.tick + 1
        for name in names:
            series[name] = series[name][-(columns.maxlen or 0) :]
        return {
            "step_ms": int(step_s * 1000),
            "end_ms": columns[-1].at_ms if columns else 0,
            "count_max": columns.maxlen,
            "series": series,
        }

    def _column(self, sample: Sample) -> Column:
        rows: list[Row] = []
        ids: dict[Key, int] = {}
        self._add(rows, ids, CLUSTER, _figures(sample.totals))
        for node in sample.nodes.values():
            if node.answered:
                self._add(rows, ids, ("node", node.node), _figures(node.figures))
        for topic in sample.topics.values():
            self._add(rows, ids, ("topic", topic.name), _topic_row(topic))
            for channel in topic.channels.values():
                row = (
                    *(channel.depth, channel.in_flight, channel.deferred),
                    *(channel.arrival_rate, channel.consume_rate),
                    *(channel.requeue_rate, channel.timeout_rate, channel.lag_s),
                )
                self._add(rows, ids, ("channel", topic.name, channel.name), row)
        self._ids = ids | {key: id for key, id in self._ids.items() if key[0] == "node"}
        rows.sort()
        return Column(
            sample.at_ms,
            sample.tick,
            array("I", [int(row[0]) for row in rows]),
            array("f", [value for row in rows for value in row[1:]]),
        )

    def _add(self, rows: list[Row], ids: dict[Key, int], key: Key, row: Row) -> None:
        id = self._ids.get(key)
        if id is None:
            id = self._next_id
            self._next_id += 1
        ids[key] = id
        if key[0] == "node" or row != NOTHING:
            rows.append((id, *row))


def _count(seconds: int, step_s: float) -> int:
    return max(2, int(seconds / step_s))


def _figures(figures: Figures) -> Row:
    return (
        *(figures.depth + figures.backlog, figures.in_flight, figures.deferred),
        *(figures.publish_rate, figures.consume_rate),
        *(figures.requeue_rate, figures.timeout_rate, 0.0),
    )


def _topic_row(topic: TopicSum) -> Row:
    channels = topic.channels.values()
    return (
        topic.depth + topic.backlog,
        sum(channel.in_flight for channel in channels),
        topic.deferred,
        topic.publish_rate,
        sum(channel.consume_rate for channel in channels),
        sum(channel.requeue_rate for channel in channels),
        sum(channel.timeout_rate for channel in channels),
        max((channel.lag_s for channel in channels), default=0.0),
    )


def _bridge(last: Row | None, row: Row | None) -> Row | None:
    """The row of a step without a sample: the gauges of the last, the rates of the next."""
    if last is None or row is None:
        return last
    return (*last[: RATES_AT.start], *row[RATES_AT], *last[RATES_AT.stop :])


def _joined(one: Column, other: Column) -> Column:
    """Join two samples of one step: the later gauges, with the rates over both."""
    span_s = one.span_s + other.span_s
    if span_s <= 0:
        return other
    share = other.span_s / span_s
    rows: list[Row] = []
    for id in sorted({*one.ids, *other.ids}):
        old, new = one.row(id) or NOTHING, other.row(id) or NOTHING
        pairs = zip(old[RATES_AT], new[RATES_AT], strict=True)
        rates = (before * (1 - share) + now * share for before, now in pairs)
        rows.append((id, *new[: RATES_AT.start], *rates, *new[RATES_AT.stop :]))
    return Column(
        other.at_ms,
        other.tick,
        array("I", [int(row[0]) for row in rows]),
        array("f", [value for row in rows for value in row[1:]]),
        span_s,
    )


def _mean(columns: list[Column], tick: int, nodes: set[int]) -> Column:
    """The mean of several columns.

    An object that is not in a column was idle then; only a node is left out because it was down.
    """
    sums: dict[int, list[float]] = {}
    counts = dict.fromkeys(nodes, 0)
    for column in columns:
        values = column.values
        for at, id in enumerate(column.ids):
            row = values[at * WIDTH : at * WIDTH + WIDTH]
            known = sums.get(id)
            sums[id] = list(row) if known is None else list(map(add, known, row))
            if id in counts:
                counts[id] += 1
    ids = sorted(sums)
    share = 1 / len(columns)
    means: list[float] = []
    for id in ids:
        part = 1 / counts[id] if counts.get(id) else share
        means += [value * part for value in sums[id]]
    return Column(columns[-1].at_ms, tick, array("I", ids), array("f", means))
