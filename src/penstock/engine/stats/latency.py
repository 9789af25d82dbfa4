"""End-to-end latency: the time from publish to finish, as nsqd reports it.

Every FIN adds now minus the message's timestamp to its channel's window (core/latency.pyx), so
queueing, deferral and retries are included.  Without ``-e2e-processing-latency-percentile`` nothing
is measured or allocated.

A window has two halves of ``-e2e-processing-latency-window-time``, used in turn.  Memory per
channel: 1 KB when idle, typically 5 KB in use, at most 61 KB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.latency import Histogram, Latency
from penstock.record import record

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))


@record
class Percentiles:
    """Percentiles of a channel or topic; ``values`` are (share, ns) in flag order."""

    count: int
    values: tuple[tuple[float, int], ...]

    def as_json(self) -> dict[str, object]:
        if not self.values:
            return {"count": 0, "percentiles": None}
        return {
            "count": self.count,
            "percentiles": [
                {"quantile": int(share) if share.is_integer() else share, "value": value_ns}
                for share, value_ns in self.values
            ],
        }


# Nothing is measured.
OFF = Percentiles(0, ())


def measured(
    latencies: Iterable[Latency | None], shares: Sequence[float], wall_ns: int
) -> Percentiles:
    """The percentiles of all ``latencies`` together."""
    if not shares:
        return OFF
    total = Histogram()
    for latency in latencies:
        if latency is not None:
            latency.merge_into(total, wall_ns)
    return Percentiles(total.count, tuple((share, total.quantile(share)) for share in shares))


def format_ns(value_ns: int) -> str:
    """``1.2ms``; nsqd changes the unit above 1000 of one, not at 1000."""
    for unit_ns, name in _UNITS:
        if value_ns > unit_ns:
            return f"{value_ns / unit_ns:.1f}{name}"
    return f"{value_ns:.1f}ns"
