"""The progress report of a pipeline: one definition for its writers and readers.

    NsqListener, penstock pipeline  --POST /channel/commit-->  nsqd  --/stats-->  nsqadmin, status

nsqd stores the object unchanged; ``Progress.read`` decodes it, whichever version wrote it.

Rule 1: a field that is missing or of a wrong type is unknown, never an error: reports come from
        other versions, and from other programs.
Rule 2: everything is bounded, in both directions.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import re
from typing import Any

NUMBER_MAX = 1 << 63
NAME_SIZE_MAX = 255
TEXT_SIZE_MAX = 1000
_SURROGATE = re.compile("[\ud800-\udfff]")


class PipelineState(enum.StrEnum):
    """State of a pipeline; `pipeline status`, its reports and nsqadmin use the same words."""

    STARTING = "starting"  # no batch yet
    RUNNING = "running"  # batches are read and written
    WAITING = "waiting"  # nothing to read, or no topic yet
    RETRYING = "retrying"  # a batch or a node failed, and is retried
    FAILED = "failed"  # ended by an error, which ``error`` names
    ENDED = "ended"  # stopped, or completed


# The pipeline no longer runs.
OVER = frozenset((PipelineState.FAILED, PipelineState.ENDED))


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """One report; ``None`` and an empty text mean unknown."""

    query: str = ""  # Spark's id of the query, the same after a restart from its checkpoint
    name: str = ""
    state: PipelineState = PipelineState.RUNNING
    batch: int | None = None
    rows: int | None = None  # of that batch, over all topics
    input_rate: float | None = None  # rows that arrive a second, as Spark measures it
    processed_rate: float | None = None  # rows a second while the batch was processed
    batch_ms: int | None = None
    sink: str = ""
    error: str = ""
    at_ms: int | None = None  # wall time of the report

    def as_json(self) -> dict[str, Any]:
        """The object that nsqd stores."""
        return {
            "query": _text(self.query, NAME_SIZE_MAX),
            "name": _text(self.name, NAME_SIZE_MAX),
            "state": str(self.state),
            "batch": self.batch,
            "rows": self.rows,
            "input_rate": _rounded(self.input_rate),
            "processed_rate": _rounded(self.processed_rate),
            "batch_ms": self.batch_ms,
            "sink": _text(self.sink, NAME_SIZE_MAX),
            "error": _text(self.error, TEXT_SIZE_MAX),
            "at_ms": self.at_ms,
        }

    @classmethod
    def read(cls, value: object) -> Progress | None:
        """Decode a report as /stats shows it; None if it is not one."""
        if not isinstance(value, dict) or not value:
            return None
        error = _text(value.get("error"), TEXT_SIZE_MAX)
        # Early reports of 0.1.0, before states, had other names for three fields.
        at_ms = _count(value.get("at_ms"))
        return cls(
            query=_text(value.get("query"), NAME_SIZE_MAX),
            name=_text(value.get("name"), NAME_SIZE_MAX),
            state=_state(value.get("state"), error),
            batch=_count(value.get("batch")),
            rows=_count(value.get("rows")),
            input_rate=_rate(value.get("input_rate")),
            processed_rate=_rate(value.get("processed_rate", value.get("rows_per_second"))),
            batch_ms=_count(value.get("batch_ms", value.get("duration_ms"))),
            sink=_text(value.get("sink"), NAME_SIZE_MAX),
            error=error,
            at_ms=_moment_ms(value.get("time")) if at_ms is None else at_ms,
        )


def _state(value: object, error: str) -> PipelineState:
    try:
        return PipelineState(str(value))
    except ValueError:
        return PipelineState.FAILED if error else PipelineState.RUNNING


def _text(value: object, size_max: int) -> str:
    if not isinstance(value, str):
        return ""
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value[:size_max])


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < NUMBER_MAX else None


def _rate(value: object) -> float | None:
    if type(value) not in (int, float):
        return None
    assert isinstance(value, int | float)
    return float(value) if 0 <= value < NUMBER_MAX else None


def _rounded(value: float | None) -> float | None:
    """JSON has no NaN, and Spark's rates are infinite for a batch that took no time."""
    return None if value is None or not math.isfinite(value) else round(value, 3)


def _moment_ms(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        return _count(int(datetime.datetime.fromisoformat(value).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None
