"""Columns and types, judged without Spark; tests/spark/test_ddl.py compares with Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PipelineError
from penstock.pipeline.ddl import DEPTH_MAX, column_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("id bigint NOT NULL, total double", ["id", "total"]),
        ("a array<struct<x:int NOT NULL COMMENT 'y',`b c` map<string, date>>>", ["a"]),
        ('`a``b` decimal(10, 2) COMMENT "it\'s", c varchar(5)', ["a`b", "c"]),
        ("struct<a:int,b:interval day to second>", ["a", "b"]),
        ("-- of orders\nid long, /* when */ time timestamp_ntz", ["id", "time"]),
        ("select int, table string collate UTF8_LCASE, 1a void", ["select", "table", "1a"]),
    ],
)
def test_names_of_columns_are_found(text: str, names: list[str]) -> None:
    assert column_names(text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id bigintt", r"column id: Spark has no type 'bigintt' \(did you mean bigint\?\); its t"),
        ("a struct<b:array<bool>>", r"column a.b: Spark has no type 'bool' \(did you mean boolea"),
        ("a int, b uuid", r"column b: Spark has no type 'uuid' \(did you mean string\?\)"),
        ("a `int`", r"column a: Spark has no type '`int`' \(did you mean int\?\)"),
        ("a", "column a: its type is missing"),
        ("a int,", "a column must follow the comma"),
        ("", "no columns; write name type"),
        ("int", "column int: its type is missing"),
        ("a int b int", "column a: only NOT NULL and COMMENT may follow its type, not 'b'"),
        ("a int null", "column a: only .* may follow its type, not 'null'"),
        ("a int not nul", "column a: 'null' must follow NOT, not 'nul'"),
        ("a int comment x", "a text in quotes must follow COMMENT, not 'x'"),
        ("a array", "column a: '<' must follow array, not the end"),
        ("a map<string>", "',' must follow the type of a map's keys, not '>'"),
        ("a array<int", "column a: '>' must follow what array holds, not the end"),
        ("a varchar", r"column a: varchar needs a length, such as varchar\(10\)"),
        ("a decimal(39,1)", "column a: decimal has at most 38 digits, not 39"),
        ("a decimal(5,6)", "the scale exceeds the precision"),
        ("a int(3)", "column a: int takes no length"),
        ("a interval month to year", "interval month can end with nothing, not with year"),
        ("a-b int", "the name that starts with a must be in backquotes"),
        ("größe int", "the name that starts with größe must be in backquotes"),
        ("a int;", "may follow its type, not ';'"),
        ("a time(10)", "time takes 0 to 9 fractional digits"),
        ("a geometry", "geometry needs a reference system"),
        ("a " + "array<" * 1000, f"nested more than {DEPTH_MAX} deep"),
    ],
)
def test_what_is_wrong_is_told_with_its_column(text: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        column_names(text)


@given(st.text(alphabet="ab1 \n<>(),:.`'\"-*/intNOTULarystc", max_size=60) | st.text())
def test_any_text_is_judged(text: str) -> None:
    try:
        assert column_names(text)
    except PipelineError as error:
        assert str(error)
