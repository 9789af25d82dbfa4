"""What a replay reads and writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PipelineError
from penstock.pipeline.consistency import check
from penstock.pipeline.replay import place_of, replayed
from penstock.pipeline.spec import ParquetSink, Pipeline
from penstock.pipeline.spec_file import from_table
from penstock.settings.places import parse_place

EARLIEST = parse_place("earliest")


def declared(folder: Path, **tables: Any) -> Pipeline:
    source = {"nsqd_http_addresses": "a:1", "topics": "t", **tables.pop("source", {})}
    sink = {"type": "parquet", "path": "out", **tables.pop("sink", {})}
    return check(from_table({"name": "p", "source": source, "sink": sink, **tables}, (), folder))


def test_a_replay_has_places_of_its_own(tmp_path: Path) -> None:
    pipeline = declared(
        tmp_path, source={"options": {"startingOffsets": "latest", "pageSize": "1"}}
    )
    found = replayed(pipeline, parse_place("1790856000000000000"), str(tmp_path / "new"))
    [sink] = found.sinks
    assert isinstance(sink, ParquetSink) and sink.path == str(tmp_path / "new")
    assert found.trigger.once and found.checkpoint_path.startswith(f"{tmp_path}/new/_penstock/")
    assert found.invalid_topic == "" and found.invalid.path == str(tmp_path / "new-invalid")
    [source] = found.sources.values()
    assert source.start == "2026-10-01T12:00:00+00:00"
    assert dict(source.options) == {"pageSize": "1"}
    assert replayed(pipeline, EARLIEST, str(tmp_path / "b")).sources["input"].start == "earliest"


def test_a_replay_since_before_1970_reads_everything(tmp_path: Path) -> None:
    found = replayed(declared(tmp_path), parse_place("-36500d"), str(tmp_path / "new"))
    assert found.sources["input"].start == "1970-01-01T00:00:00+00:00"


@pytest.mark.parametrize("output", ["out", "out/part", "checkpoints/p", ".", "there", "file"])
def test_nothing_that_exists_is_written_to(tmp_path: Path, output: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "part.parquet").touch()
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="new folder"):
        replayed(declared(tmp_path), EARLIEST, str(tmp_path / output))


def test_an_old_checkpoint_is_refused(tmp_path: Path) -> None:
    pipeline = declared(tmp_path)
    with pytest.raises(PipelineError, match="new folder"):
        replayed(pipeline, EARLIEST, str(tmp_path / "new"), pipeline.checkpoint_path)


def test_what_needs_a_stream_or_several_outputs_is_refused(tmp_path: Path) -> None:
    for tables, text in (
        ({"sink": {"type": "console", "path": None}}, "one sink|a table"),
        ({"source": {"watermark": "1 minute"}}, "need a stream"),
    ):
        table = {key: dict(value) for key, value in tables.items()}
        if table.get("sink", {}).get("type") == "console":
            source = {"nsqd_http_addresses": "a:1", "topics": "t"}
            given = {"name": "p", "source": source, "sink": {"type": "console"}}
            pipeline = check(from_table(given, (), tmp_path))
        else:
            pipeline = declared(tmp_path, **table)
        with pytest.raises(PipelineError, match=text):
            replayed(pipeline, EARLIEST, str(tmp_path / "new"))
    with pytest.raises(PipelineError, match="--replay needs --output"):
        replayed(declared(tmp_path), EARLIEST, "")
    with pytest.raises(PipelineError, match="of this machine"):
        replayed(declared(tmp_path), EARLIEST, "s3://bucket/new")


@pytest.mark.parametrize("text", ["latest", "queued", "index:3", "tomorrow", ""])
def test_places_that_are_none_for_a_replay(text: str) -> None:
    with pytest.raises(ValueError):
        place_of(text)
