"""`penstock pipeline run` as a process: a second start, signals to all of it, faults that pass."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from tests.spark.driver_process import Member, kill, members_of, send
from tests.spark.pipelines import publish
from tests.spark.test_pipeline_cli import PENSTOCK, QUICK_JVM, call
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

pytestmark = pytest.mark.timeout(600)

WAIT_S = 120.0
PIPELINE = """
name = "slow"
[source]
topics = "numbers"
nsqd_http_addresses = "ADDRESS"
max_messages = 40
options = { retryTimeout = "1s" }
[[transform]]
function = "slow_steps:step"
returns = "n bigint"
[[sink]]
type = "parquet"
path = "table"
[[sink]]
type = "topic"
topic = "results"
"""
# A batch takes a while: a signal meets one.
STEPS = """
import time

def step(row):
    time.sleep(0.02)
    return {"n": int(row["body"])}
"""


class Process:
    """A run, with all that it starts."""

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self.path = tmp_path
        self.log = tmp_path / f"log.{len(list(tmp_path.glob('log.*')))}"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(PENSTOCK, "pipeline", "run", "slow.toml", "--master=local[2]", QUICK_JVM),
                    *arguments,
                ],
                cwd=tmp_path,
                env={**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def members(self) -> list[Member]:
        return members_of(self.pid)

    @property
    def java(self) -> Member:
        [java] = [each for each in self.members() if re.match(r"\S*/java ", each.command)]
        return java

    def until(self, holds: Callable[[], object]) -> None:
        wait_until(
            holds, WAIT_S, lambda: self.said, lambda: self._process.poll() is None, poll_s=0.05
        )

    def status(self) -> dict[str, Any]:
        [found] = json.loads(call(self.path, "pipeline", "status", "--json").stdout)
        return dict(found)

    def signal_all(self, number: int) -> None:
        """As systemd does to a control group: every process, in any order."""
        send(number, self.members())

    def wait(self, seconds: float = WAIT_S) -> int:
        return self._process.wait(seconds)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        give_up_s = time.monotonic() + 10
        while (members := self.members()) and time.monotonic() < give_up_s:
            kill(members)
            time.sleep(0.01)
        self._process.wait(10)


@pytest.fixture
def folder(nsqd: Nsqd, tmp_path: Path) -> Path:
    address = f"127.0.0.1:{nsqd.http_port}"
    (tmp_path / "slow.toml").write_text(PIPELINE.replace("ADDRESS", address))
    (tmp_path / "slow_steps.py").write_text(STEPS)
    return tmp_path


def numbers(folder: Path) -> Counter[int]:
    """The rows of the table, read by something else than Spark."""
    if not list((folder / "table").glob("*.parquet")):
        return Counter()
    return Counter(pyarrow.dataset.dataset(folder / "table").to_table()["n"].to_pylist())


def published(nsqd: Nsqd, topic: str) -> int:
    return int(nsqd.get(f"/log?topic={topic}").json["message_count"])


def test_stops_refusals_and_faults_that_pass_lose_and_repeat_nothing(
    nsqd: Nsqd, folder: Path
) -> None:
    publish(nsqd, "numbers", [str(n).encode() for n in range(200)])
    with Process(folder) as run:
        stop_while_spark_starts(run)
    with Process(folder) as run:
        run.until(lambda: numbers(folder))
        refuse_a_second_start(run)
        replace_a_killed_jvm(run)
        run.until(lambda: len(numbers(folder)) == 200)
        wait_for_a_node(run, nsqd)
        publish(nsqd, "numbers", [str(n).encode() for n in range(200, 600)])
        run.until(lambda: len(numbers(folder)) > 200)
        stop_all_processes(run)
    assert 200 < len(numbers(folder)) < 600, "it was stopped in the middle"
    with Process(folder) as run:
        run.until(lambda: "reading numbers" in run.said and batch_is_under_way(folder))
        stop_twice(run)
    with Process(folder, "--set=trigger.available_now=true") as rest:
        assert rest.wait() == 0, rest.said
    assert numbers(folder) == Counter(range(600))
    assert published(nsqd, "results") == 600


def stop_while_spark_starts(run: Process) -> None:
    run.until(lambda: "starting Spark" in run.said)
    begun_s = time.monotonic()
    run.signal_all(signal.SIGTERM)
    assert run.wait(20) == 0, run.said
    assert time.monotonic() - begun_s < 10
    assert "interrupted while Spark is starting" in run.said and "Traceback" not in run.said, (
        run.said
    )
    assert not list(run.path.rglob("lock.json*")), "the locks are given back"


def refuse_a_second_start(run: Process) -> None:
    second = call(run.path, "pipeline", "run", "slow.toml")
    # The lock is asked before Spark starts.
    assert (second.returncode, "starting Spark" in second.stderr) == (4, False), second.stderr
    who = f"pipeline slow is already running: process {run.pid} on "
    assert who in second.stderr and ", since 2" in second.stderr
    shown = run.status()
    assert (shown["lock"]["pid"], shown["state"]) == (run.pid, "running")
    assert f"lock: process {run.pid} on " in call(run.path, "pipeline", "status").stdout


def replace_a_killed_jvm(run: Process) -> None:
    killed = run.java
    kill([killed])
    run.until(lambda: "the Spark session has died" in run.said)
    run.until(lambda: run.said.count("reading numbers") + run.said.count(" is running\n") >= 3)
    assert run.java.pid != killed.pid


def wait_for_a_node(run: Process, nsqd: Nsqd) -> None:
    nsqd.kill()
    run.until(lambda: run.status()["state"] == "retrying")
    told = run.status()
    assert told["attempt"] >= 1 and "answer" in told["error"]
    run.until(lambda: "retrying" in call(run.path, "pipeline", "status").stdout)
    nsqd.start()
    run.until(lambda: run.status()["state"] == "running")
    assert run.status()["error"] == ""


def stop_all_processes(run: Process) -> None:
    """The JVM and the Python workers ignore it: the batch is written to its end."""
    run.signal_all(signal.SIGTERM)
    # Also if Spark begins the next batch at this moment: neither waits for the other.
    assert run.wait(30) == 0, run.said
    assert "stopping after this batch" in run.said
    assert not list(run.path.rglob("lock.json*")), "the locks are given back"


def batch_is_under_way(folder: Path) -> bool:
    """Its function is slow, and what it gives is being written."""
    return bool(list((folder / "checkpoints" / "slow").glob("outcome/*/_temporary")))


def stop_twice(run: Process) -> None:
    java = run.java.pid
    run.signal_all(signal.SIGTERM)
    run.until(lambda: "stopping after this batch" in run.said)
    time.sleep(0.3)  # two within 0.2 s are one
    run.signal_all(signal.SIGINT)
    assert run.wait(10) == 128 + signal.SIGINT, run.said
    assert "stopped immediately" in run.said
    wait_until(lambda: all(member.pid != java for member in run.members()), WAIT_S)
