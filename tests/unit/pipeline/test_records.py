from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.pipeline.bodies import explain
from penstock.pipeline.envelope import Envelope, encode
from penstock.pipeline.records import BODY, ROWS_MAX, InvalidMessages, Step
from penstock.pipeline.spec import Retry
from tests.unit.pipeline.test_envelope import NOW

ROW = pa.struct([("n", pa.int64())])
RETRY = Retry(max_attempts=3, delay_ns=10**9, delay_max_ns=3 * 10**9)


def step(*functions: Any, result: pa.DataType = ROW) -> Step:
    return Step("p", functions, result, RETRY, "p.retry", "p.dead")


def run(
    step: Step, rows: list[dict[str, Any] | None], envelopes: list[bytes | None] | None = None
) -> tuple[list[Any], list[dict[str, Any]]]:
    """(rows that go on, messages aside with their bodies decoded)."""
    columns = [
        pa.array(rows, ROW),
        pa.array(envelopes or [None] * len(rows), pa.binary()),
    ]
    batch = pa.record_batch(columns, ["row", "envelope"])
    found = [item for out in step(iter([batch])) for item in out.to_pylist()]
    asides = [item["aside"] for item in found if item["aside"] is not None]
    assert all((item["row"] is None) != (item["aside"] is None) for item in found)
    for aside in asides:
        aside["body"] = json.loads(aside["body"])
    return [item["row"] for item in found if item["row"] is not None], asides


def fail(row: dict[str, Any]) -> Any:
    raise ValueError(f"no {row['n']}")


def test_a_row_becomes_one_or_several_or_none() -> None:
    def spread(row: dict[str, Any]) -> Any:
        return {0: None, 1: row, 2: [row, row]}[row["n"]]

    rows, asides = run(step(spread), [{"n": n} for n in (0, 1, 2)])
    assert rows == [{"n": 1}, {"n": 2}, {"n": 2}]
    assert asides == []


def test_functions_follow_one_another() -> None:
    rows, _ = run(
        step(lambda row: [row, {"n": row["n"] + 1}], lambda row: {"n": row["n"] * 10}), [{"n": 1}]
    )
    assert rows == [{"n": 10}, {"n": 20}]


def test_a_failure_comes_again_later_and_concerns_one_row() -> None:
    def odd(row: dict[str, Any]) -> Any:
        row["n"] += 1  # the retry gets the row as it came
        return fail(row) if row["n"] % 2 == 0 else row

    rows, [aside] = run(step(odd), [{"n": 2}, {"n": 1}, {"n": 4}])
    assert rows == [{"n": 3}, {"n": 5}]
    assert (aside["topic"], aside["delay_ms"]) == ("p.retry", 1000)
    assert (aside["body"]["attempts"], aside["body"]["error"]) == (1, "ValueError: no 2")
    assert aside["body"]["row"] == {"n": 1}


@pytest.mark.parametrize(
    ("attempts", "topic", "delay_ms"),
    [(1, "p.retry", 2000), (2, "p.dead", 0), (7, "p.dead", 0)],
)
def test_attempts_grow_until_the_row_is_dead(attempts: int, topic: str, delay_ms: int) -> None:
    envelope = encode(Envelope("p", attempts, "E", {"n": 5}), NOW)
    _, [aside] = run(step(fail), [None], [envelope])
    assert (aside["topic"], aside["delay_ms"]) == (topic, delay_ms)
    assert aside["body"]["attempts"] == attempts + 1


def test_a_retry_that_succeeds_goes_on() -> None:
    envelope = encode(Envelope("p", 2, "E", {"n": 5}), NOW)
    assert run(step(lambda row: row), [None], [envelope]) == ([{"n": 5}], [])


def test_nonsense_in_the_retry_topic_is_dead() -> None:
    _, [aside] = run(step(lambda row: row), [None], [b"who am I"])
    assert aside["topic"] == "p.dead"
    assert aside["body"]["row"] == {"body": {"text": "who am I"}}
    assert "Expecting value" in aside["body"]["error"]


def test_a_result_of_another_type_is_a_failure_of_that_row() -> None:
    rows, [aside] = run(step(lambda row: {"n": "x" if row["n"] == 1 else 5}), [{"n": 0}, {"n": 1}])
    assert rows == [{"n": 5}]
    assert aside["body"]["error"].startswith("Arrow")


