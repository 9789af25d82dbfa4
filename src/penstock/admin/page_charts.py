"""The charts of each page, built from its view."""

from __future__ import annotations

import datetime
from typing import Any

from penstock.admin.charts import COUNT, RATE, SPAN, Bars, Chart, Unit, bars, chart

View = dict[str, Any]

# Until the hour has this many values, the recent ones cover as much at a finer step.
HOUR_COUNT_MIN = 40

# title, (name of a line, name of its series), unit
Plan = tuple[str, tuple[tuple[str, str], ...], Unit]

RATES: Plan = ("Messages per second", (("Published", "in_rate"), ("Consumed", "out_rate")), RATE)
ARRIVALS: Plan = ("Messages per second", (("Arriving", "in_rate"), ("Consumed", "out_rate")), RATE)
WAITING: Plan = (
    "Waiting messages",
    (("Depth", "depth"), ("In flight", "in_flight"), ("Deferred", "deferred")),
    COUNT,
)
TROUBLE: Plan = (
    "Requeues and timeouts per second",
    (("Requeued", "requeue_rate"), ("Timed out", "timeout_rate")),
    RATE,
)
LAG: Plan = ("Lag", (("Oldest unfinished message", "lag_s"),), SPAN)


def none(view: View, span: str) -> list[Chart]:
    return []


def cluster(view: View, span: str) -> list[Chart]:
    return _drawn(view["chart"], span, RATES, WAITING, TROUBLE)


def topic(view: View, span: str) -> list[Chart]:
    return _drawn(view["chart"], span, RATES, WAITING, LAG)


def channel(view: View, span: str) -> list[Chart]:
    return _drawn(view["chart"], span, ARRIVALS, WAITING, LAG, TROUBLE)


def counter(view: View, span: str) -> list[Chart]:
    return _drawn(view["chart"], span, RATES)


def pipelines(view: View, span: str) -> list[list[Chart]]:
    """Three charts for each pipeline."""
    waiting: Plan = ("Waiting messages", (("Depth", "depth"),), COUNT)
    return [_drawn(row["chart"], span, ARRIVALS, waiting, LAG) for row in view["pipelines"]]


def deferred(view: View, span: str) -> list[Bars]:
    """Deferred messages of the next two days, by hour."""
    if not view["total"]:
        return []
    hours = [(_hour(row["start_ms"]), row["count"]) for row in view["hours"]]
    return [bars("The next two days, by hour (UTC)", hours)]


def _drawn(history: View, span: str, *plans: Plan) -> list[Chart]:
    recent, chosen = history["recent"], history[span]
    if span == "hour" and _length(chosen) < HOUR_COUNT_MIN:
        chosen = recent
    drawn = []
    for title, plan, unit in plans:
        lines = [(name, chosen["series"][series]) for name, series in plan]
        # The hour's last step ends earlier; the legend should match the numbers on the page.
        newest = [(recent["series"][series] or [None])[-1] for _, series in plan]
        step_s, end_ms = chosen["step_ms"] / 1000, chosen["end_ms"]
        drawn.append(chart(title, lines, step_s, unit, newest, end_ms))
    return drawn


def _length(series: View) -> int:
    return max((len(values) for values in series["series"].values()), default=0)


def _hour(start_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(start_ms / 1000, datetime.UTC)
    return at.strftime("%a %H:%M")
