"""Every workload of `make bench` runs, on numbers so small that only its mechanics are tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import plots, report, run, timing
from bench.broker import Broker, Make
from bench.workloads import WORKLOADS, Target, Workload

from tests.support.daemon import Nsqd

SMALL: dict[str, dict[str, Any]] = {
    "publish": {"messages": 2_000},
    "publish-4": {"messages": 2_000},
    "publish-http": {"requests": 200, "connections": 5},
    "publish-http-4": {"requests": 50},
    "publish-single": {"messages": 200, "connections": 5},
    "publish-alone": {"messages": 200},
    "consume": {"messages": 2_000},
    "consume-alone": {"messages": 200},
    "consume-upgraded": {"messages": 2_000, "ways": ["plain", "tls", "snappy"]},
    "consume-4": {"messages": 2_000},
    "channels": {"messages": 10_000, "channels": [1, 3]},
    "backlogs": {"messages": 20_000, "backlogs": [10_000, 20_000]},
    "backlog": {"messages": 5_000},
    "redelivery": {"channels": 5, "wait_s": 20},
    "deferred": {"far": 500, "near": 50, "near_s": 1},
    "deferred-restart": {"count": 50, "from_ms": 1_500, "to_ms": 2_000},
    "lost-consumer": {"in_flight": 20, "msg_timeout_s": 1},
    "idle": {"topics": 2, "channels": 5, "seconds": 1},
    "stuck": {"warm": 2_000, "messages": 5_000},
    "retained": {"segments": 20, "seeks": 5, "messages": 200},
    "retaining": {"retain_mib": 1, "rate": 20_000, "seconds": 1},
    "buried": {"messages": 2_000},
    "failing": {"messages": 2_000, "attempts": 2},
    "latency": {"rate": 500, "seconds": 1},
    "cold": {"count": 500, "seconds": 1},
    "new-topics": {"topics": 50, "rate": 100, "seconds": 2},
    "new-topics-synced": {"topics": 20, "rate": 100, "seconds": 2},
    "many-channels": {"channels": [10, 20]},
}
MAKE = Make("penstock", str(Path(sys.executable).parent / Nsqd.program))


def measured(workload: Workload, folder: Path) -> dict[str, float]:
    with Broker(MAKE, folder, *workload.flags) as broker:
        found = workload.run(broker, **{**workload.full, **SMALL[workload.name]})
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_runs_and_its_figures_can_be_shown(
    workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "DROP_WAIT_S", 0.1)  # for figures to be true, not to be there
    found = {"penstock": measured(workload, tmp_path)}
    assert workload.title in report.text(workload, found)
    assert workload.title in report.markdown({"cores": "2"}, [(workload, found)])
    assert len(report.verdicts(workload, found)) == len(workload.targets)
    for metric in ("missing", "doubled", "early", "term_missing", "kill_missing"):
        assert found["penstock"].get(metric, 0) == 0


def test_a_quick_run_changes_no_parameter_that_does_not_exist() -> None:
    for workload in WORKLOADS:
        assert set(workload.quick) <= set(workload.full), workload.name


def test_a_target_is_judged_alone_or_against_go() -> None:
    assert Target("rate", 10, at_least=True).judge(10, None) is True
    assert Target("rate", 10).judge(11, None) is False
    assert Target("cpu_us", 0.5, of_go=True).judge(1.0, 2.0) is True
    assert Target("cpu_us", 0.5, of_go=True).judge(1.1, 2.0) is False
    assert Target("cpu_us", 0.5, of_go=True).judge(1.0, None) is None


def test_figures_are_medians_of_their_rounds() -> None:
    assert report.medians({"go": [{"rate": 1.0}, {"rate": 9.0}, {"rate": 2.0}]}) == {
        "go": {"rate": 2.0}
    }


def test_a_run_is_placed_between_the_marks_of_a_page() -> None:
    page = f"# Title\n{report.RUN_BEGIN}old\n{report.RUN_END}More.\n"
    placed = report.placed(page, "new\n")
    assert placed == f"# Title\n{report.RUN_BEGIN}\nnew\n{report.RUN_END}More.\n"
    assert report.placed("no marks", "new\n") == "new\n"
    docs = (Path(run.__file__).parents[1] / "docs" / "benchmarks.md").read_text()
    assert report.RUN_BEGIN in docs
    assert report.RUN_END in docs


def test_pictures_are_the_same_for_the_same_figures(tmp_path: Path) -> None:
    found = {
        "publish": {"penstock": {"rate": 2e6, "cpu_us": 0.4}, "go": {"rate": 1e6, "cpu_us": 0.9}},
        "channels": {"penstock": {"cpu_us@1": 0.4, "cpu_us@10": 0.4}},
        "latency": {"go": {"p50_ms": 0.3, "p99_ms": 0.7, "max_ms": 2.0}},
    }
    first = plots.draw(tmp_path / "a", found)
    second = plots.draw(tmp_path / "b", found)
    assert [path.name for path in first] == [
        "bench-throughput.svg",
        "bench-growth.svg",
        "bench-on-time.svg",
    ]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_the_command_writes_its_results_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GO_NSQD", raising=False)
    small = {w.name: w for w in WORKLOADS}["publish"]
    monkeypatch.setitem(small.quick, "messages", 1_000)
    result, table = tmp_path / "r.json", tmp_path / "r.md"
    flags = ["--quick", "--json", str(result), "--markdown", str(table)]
    assert run.main([*flags, "--data-path", str(tmp_path), "publish"]) == 0
    assert "0 targets met, 0 missed, 2 not compared" in capsys.readouterr().out
    assert "publish" in json.loads(result.read_text())["workloads"]
    assert "| messages a second |" in table.read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "unknown workload 'nothing'"),
        (["--go-nsqd", "/no/such/nsqd"], "/no/such/nsqd is not a program"),
        (["--go-nsqd", "", "--only-go"], "--only-go needs --go-nsqd"),
    ],
)
def test_wrong_use_of_the_command_is_named(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(arguments)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
