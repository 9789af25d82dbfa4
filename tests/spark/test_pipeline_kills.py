"""A pipeline that is killed over and over: each row has one fate, and stands where it belongs once.

Its function decides by chance, so that a row which is tried again after a kill would end elsewhere.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.driver_process import kill, members_of
from tests.spark.pipelines import bodies, publish
from tests.spark.test_pipeline_cli import PENSTOCK, QUICK_JVM
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

KILL_COUNT = 6
WAIT_S = 200.0

STEPS = """
import random

def fate(row):
    if random.random() < 0.5:
        raise ValueError("bad luck")
    return {"n": int(row["body"])}
"""

PIPELINE = """
name = "killed"
[source]
topics = "numbers"
nsqd_http_addresses = "ADDRESS"
max_messages = 2000
[[transform]]
function = "killed_steps:fate"
returns = "n bigint"
[retry]
max_attempts = 2
delay = "300ms"
[[sink]]
type = "parquet"
path = "table"
compact_after = "1ms"
[[sink]]
type = "topic"
topic = "results"
"""


class Publisher(threading.Thread):
    """Numbers, without an end until it is told."""

    def __init__(self, nsqd: Nsqd) -> None:
        super().__init__(daemon=True)
        self.nsqd = nsqd
        self.count = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            publish(self.nsqd, "numbers", [str(self.count + n).encode() for n in range(20)])
            self.count += 20


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with (tmp_path / "log").open("ab") as log:
        return subprocess.Popen(
            [
                *(PENSTOCK, "pipeline", "run", "killed.toml", "--master=local[2]", QUICK_JVM),
                *arguments,
            ],
            cwd=tmp_path,
            env={**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def test_each_row_has_one_fate_whatever_is_killed(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{nsqd.http_port}"
    (tmp_path / "killed.toml").write_text(PIPELINE.replace("ADDRESS", address))
    (tmp_path / "killed_steps.py").write_text(STEPS)
    publisher = Publisher(nsqd)
    publisher.start()
    chance = random.Random(5)
    done = tmp_path / "checkpoints" / "killed" / "commits"
    for _ in range(KILL_COUNT):
        before = len(list(done.glob("[0-9]*")))
        process = start(tmp_path)
        give_up_s = time.monotonic() + WAIT_S
        while len(list(done.glob("[0-9]*"))) <= before and time.monotonic() < give_up_s:
            assert process.poll() is None, (tmp_path / "log").read_text()[-4000:]
            time.sleep(0.05)
        time.sleep(chance.uniform(0.0, 2.0))
        while members := members_of(process.pid):
            kill(members)
            time.sleep(0.01)
        process.wait(10)
    publisher.over.set()
    publisher.join(10)
    # Once for the rest, and again for what it deferred.
    for _ in range(2):
        process = start(tmp_path, "--set=trigger.available_now=true")
        assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()[-4000:]
        time.sleep(1.0)

    table = Counter(row["n"] for row in spark.read.parquet(str(tmp_path / "table")).collect())
    results = Counter(json.loads(body)["n"] for body in bodies(spark, nsqd, "results"))
    dead = Counter(
        int(json.loads(body)["row"]["body"]["text"]) for body in bodies(spark, nsqd, "killed.dead")
    )
    assert table == results
    assert table + dead == Counter(range(publisher.count))
    print(f"{publisher.count} rows, {KILL_COUNT} kills", file=sys.stderr)
