"""The works of `python -m bench.spark` run, on numbers so small that only their mechanics are
tested; the one with a Spark of its own is `beside`, of which the clients' part runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench import plots
from bench import spark as bench
from bench.broker import Broker, Make
from bench.spark import WORKS, Line
from bench.spark_works import bodies, clients, fill, read_size

from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "scan": {"messages": 1_000, "rounds": 1},
    "micro-batch": {"batches": 3, "rows": 10, "rounds": 1},
    "end-to-end": {"rate": 200, "seconds": 1.0},
    "sink": {"messages": 1_000, "rounds": 1},
}
FIGURES = {
    work.name: {name: 100.0 for line in work.lines for name in (line.metric, line.other) if name}
    for work in WORKS
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    make = Make("penstock", str(Path(sys.executable).parent / Nsqd.program))
    with Broker(make, tmp_path / "bench") as broker:
        yield broker


@pytest.mark.parametrize("work", [w for w in WORKS if w.needs_session], ids=lambda w: w.name)
def test_a_work_gives_its_figures(work: bench.Work, spark: SparkSession, tmp_path: Path) -> None:
    found = bench.run(work, spark, {**work.full, **SMALL[work.name]}, str(tmp_path))
    assert set(FIGURES[work.name]) <= set(found) and min(found.values()) >= 0
    assert all(line.cells(found) for line in work.lines)
    assert list(tmp_path.iterdir()) == []  # the broker's folder is gone


def test_clients_are_measured_and_so_is_what_is_read(broker: Broker) -> None:
    found = clients(broker, "topic", 2_000)
    assert found["publish"] > 0 and found["consume"] > 0
    assert read_size(broker) == 0


def test_rows_differ_and_are_counted(broker: Broker) -> None:
    assert {len(body) for body in bodies(1, 500)} == {200} and len(set(bodies(1, 500))) == 500
    fill(broker, "rows", 501)
    assert broker.get("/log?topic=rows").json["message_count"] == 501


def test_a_target_is_for_the_ratio_if_there_is_something_to_compare() -> None:
    line = Line("ours", "p50, ms", "{:.0f}", "theirs", at_most=1.5)
    assert line.cells({"ours": 40.0, "theirs": 30.0})[1:] == [
        *("40", "30", "1.33", "at most 1.5", "met")
    ]
    assert line.met({"ours": 46.0, "theirs": 30.0}) is False
    assert Line("rate", "rows/s", "{:,.0f}", at_least=0.5).met({"rate": 1.0}) is True
    assert Line("p99", "p99, ms", "{:.0f}").met({"p99": 1.0}) is None


def test_a_run_is_written_as_json_table_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda chosen, options: FIGURES)
    page = tmp_path / "page.md"
    page.write_text("before\n" + "".join(bench.MARKS) + "after\n")
    options = ["--json", str(tmp_path / "run.json"), "--markdown", str(page)]
    assert bench.main([*options, "--plots", str(tmp_path), "--strict"]) == 1  # 100 of everything
    assert json.loads((tmp_path / "run.json").read_text())["works"] == FIGURES
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert all(line.title in text for work in WORKS for line in work.lines)
    picture = (tmp_path / "bench-spark.svg").read_text()
    assert all(plots.SPARK_PANELS[name][0] in picture for name in plots.SPARK_PANELS)


def test_a_work_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["scans"])
    assert "unknown work 'scans'" in capsys.readouterr().err
