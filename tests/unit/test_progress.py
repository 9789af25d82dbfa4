"""What pipelines report: one definition for those who write it and those who show it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.progress import NAME_SIZE_MAX, OVER, TEXT_SIZE_MAX, PipelineState, Progress


def test_what_is_written_is_read_again() -> None:
    told = Progress(
        *(
            "id",
            "orders",
            PipelineState.RETRYING,
            7,
            500,
            12.5,
            100.0,
            320,
            "parquet /lake",
            "boom",
        ),
        at_ms=1_700_000_000_000,
    )
    assert Progress.read(json.loads(json.dumps(told.as_json(), allow_nan=False))) == told


def test_every_state_has_its_word() -> None:
    words = ["starting", "running", "waiting", "retrying", "failed", "ended"]
    assert [str(state) for state in PipelineState] == words
    for word in words:
        read = Progress.read({"state": word})
        assert read is not None and read.state == word
    assert {"failed", "ended"} == OVER


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, True])
def test_what_is_no_report_is_none(value: Any) -> None:
    assert Progress.read(value) is None


def test_wrong_fields_are_not_known() -> None:
    wrong = (None, "x", -1, 1e300, float("nan"), [], {}, True, 1 << 80)
    for name in ("batch", "rows", "batch_ms", "at_ms", "input_rate", "processed_rate"):
        for value in wrong:
            read = Progress.read({name: value, "name": "n"})
            assert read is not None and getattr(read, name) is None, (name, value)
    for name in ("query", "name", "sink", "error", "state"):
        for value in (None, 5, [], {}):
            read = Progress.read({name: value, "rows": 1})
            assert read is not None and read == Progress(rows=1)


def test_texts_are_bounded_in_both_directions() -> None:
    long = "\ud800" + "x" * 100_000
    told = Progress(long, long, sink=long, error=long)
    raw = told.as_json()
    assert len(json.dumps(raw)) < 8 << 10
    assert (len(raw["name"]), len(raw["error"])) == (NAME_SIZE_MAX, TEXT_SIZE_MAX)
    read = Progress.read({"error": long})
    assert read is not None and len(read.error) == TEXT_SIZE_MAX
    read.error.encode()


def test_a_report_of_an_earlier_version_is_understood() -> None:
    read = Progress.read(
        {
            "query": "q",
            "batch": 3,
            "time": "2026-01-01T00:00:00.000Z",
            "rows": 10,
            "rows_per_second": 5.5,
            "duration_ms": 40,
        }
    )
    assert read == Progress(
        "q", batch=3, rows=10, processed_rate=5.5, batch_ms=40, at_ms=1_767_225_600_000
    )
    failed = Progress.read({"error": "boom"})
    assert failed is not None and failed.state is PipelineState.FAILED
