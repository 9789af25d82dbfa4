"""Messages about rows that were not processed: to be retried, dead, or invalid.

    {"penstock": 1, "pipeline": "orders", "attempts": 2, "error": "ValueError: no such customer",
     "time": "2026-11-15T10:31:22.370396+00:00", "row": {"id": 7, "body": {"text": "hello"}}}

The body of a message in the topics NAME.retry, NAME.dead and NAME.invalid is one such object.
``row`` is the function's input, column by column, so a retry gets exactly the same row, and people
can read it.  JSON has no bytes, times and decimals; they are written as:

    binary      {"text": "..."} if it is UTF-8, else {"base64": "..."}
    timestamp   ISO 8601 with microseconds, in UTC        date      ISO 8601
    decimal     its digits as a string                    map       a list of [key, value]

``attempts`` counts those made: 1 after the first failure, 0 if the row was never tried.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

VERSION = 1
ERROR_SIZE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Envelope:
    """A row to be retried, or that is not retried again."""

    pipeline: str
    attempts: int
    error: str
    row: dict[str, Any]


def error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_SIZE_MAX]


def encode(envelope: Envelope, now: datetime.datetime) -> bytes:
    return json.dumps(
        {
            "penstock": VERSION,
            "pipeline": envelope.pipeline,
            "attempts": envelope.attempts,
            "error": envelope.error[:ERROR_SIZE_MAX],
            "time": now.isoformat(),
            "row": {name: to_json(value) for name, value in envelope.row.items()},
        },
        ensure_ascii=False,
    ).encode()


def decode(body: bytes, row_type: pa.DataType) -> Envelope:
    """Return what was encoded; ``row_type`` is the Arrow struct of the rows.

    Anyone may publish to a retry topic: raises ValueError if it is not an envelope.
    """
    try:
        found = json.loads(body)
        if found["penstock"] != VERSION or not isinstance(found["row"], dict):
            raise ValueError("not an envelope of this version")
        row = from_json(found["row"], row_type)
        return Envelope(str(found["pipeline"]), int(found["attempts"]), str(found["error"]), row)
    except (KeyError, TypeError, AttributeError, decimal.InvalidOperation) as error:
        raise ValueError(f"not an envelope: {error_text(error)}") from None


def to_json(value: Any) -> Any:
    """A value from Arrow in a form that JSON has."""
    match value:
        case bytes():
            return _bytes_to_json(value)
        case datetime.datetime():
            return value.astimezone(datetime.UTC).isoformat() if value.tzinfo else value.isoformat()
        case datetime.date():
            return value.isoformat()
        case decimal.Decimal():
            return str(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return {"float": str(value)}
        case datetime.timedelta():
            return value // datetime.timedelta(microseconds=1)
        case dict():
            return {name: to_json(item) for name, item in value.items()}
        case list() | tuple():
            return [to_json(item) for item in value]
    return value


def _bytes_to_json(value: bytes) -> dict[str, str]:
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def from_json(value: Any, kind: pa.DataType) -> Any:
    """The value of that Arrow type, as Arrow itself converts it to Python."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        return {
            kind.field(n).name: from_json(value.get(kind.field(n).name), kind.field(n).type)
            for n in range(kind.num_fields)
        }
    if types.is_map(kind):
        return [(from_json(k, kind.key_type), from_json(v, kind.item_type)) for k, v in value]
    if types.is_list(kind) or types.is_large_list(kind):
        return [from_json(item, kind.value_type) for item in value]
    if types.is_binary(kind) or types.is_large_binary(kind):
        return value["text"].encode() if "text" in value else base64.b64decode(value["base64"])
    if types.is_timestamp(kind):
        return datetime.datetime.fromisoformat(value)
    if types.is_date(kind):
        return datetime.date.fromisoformat(value)
    if types.is_decimal(kind):
        return decimal.Decimal(value)
    if types.is_duration(kind):
        return datetime.timedelta(microseconds=value)
    if types.is_floating(kind) and isinstance(value, dict):
        return float(value["float"])
    return value
