"""The data source on a standalone cluster: a master and two workers, executors of their own.

Streams and batches, read and write, over two nodes, and kill -9 of an executor in mid-stream
(R18, R19).  That executors without Penstock get it is shown by `test_pipeline_cli.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import standalone
from tests.spark import jvm
from tests.spark.driver_process import Driver, Member, kill, members_of
from tests.spark.ledger import (
    START_SECONDS_MAX,
    STEP_SECONDS_MAX,
    Publisher,
    Streams,
    judge,
    prepare,
)
from tests.support.daemon import Nsqd


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, Any]]:
    environment = {"JAVA_TOOL_OPTIONS": jvm.QUICK}
    plan = standalone.ClusterPlan(tmp_path / "cluster", port=0, environment=environment)
    try:
        standalone.start(plan)
        running = standalone.status(plan.folder)
        assert running is not None
        yield running
    finally:
        standalone.stop(plan.folder)


def at_work(cluster: dict[str, Any]) -> dict[str, list[Member]]:
    """By worker: an executor that has run tasks, with its Python workers."""
    found = {}
    for process in cluster["processes"]:
        members = [each for each in members_of(process["pid"]) if each.pid != process["pid"]]
        if any(each.runs_tasks for each in members):
            found[process["name"]] = members
    return found


@pytest.mark.timeout(600)
def test_streams_and_batches_run_on_executors_and_outlive_one(
    cluster: dict[str, Any], tmp_path: Path
) -> None:
    with Nsqd(tmp_path / "a") as first, Nsqd(tmp_path / "b") as second:
        nodes = (first, second)
        addresses = prepare(nodes)
        publisher, streams = Publisher(nodes), Streams(nodes)
        with publisher.running(), Driver("tests.spark.copy_job") as driver:
            driver.start(str(tmp_path), addresses, cluster["master"])
            driver.wait_for("running", START_SECONDS_MAX)
            streams.get_on(driver)
            streams.wait(driver, lambda: set(at_work(cluster)) == {"worker-1", "worker-2"})
            kill(at_work(cluster)["worker-2"])
            streams.get_on(driver)
            publisher.stop()
            streams.catch_up(driver)
            assert not driver.failures, driver.told
            driver.finish(STEP_SECONDS_MAX)
        judge(nodes, tmp_path, publisher)