@pytest.mark.parametrize(
    ("result", "body"),
    [
        (b"\xff", b"\xff"),
        ("text", b"text"),
        ({"a": 1}, b'{"a": 1}'),
        ({"body": b"x"}, b"x"),
        ({"body": "x", "b": 1}, b'{"body": "x", "b": 1}'),
    ],
)
def test_without_columns_the_result_is_a_body(result: Any, body: bytes) -> None:
    assert run(step(lambda row: result, result=BODY), [{"n": 1}]) == ([{"body": body}], [])


def test_a_body_of_no_kind_is_a_failure() -> None:
    _, [aside] = run(step(lambda row: 5, result=BODY), [{"n": 1}])
    assert "the function returned int, not a dict, str or bytes" in aside["body"]["error"]


def test_what_is_returned_comes_in_bounded_batches() -> None:
    rows = [{"n": n} for n in range(1000)]
    columns = [pa.array(rows, ROW), pa.nulls(1000, pa.binary())]
    batch = pa.record_batch(columns, ["row", "envelope"])
    out = list(step(lambda row: [row] * 30)(iter([batch])))
    assert sum(len(each) for each in out) == 30_000
    assert max(len(each) for each in out) < ROWS_MAX + 30


SCHEMA = StructType(
    [
        StructField("id", LongType(), False),
        StructField("total", DoubleType()),
        StructField("small", IntegerType()),
        StructField("flag", BooleanType()),
        StructField("at", TimestampType()),
        StructField("tags", ArrayType(StringType())),
        StructField("counts", MapType(StringType(), LongType())),
        StructField("who", StructType([StructField("age", LongType())])),
    ]
)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"\xff{}", "not UTF-8: byte 0xff at 0"),
        (b"hello", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"id":1}x', "not JSON: Extra data: line 1 column 9 (char 8)"),
        (b"[1,2]", "list [1, 2], not an object"),
        (b"null", "null, not an object"),
        (b"{}", "id: missing"),
        (b'{"id":null}', "id: null"),
        (b'{"id":"x"}', 'id: "x" is not of type bigint'),
        (b'{"id":1.5}', "id: 1.5 is not of type bigint"),
        (b'{"id":9223372036854775808}', "id: 9223372036854775808 is not of type bigint"),
        (b'{"id":1,"small":2147483648}', "small: 2147483648 is not of type int"),
        (b'{"id":1,"total":"much"}', 'total: "much" is not of type double'),
        (b'{"id":1,"flag":1}', "flag: 1 is not of type boolean"),
        (b'{"id":1,"at":"yesterday"}', 'at: "yesterday" is not of type timestamp'),
        (b'{"id":1,"tags":"a"}', 'tags: "a" is not of type list'),
        (b'{"id":1,"counts":{"a":"b"}}', 'counts.a: "b" is not of type bigint'),
        (b'{"id":1,"who":[1]}', "who: list [1] is not of type object"),
        (b'{"id":1,"who":{"age":"old"}}', 'who.age: "old" is not of type bigint'),
        (b'{"id":1,"at":"2026-01-01T00:00:00Z"}', "does not match the schema"),
    ],
)
def test_the_reason_is_told(body: bytes, reason: str) -> None:
    assert explain(body, SCHEMA) == reason


def test_invalid_messages_carry_the_reason_of_their_own_schema() -> None:
    other = StructType([StructField("name", StringType(), False)])
    invalid = InvalidMessages("p", ((("a",), SCHEMA), (("b.*",), other)))
    columns = [pa.array(["a", "b.x"]), pa.array([b"{}", b"{}"], pa.binary())]
    batch = pa.record_batch(columns, ["topic", "body"])
    [rows] = invalid.rows(iter([batch]))
    assert rows["reason"].to_pylist() == ["id: missing", "name: missing"]
    [bodies] = invalid.bodies(iter([batch]))
    told = [json.loads(body) for body in bodies["body"].to_pylist()]
    assert [each["error"] for each in told] == ["id: missing", "name: missing"]
    assert told[0]["attempts"] == 0
    assert told[0]["row"] == {"topic": "a", "body": {"text": "{}"}}


def test_delays_double_up_to_the_longest() -> None:
    assert [RETRY.delay_of(n) // 10**9 for n in (1, 2, 3, 100)] == [1, 2, 3, 3]
