from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.pipeline.envelope import ERROR_SIZE_MAX, Envelope, decode, encode, error_text

NOW = datetime.datetime(2026, 11, 15, 10, 0, tzinfo=datetime.UTC)
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "text": (pa.string(), "grüß dich"),
    "none": (pa.string(), None),
    "bytes": (pa.binary(), b"plain"),
    "raw": (pa.binary(), b"\xff\x00"),
    "long": (pa.int64(), 2**63 - 1),
    "flag": (pa.bool_(), True),
    "double": (pa.float64(), 0.1),
    "inf": (pa.float64(), float("-inf")),
    "time": (pa.timestamp("us", "UTC"), NOW.replace(microsecond=123456)),
    "naive": (pa.timestamp("us"), datetime.datetime(2026, 1, 1, 1, 1, 1, 7)),
    "day": (pa.date32(), datetime.date(2026, 11, 15)),
    "money": (pa.decimal128(10, 2), decimal.Decimal("12.30")),
    "span": (pa.duration("us"), datetime.timedelta(microseconds=5)),
    "list": (pa.list_(pa.binary()), [b"a", None]),
    "map": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    "nested": (pa.struct([("at", pa.date32())]), {"at": datetime.date(2026, 1, 1)}),
}
ROW_TYPE = pa.struct([(name, kind) for name, (kind, _) in TYPES.items()])
ROW = {name: value for name, (_, value) in TYPES.items()}


def test_every_type_comes_back_as_arrow_gives_it() -> None:
    row = pa.array([ROW], ROW_TYPE).to_pylist()[0]
    body = encode(Envelope("p", 2, "ValueError: no", row), NOW)
    assert decode(body, ROW_TYPE) == Envelope("p", 2, "ValueError: no", row)
    # ... and goes into Arrow again.
    assert pa.array([decode(body, ROW_TYPE).row], ROW_TYPE).to_pylist() == [row]


def test_a_person_can_read_it() -> None:
    body = encode(Envelope("orders", 1, "E: x", {"body": b"hello", "id": 7}), NOW)
    assert json.loads(body) == {
        "penstock": 1,
        "pipeline": "orders",
        "attempts": 1,
        "error": "E: x",
        "time": "2026-11-15T10:00:00+00:00",
        "row": {"body": {"text": "hello"}, "id": 7},
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b"{}",
        b'{"penstock": 2, "row": {}}',
        b'{"penstock": 1, "row": 5, "pipeline": "x", "attempts": 1, "error": ""}',
        b'{"penstock": 1, "row": {"bytes": 5}, "pipeline": "x", "attempts": 1, "error": ""}',
        b'{"penstock": 1, "row": {"money": "x"}, "pipeline": "x", "attempts": 1, "error": ""}',
        b'{"penstock": 1, "row": {"day": "x"}, "pipeline": "x", "attempts": 1, "error": ""}',
        b'{"penstock": 1, "row": {}, "pipeline": "x", "attempts": "many", "error": ""}',
        b"\xff",
    ],
)
def test_what_is_no_envelope_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode(body, ROW_TYPE)


def test_errors_are_bounded() -> None:
    assert error_text(KeyError("x")) == "KeyError: 'x'"
    assert len(error_text(ValueError("x" * 10_000))) == ERROR_SIZE_MAX
