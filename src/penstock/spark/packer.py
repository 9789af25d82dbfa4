"""Packs record batches into MPUB bodies, by topic and by whether rows are deferred.

    body     binary or string       the message body; required
    topic    string                 the topic, unless the option topic sets it for all rows
    defer    integer                milliseconds from now
             interval day to second from now
             timestamp              at that time
             null, 0 or the past    not deferred

The other columns of a read of ``nsq`` (node, index, id, timestamp) are ignored, so that a topic can
be copied.  Any other column is an error, because its data would be lost silently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.core.columns import Packer
from penstock.errors import OptionError, QueryError
from penstock.spark.option_kinds import COLUMNS
from penstock.spark.options import Options
from penstock.wire.names import EPHEMERAL, is_valid_name

if TYPE_CHECKING:
    import pyarrow

# One part becomes one batch of the log.
PART_SIZE_MAX = 4 << 20
# Limit on the unfinished parts of all topics together.
HELD_SIZE_MAX = 32 << 20

BODY_TYPES = (BinaryType, StringType)
DEFER_TYPES = (ByteType, ShortType, IntegerType, LongType, DayTimeIntervalType, TimestampType)
MS_NS, US_NS = 1_000_000, 1_000

Put = Callable[[str, bytes, int, bool], None]  # topic, body, count, deferred


@dataclass(frozen=True, slots=True)
class Shape:
    """The positions of the columns; -1 if a column is missing."""

    body: int
    topic: int
    defer: int
    defer_unit_ns: int = MS_NS
    defer_relative: bool = True

    @classmethod
    def of(cls, schema: StructType, options: Options) -> Shape:
        types = {field.name: field.dataType for field in schema.fields}
        others = sorted(set(types) - {*COLUMNS, "defer"})
        if "body" not in types or others:
            raise OptionError(
                "a write needs a column body, and may have topic and defer; "
                f"it has {', '.join(types)}"
            )
        if not options.topic and "topic" not in types:
            raise OptionError("a write needs the option topic or a column topic")
        _check_type(types, "body", BODY_TYPES, "binary or string")
        _check_type(types, "topic", (StringType,), "string")
        _check_type(
            *(types, "defer", DEFER_TYPES),
            "an integer of milliseconds, an interval day to second or a timestamp",
        )
        places = {field.name: place for place, field in enumerate(schema.fields)}
        defer = types.get("defer")
        return cls(
            places["body"],
            -1 if options.topic else places["topic"],
            places.get("defer", -1),
            US_NS if isinstance(defer, TimestampType | DayTimeIntervalType) else MS_NS,
            not isinstance(defer, TimestampType),
        )


def _check_type(
    types: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], noun: str
) -> None:
    if name in types and not isinstance(types[name], allowed):
        raise OptionError(f"column {name} must be {noun}, not {types[name].simpleString()}")


class Rows:
    """Collects rows until a part is full, and calls ``put`` with it."""

    def __init__(self, shape: Shape, topic: str, put: Put) -> None:
        self._shape = shape
        self._topic = topic
        self._put = put
        self._packers: dict[tuple[str, bool], Packer] = {}
        self._checked: set[str] = set()

    def add(self, batch: pyarrow.RecordBatch) -> None:
        shape = self._shape
        body = batch.column(shape.body)
        if body.null_count:
            raise QueryError("column body has a null; a message needs a body")
        if shape.defer < 0:
            self._route(batch, body, None)
            return
        due_ns, late = self._due(batch.column(shape.defer))
        on_time = _inverted(late)
        self._route(batch.filter(on_time), body.filter(on_time), None)
        self._route(batch.filter(late), body.filter(late), due_ns.filter(late))

    def finish(self) -> None:
        """Put the parts that are not full."""
        for (topic, deferred), packer in self._packers.items():
            self._flush(topic, deferred, packer)

    def _due(self, column: pyarrow.Array) -> tuple[pyarrow.Array, pyarrow.Array]:
        """When each row is due, and whether that is in the future."""
        import pyarrow as pa
        import pyarrow.compute as pc

        now_ns = time.time_ns()
        unit = pa.scalar(self._shape.defer_unit_ns, pa.int64())
        try:
            due_ns = pc.multiply_checked(pc.fill_null(column.cast(pa.int64()), 0), unit)
            if self._shape.defer_relative:
                due_ns = pc.add_checked(due_ns, pa.scalar(now_ns, pa.int64()))
        except pa.ArrowInvalid as error:
            raise QueryError(f"column defer is out of range: {error}") from None
        return due_ns, pc.greater(due_ns, now_ns)

    def _route(
        self, batch: pyarrow.RecordBatch, body: pyarrow.Array, due_ns: pyarrow.Array | None
    ) -> None:
        if not len(body):
            return
        if self._shape.topic < 0:
            self._pack(self._topic, body, due_ns, 0, len(body))
            return
        order, runs = _by_topic(batch.column(self._shape.topic))
        if len(runs) > 1:
            body = body.take(order)
            due_ns = None if due_ns is None else due_ns.take(order)
        start = 0
        for topic, count in runs:
            self._check(topic)
            self._pack(topic, body, due_ns, start, count)
            start += count

    def _check(self, topic: Any) -> None:
        if topic in self._checked:
            return
        if not topic or not is_valid_name(topic) or topic.endswith(EPHEMERAL):
            raise QueryError(f"column topic has {topic!r}, which is not a valid topic")
        self._checked.add(topic)

    def _pack(
        self,
        topic: str,
        body: pyarrow.Array,
        due_ns: pyarrow.Array | None,
        start: int,
        count: int,
    ) -> None:
        import pyarrow as pa

        deferred = due_ns is not None
        packer = self._packers.get((topic, deferred))
        if packer is None:
            packer = self._packers[topic, deferred] = Packer(PART_SIZE_MAX, deferred)
        _, offsets, values = body.buffers()
        wide = pa.types.is_large_binary(body.type) or pa.types.is_large_string(body.type)
        # A filtered or taken array starts at 0, so rows of both columns have the same positions.
        due = None if due_ns is None else due_ns.buffers()[1]
        try:
            full = packer.add(offsets, wide, values, body.offset + start, count, due)
        except ValueError as error:
            raise QueryError(f"topic {topic}: {error}") from None
        for part, part_count in full:
            self._put(topic, part, part_count, deferred)
        if len(self._packers) > 1:
            self._limit_size()

    def _limit_size(self) -> None:
        while sum(packer.size for packer in self._packers.values()) > HELD_SIZE_MAX:
            key = max(self._packers, key=lambda key: self._packers[key].size)
            self._flush(*key, self._packers.pop(key))

    def _flush(self, topic: str, deferred: bool, packer: Packer) -> None:
        part, count = packer.take()
        if count:
            self._put(topic, part, count, deferred)


def _inverted(mask: pyarrow.Array) -> pyarrow.Array:
    import pyarrow.compute as pc

    return pc.invert(mask)


def _by_topic(column: pyarrow.Array) -> tuple[pyarrow.Array, list[tuple[Any, int]]]:
    """An order of the rows by topic, and (topic, count) in that order."""
    import pyarrow.compute as pc

    encoded = column.dictionary_encode()
    codes = encoded.indices
    if codes.null_count:
        raise QueryError("column topic has a null")
    counts = {each["values"]: each["counts"] for each in pc.value_counts(codes).to_pylist()}
    names = encoded.dictionary.to_pylist()
    return pc.sort_indices(codes), [(names[code], counts[code]) for code in sorted(counts)]


def each_of(batches: Iterator[pyarrow.RecordBatch], rows: Rows) -> None:
    """Pack all of a task's rows."""
    for batch in batches:
        rows.add(batch)
    rows.finish()
