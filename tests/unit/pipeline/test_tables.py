"""Files of tables: the local folder, what is remembered, what is drawn."""

from __future__ import annotations

import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.errors import DataLossError, PipelineError
from penstock.pipeline.checkpoints import Checkpoint, check_fit, load
from penstock.pipeline.drawing import SERIES_MAX, History, blocks, largest, svg
from penstock.pipeline.faults import explain_fault
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.spec import PlotSink


def test_a_small_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path / "new" / "table"))
    assert folder.read("a/b.json") is None
    folder.write("a/b.json", b"1")
    folder.write("a/b.json", b"2")
    assert folder.read("a/b.json") == b"2"
    assert [file.path for file in folder.files()] == ["a/b.json"]
    folder.remove("a")
    folder.remove("a")
    assert list(folder.files()) == []


def test_a_move_may_be_repeated(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    folder.write("stage/x.parquet", b"rows")
    folder.write("stage/.x.parquet.crc", b"hadoop's")
    for _ in range(2):
        folder.move("stage/x.parquet", "k=1/y.parquet")
    assert [file.path for file in folder.files()] == ["k=1/y.parquet"]
    assert folder.read("k=1/y.parquet") == b"rows"


STORED = Checkpoint("orders", {"input": "nsq orders"}, "abc", ["parquet /t"], {"input": "id int"})


def test_a_checkpoint_is_remembered_and_fits(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    assert load(folder) is None
    folder.write("penstock.json", STORED.to_json())
    assert load(folder) == STORED
    assert check_fit(STORED, STORED, "/c") == []
    more = Checkpoint(**{**_fields(STORED), "sinks": ["parquet /t", "topic out"]})
    [change] = check_fit(STORED, more, "/c")
    assert change.startswith("sink topic out is new")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pipeline": "clicks"}, "belongs to the pipeline orders, not to clicks"),
        (
            {"sources": {"input": "nsq other"}},
            r"was created with the sources input \(nsq orders\), and now",
        ),
        ({"state": ""}, "contains the state of another query"),
    ],
)
def test_one_that_does_not_fit_is_told_with_what_to_do(
    change: dict[str, object], said: str
) -> None:
    now = Checkpoint(**{**_fields(STORED), **change})  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=f"the checkpoint /c {said}.*--checkpoint"):
        check_fit(STORED, now, "/c")


def test_a_checkpoint_of_another_program_is_told(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    folder.write("metadata", b'{"id":"..."}')
    with pytest.raises(PipelineError, match="was not created by"):
        load(folder)
    folder.write("penstock.json", b"{")
    with pytest.raises(PipelineError, match=r"penstock\.json is damaged"):
        load(folder)


def _fields(checkpoint: Checkpoint) -> dict[str, object]:
    return {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}


REPORT = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: x
Traceback (most recent call last):
  File "follow.py", line 258
penstock.errors.DataLossError: topic orders on nsqd h:1 was deleted and made again
"""


CAST = "[CAST_INVALID_INPUT] The value 'x' of the type STRING cannot be cast to INT. Use try_cast"


class Report(Exception):
    """As Spark tells of an error."""

    __module__ = "pyspark.errors"


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([RuntimeError(REPORT)], "topic orders on nsqd h:1 was deleted and made again.  fail_on"),
        ([DataLossError("gone"), RuntimeError(REPORT)], "gone"),
        (
            [None, RuntimeError("java.io.IOException: No space left on device\nat x")],
            "disk is full",
        ),
        ([KeyError("x"), Report(REPORT.replace("penstock.errors", "x"))], "KeyError: 'x'"),
        ([Report("x\nValueError: bad\n")], "ValueError: bad"),
        ([Report(f"[STREAM_FAILED] Query [id] x\n{CAST}\nValueError: bad")], "The value 'x' of"),
        ([Report("\n  something else\nat y")], "something else"),
        ([Report("")], "Spark gave no reason"),
    ],
)
def test_a_fault_is_told_in_a_sentence(errors: list[BaseException | None], said: str) -> None:
    assert said in explain_fault(*errors)


PLOT = PlotSink(path="x", series="topic", values=("count", "size"), points=3)
START = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)


def rows(count: int, topic: str = "a") -> list[dict[str, object]]:
    return [
        {"time": START + datetime.timedelta(seconds=n), "topic": topic, "count": n, "size": None}
        for n in range(count)
    ]


def test_points_are_kept_bounded_and_over_restarts(tmp_path: Path) -> None:
    path = str(tmp_path / "x.svg")
    history = History(path, "title", PLOT)
    assert history.add(rows(5)) == 5
    assert history.add(rows(5)) == 5  # the same again
    history.draw()
    again = History(path, "title", PLOT)
    assert again.points == history.points
    assert [point["count"] for point in again.points["a"].values()] == [2.0, 3.0, 4.0]
    root = ElementTree.fromstring((tmp_path / "x.svg").read_text())
    assert "count" in "".join(root.itertext())


def test_a_line_breaks_where_points_are_missing() -> None:
    points = {"<a>": {float(n): {"v": 1.0} for n in (0, 1, 2, 50, 51)}}
    text = svg("t", points, ("v",))
    assert text.count("<polyline") == 2
    assert "&lt;a&gt;" in text


def test_the_largest_series_are_drawn() -> None:
    points = {str(n): {0.0: {"v": float(n)}} for n in range(SERIES_MAX + 5)}
    assert next(iter(largest(points, "v"))) == str(SERIES_MAX + 4)
    assert svg("t", points, ("v",)).count("<polyline") == SERIES_MAX


def test_a_terminal_gets_blocks() -> None:
    [line] = blocks("count", {"a": {float(n): {"v": float(n)} for n in range(9)}}, "v")
    assert line.endswith("▁▂▃▄▅▆▇██ 8")
    assert blocks("count", {}, "v") == []
