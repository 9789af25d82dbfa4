"""Runs Python functions on the workers, row by row: a row passes, is retried, or is dropped.

    in:   row      struct   a row of the previous step          or null
          envelope binary   a message of the retry topic        or null
    out:  row      struct   the function's result               or null
          aside    struct   <topic, delay_ms, body>: a message  or null

Rule 1: every input row becomes output rows, or one message aside, or nothing if the function
        returns None.  This is decided once, here, and not evaluated again.
Rule 2: an exception in the function, or a result that does not match ``returns``, affects only this
        row.
Rule 3: an unreadable message of the retry topic goes to the dead letters as it is.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.pipeline.bodies import explain
from penstock.pipeline.envelope import Envelope, decode, encode, error_text
from penstock.pipeline.spec import Pipeline, Retry
from penstock.pipeline.user_code import load

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ASIDE = pa.struct([("topic", pa.string()), ("delay_ms", pa.int64()), ("body", pa.binary())])
ASIDE_DDL = "struct<topic: string, delay_ms: bigint, body: binary>"
BODY = pa.struct([("body", pa.binary())])
ROWS_MAX = 10_000  # in a returned batch; larger Arrow batches are slower


@dataclass(frozen=True, slots=True)
class Step:
    """The functions of a pipeline, and where the rows go that they refuse."""

    pipeline: str
    functions: tuple[Callable[[dict[str, Any]], Any], ...]
    result: pa.DataType  # struct of an output row; BODY if the functions return bodies
    retry: Retry
    retry_topic: str
    dead_topic: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function passed to ``mapInArrow``."""
        for batch in batches:
            yield from self._run(batch)

    def _run(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        row_type = batch.schema.field("row").type
        results = _Results(self.result)
        for item in batch.to_pylist():
            self._try(item["row"], item["envelope"], row_type, results)
            if results.count >= ROWS_MAX:
                yield results.take()
        if results.count:
            yield results.take()

    def _try(
        self,
        row: dict[str, Any] | None,
        body: bytes | None,
        row_type: pa.DataType,
        results: _Results,
    ) -> None:
        attempts = 0
        if row is None:
            assert body is not None
            try:
                envelope = decode(body, row_type)
            except ValueError as error:
                lost = Envelope(self.pipeline, 0, str(error), {"body": body})
                results.add_aside(self.dead_topic, 0, encode(lost, _now()))
                return
            row, attempts = envelope.row, envelope.attempts
        given = dict(row)  # the function may change its argument
        try:
            results.add_rows(self._apply(row))
        except Exception as error:
            self._refuse(Envelope(self.pipeline, attempts + 1, error_text(error), given), results)

    def _apply(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        rows: list[Any] = [row]
        for function in self.functions:
            rows = [result for row in rows for result in _several(function(row))]
        return [_body(row) for row in rows] if self.result == BODY else rows

    def _refuse(self, envelope: Envelope, results: _Results) -> None:
        if envelope.attempts >= self.retry.max_attempts:
            results.add_aside(self.dead_topic, 0, encode(envelope, _now()))
        else:
            delay_ms = self.retry.delay_of(envelope.attempts) // 1_000_000
            results.add_aside(self.retry_topic, delay_ms, encode(envelope, _now()))


def make_step(pipeline: Pipeline) -> Step:
    """The functions of a pipeline, ready to be sent to the workers."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    returns = pipeline.functions[-1].returns
    result = to_arrow_type(StructType.fromDDL(returns), timezone="UTC") if returns else BODY
    return Step(
        pipeline.name,
        tuple(load(step.function, pipeline.modules) for step in pipeline.functions),
        result,
        pipeline.retry,
        pipeline.retry_topic,
        pipeline.dead_topic,
    )


def make_invalid(pipeline: Pipeline, schemas: Mapping[str, StructType]) -> InvalidMessages:
    known = [(pipeline.sources[name].topics, schema) for name, schema in schemas.items()]
    return InvalidMessages(pipeline.name, tuple(known))


def outcome_ddl(pipeline: Pipeline) -> str:
    """The output columns of a step, for ``mapInArrow``."""
    from pyspark.sql.types import StructType

    returns = pipeline.functions[-1].returns
    row = StructType.fromDDL(returns).simpleString() if returns else "struct<body: binary>"
    return f"row {row}, aside {ASIDE_DDL}"


@dataclass(frozen=True, slots=True)
class InvalidMessages:
    """Messages whose body does not match the schema, with the reason."""

    pipeline: str
    schemas: tuple[tuple[tuple[str, ...], StructType], ...]  # by patterns of topics

    def _reason(self, topic: str, body: bytes | None) -> str:
        schema = next(
            schema
            for patterns, schema in self.schemas
            if any(fnmatchcase(topic, pattern) for pattern in patterns)
        )
        return explain(body or b"", schema)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Append a column ``reason``; passed to ``mapInArrow``."""
        for batch in batches:
            messages = zip(batch["topic"].to_pylist(), batch["body"].to_pylist(), strict=True)
            reasons = [self._reason(topic, body) for topic, body in messages]
            yield batch.append_column("reason", pa.array(reasons, pa.string()))

    def bodies(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return envelopes; passed to ``mapInArrow``."""
        for batch in batches:
            now = _now()
            bodies = [
                encode(
                    Envelope(self.pipeline, 0, self._reason(row["topic"], row["body"]), row), now
                )
                for row in batch.to_pylist()
            ]
            yield pa.record_batch([pa.array(bodies, pa.binary())], ["body"])


class _Results:
    """Rows and messages aside, until they are taken as one Arrow batch."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._rows: list[pa.Array] = []
        self._row_count = 0
        self._asides: list[dict[str, Any]] = []

    @property
    def count(self) -> int:
        return self._row_count + len(self._asides)

    def add_rows(self, rows: list[dict[str, Any]]) -> None:
        """Convert at once, so that a wrong type is an error of this row and not of the batch."""
        if rows:
            self._rows.append(pa.array(rows, self._kind))
            self._row_count += len(rows)

    def add_aside(self, topic: str, delay_ms: int, body: bytes) -> None:
        self._asides.append({"topic": topic, "delay_ms": delay_ms, "body": body})

    def take(self) -> pa.RecordBatch:
        aside_count, row_count = len(self._asides), self._row_count
        rows = pa.concat_arrays([*self._rows, pa.nulls(aside_count, self._kind)])
        asides = pa.concat_arrays([pa.nulls(row_count, ASIDE), pa.array(self._asides, ASIDE)])
        self._rows, self._row_count, self._asides = [], 0, []
        return pa.record_batch([rows, asides], ["row", "aside"])


def _several(result: Any) -> list[Any]:
    if result is None:
        return []
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _body(result: Any) -> dict[str, Any]:
    """A message body from the result of a function without ``returns``."""
    match result:
        case bytes():
            return {"body": result}
        case str():
            return {"body": result.encode()}
        case dict() if set(result) == {"body"} and isinstance(result["body"], (bytes, str)):
            return _body(result["body"])
        case dict():
            return {"body": json.dumps(result, ensure_ascii=False, default=str).encode()}
    raise TypeError(f"the function returned {type(result).__name__}, not a dict, str or bytes")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
