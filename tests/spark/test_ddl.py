"""Types of schemas: what `penstock pipeline check` says without Spark, and Spark's own parser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import PipelineError
from penstock.pipeline.ddl import DECIMALS, INTERVALS, LENGTHS, NAMES, SIMPLE, TIMES, column_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

# What depends on a setting, or on lists that only Spark has, is left to Spark: not drawn here.
ZONES = ("without time zone", "with local time zone", "with time zone", "")
NUMBERS = st.integers(0, 6) | st.sampled_from([10, 38, 39, 99999999999])
NAMED = st.sampled_from(["a", "b_1", "`c d`", "`e``f`", "date", "not", "1x", "interval", "comment"])


def with_numbers(names: tuple[str, ...], count_max: int) -> st.SearchStrategy[str]:
    numbers = st.lists(NUMBERS, max_size=count_max)
    return st.builds(
        lambda name, found: f"{name}({', '.join(map(str, found))})" if found else name,
        st.sampled_from(names),
        numbers,
    )


SCALARS = st.one_of(
    st.sampled_from(SIMPLE),
    st.sampled_from(sorted({*NAMES, "text", "bool", "uuid", "itn", "null", "`int`"})),
    with_numbers(DECIMALS, 3),
    with_numbers(LENGTHS, 2),
    with_numbers(("time", "int", "date", "string"), 2),
    st.builds("interval {} to {}".format, *[st.sampled_from(sorted(INTERVALS))] * 2),
    st.builds("interval {}".format, st.sampled_from([*INTERVALS, "week"])),
    st.builds(
        "{} {}".format,
        st.sampled_from(TIMES),
        st.sampled_from(ZONES),
    ),
    st.sampled_from(["string collate UTF8_LCASE", "char(5) collate UNICODE", "timestamp(6)"]),
)


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    field = st.builds("{}{}{}{}".format, NAMED, st.sampled_from([":", " ", ": "]), inner, ENDS)
    return st.one_of(
        st.builds("array<{}>".format, inner),
        st.builds("MAP < {}, {}>".format, inner, inner),
        st.builds(lambda fields: f"struct<{', '.join(fields)}>", st.lists(field, max_size=3)),
        st.builds("map<{}>".format, inner),
    )


ENDS = st.sampled_from(
    [
        *("", "", "", " NOT NULL", " COMMENT 'x, y'", ' not  null comment "it\'s"', "/* > */"),
        *(" comment 'x' not null", " null", " default 3", ",", ">", " comment x"),
        *(" comment 'a' 'b'", " comment R'x'"),
    ]
)
TYPES = st.recursive(SCALARS, nested, max_leaves=4)
COLUMNS = st.builds("{}{}{}{}".format, NAMED, st.sampled_from([" ", ":", "\t"]), TYPES, ENDS)
SCHEMAS = st.builds(", ".join, st.lists(COLUMNS, min_size=1, max_size=3)) | st.builds(
    "struct<{}>".format, COLUMNS
)


def test_schemas_are_judged_as_spark_judges_them(spark: SparkSession) -> None:
    """Both ways: nothing that Spark takes is refused, and nothing passes that it would refuse."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    @given(SCHEMAS)
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    def judged(text: str) -> None:
        wanted: list[str] | None
        try:
            found = StructType.fromDDL(text)
            wanted = found.names if isinstance(found, StructType) else None
        except (PySparkException, Py4JJavaError):
            wanted = None
        names: list[str] | None
        try:
            names = column_names(text)
        except PipelineError:
            names = None
        assert names == wanted, text

    judged()
