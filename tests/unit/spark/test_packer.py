"""Rows into parts, by topic and by when they are due."""

from __future__ import annotations

import struct
import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from penstock.errors import OptionError, QueryError
from penstock.spark import packer
from penstock.spark.options import WRITE, Options, parse_options
from penstock.spark.packer import Rows, Shape

NODES = {"nsqdHttpAddresses": "127.0.0.1:4151"}


def options(**given: str) -> Options:
    return parse_options({**NODES, **given}, WRITE)


def shape(ddl: str, **given: str) -> Shape:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (column.split(" ", 1) for column in ddl.split(", "))
    ]
    return Shape.of(StructType.fromJson({"fields": fields}), options(**given))


class Parts:
    """What would be staged: (topic, deferred, [(due_ns, body)])."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, bool, list[tuple[int, bytes]]]] = []

    def put(self, topic: str, data: bytes, count: int, deferred: bool) -> None:
        at, found = 4, []
        assert struct.unpack_from(">I", data) == (count,)
        for _ in range(count):
            due_ns = struct.unpack_from(">q", data, at)[0] if deferred else 0
            at += 8 if deferred else 0
            (size,) = struct.unpack_from(">I", data, at)
            found.append((due_ns, data[at + 4 : at + 4 + size]))
            at += 4 + size
        assert at == len(data)
        self.parts.append((topic, deferred, found))


def packed(shape: Shape, *batches: dict[str, Any], topic: str = "") -> Parts:
    parts = Parts()
    rows = Rows(shape, topic, parts.put)
    for batch in batches:
        rows.add(pa.RecordBatch.from_pydict(batch))
    rows.finish()
    return parts


def bodies(parts: Parts, topic: str, deferred: bool = False) -> list[bytes]:
    return [b for t, d, rows in parts.parts if (t, d) == (topic, deferred) for _, b in rows]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_bodies_are_text_or_bytes(kind: pa.DataType) -> None:
    batch = {"body": pa.array(["one", "zwei", "drü"], pa.string()).cast(kind)}
    parts = packed(shape("body string", topic="t"), batch, batch, topic="t")
    assert bodies(parts, "t") == [b"one", b"zwei", "drü".encode()] * 2
    assert len(parts.parts) == 1


def test_a_slice_of_a_batch_is_taken_as_it_is() -> None:
    parts = Parts()
    rows = Rows(shape("body string", topic="t"), "t", parts.put)
    rows.add(pa.RecordBatch.from_pydict({"body": ["a", "b", "c", "d"]}).slice(1, 2))
    rows.finish()
    assert bodies(parts, "t") == [b"b", b"c"]


def test_a_topic_column_routes_rows_in_their_order() -> None:
    made = shape("body string, topic string")
    first = {"body": ["1", "2", "3", "4"], "topic": ["b", "a", "b", "a"]}
    second = {"body": ["5", "6"], "topic": ["a", "a"]}
    parts = packed(made, first, second)
    assert bodies(parts, "a") == [b"2", b"4", b"5", b"6"]
    assert bodies(parts, "b") == [b"1", b"3"]


def test_the_option_topic_goes_before_the_column() -> None:
    made = shape("body string, topic string", topic="t")
    parts = packed(made, {"body": ["1"], "topic": ["other"]}, topic="t")
    assert bodies(parts, "t") == [b"1"]


def test_rows_are_deferred_by_milliseconds_intervals_or_times() -> None:
    now_ns = time.time_ns()
    hour_us = 3_600_000_000
    later_us = now_ns // 1000 + hour_us
    cases = {
        "long": pa.array([3_600_000, 0, None, -5], pa.int64()),
        "short": pa.array([30_000, 0, None, -5], pa.int16()),
        "interval day to second": pa.array([hour_us, 0, None, -5], pa.duration("us")),
        "timestamp": pa.array([later_us, 0, None, 1], pa.timestamp("us", tz="UTC")),
    }
    for kind, column in cases.items():
        made = shape(f"body string, defer {kind}", topic="t")
        parts = packed(made, {"body": ["1", "2", "3", "4"], "defer": column}, topic="t")
        assert bodies(parts, "t") == [b"2", b"3", b"4"], kind
        ((_, _, [(due_ns, body)]),) = [part for part in parts.parts if part[1]]
        assert body == b"1"
        delay_ns = 30_000_000_000 if kind == "short" else hour_us * 1000
        assert abs(due_ns - now_ns - delay_ns) < 10_000_000_000, kind


def test_deferred_rows_are_routed_too() -> None:
    made = shape("body string, topic string, defer integer")
    batch = {
        "body": ["1", "2", "3", "4"],
        "topic": ["b", "a", "b", "a"],
        "defer": pa.array([50_000, 90_000, 70_000, None], pa.int32()),
    }
    parts = packed(made, batch)
    assert bodies(parts, "a") == [b"4"]
    assert bodies(parts, "a", True) == [b"2"]
    assert bodies(parts, "b", True) == [b"1", b"3"]
    (due,) = (rows for topic, deferred, rows in parts.parts if topic == "b" and deferred)
    assert due[1][0] - due[0][0] == 20_000_000_000


def test_a_part_stays_below_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "PART_SIZE_MAX", 1000)
    made = shape("body string", topic="t")
    parts = packed(made, {"body": ["x" * 66] * 55}, topic="t")
    assert [len(rows) for _, _, rows in parts.parts] == [10, 10, 10, 10, 10, 5]


def test_many_topics_together_stay_below_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "HELD_SIZE_MAX", 1000)
    made = shape("body string, topic string")
    parts = Parts()
    rows = Rows(made, "", parts.put)
    for i in range(40):
        rows.add(pa.RecordBatch.from_pydict({"body": ["x" * 50], "topic": [f"t{i}"]}))
        assert sum(packer.size for packer in rows._packers.values()) <= 1000
    rows.finish()
    assert sorted(topic for topic, _, _ in parts.parts) == sorted(f"t{i}" for i in range(40))


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({"body": ["a", None], "topic": ["t", "t"]}, "column body has a null"),
        ({"body": ["a", ""], "topic": ["t", "t"]}, "topic t: row 1: the body is empty"),
        ({"body": ["a", "b"], "topic": ["t", None]}, "column topic has a null"),
        ({"body": ["a"], "topic": ["no topic"]}, "'no topic', which is not a valid topic"),
        ({"body": ["a"], "topic": ["t#ephemeral"]}, "which is not a valid topic"),
    ],
)
def test_rows_that_are_no_messages_are_refused(batch: dict[str, Any], text: str) -> None:
    with pytest.raises(QueryError, match=text):
        packed(shape("body string, topic string"), batch)


def test_a_time_beyond_all_bounds_is_refused() -> None:
    made = shape("body string, defer long", topic="t")
    with pytest.raises(QueryError, match="defer is out of range"):
        packed(made, {"body": ["a"], "defer": [2**62]}, topic="t")


@pytest.mark.parametrize(
    ("ddl", "given", "text"),
    [
        ("value string", {"topic": "t"}, "needs a column body.*it has value"),
        ("body string, deffer integer", {"topic": "t"}, "it has body, deffer"),
        ("body string", {}, "needs the option topic or a column topic"),
        ("body integer", {"topic": "t"}, "column body must be binary or string, not int"),
        ("body string, topic integer", {}, "column topic must be string, not int"),
        ("body string, defer string", {"topic": "t"}, "column defer must be an integer"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    ddl: str, given: dict[str, str], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        shape(ddl, **given)


def test_what_a_read_gives_can_be_written() -> None:
    made = shape(
        "topic string, node string, index long, id string, timestamp timestamp, body binary"
    )
    assert (made.body, made.topic, made.defer) == (5, 0, -1)
