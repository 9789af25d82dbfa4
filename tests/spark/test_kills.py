"""Exactly once, whatever is killed (R18, R19).

Two streams run in a driver process of their own, topic to Parquet and topic to topic, over two
nodes, while a publisher goes on.  In turn kill -9 hits the Python workers of the executors, a node,
the driver's own Python processes, the driver with its JVM and all workers, and at last driver and
node together when the node has published and the driver does not know.  In the end the table and
the target topic hold what the logs of the source hold: no row is lost, none is there twice.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.spark.copy_job import CHANNELS
from tests.spark.driver_process import Driver
from tests.spark.ledger import (
    START_SECONDS_MAX,
    STEP_SECONDS_MAX,
    Publisher,
    Streams,
    judge,
    prepare,
)
from tests.support.daemon import Nsqd
from tests.support.proxy import Proxy
from tests.support.waits import wait_until

WORKER_KILLS = 3


def kill_workers_again_and_again(driver: Driver, streams: Streams) -> None:
    killed, failures = 0, len(driver.failures)
    for _ in range(WORKER_KILLS):
        killed += driver.kill_workers()
        streams.get_on(driver)
    assert killed >= WORKER_KILLS
    assert len(driver.failures) == failures, driver.told


def kill_planners(driver: Driver, streams: Streams) -> None:
    """Spark cannot go on without them: the queries fail and are started again."""
    failures = len(driver.failures)
    assert driver.kill_planners() == len(CHANNELS)
    wait_until(
        lambda: len(driver.failures) >= failures + len(CHANNELS),
        STEP_SECONDS_MAX,
        lambda: driver.told,
    )
    streams.get_on(driver)


def kill_node(node: Nsqd, driver: Driver, streams: Streams) -> None:
    failures = len(driver.failures)
    node.kill()
    time.sleep(1)  # the streams run into it
    node.start()
    streams.get_on(driver)
    assert len(driver.failures) == failures, driver.told


def kill_driver_and_node_in_mid_commit(driver: Driver, node: Nsqd, proxy: Proxy) -> None:
    """The node has published its part of a batch, and nobody has heard of it."""
    proxy.hold_answer(b"POST /staging/publish")
    assert proxy.holding.wait(STEP_SECONDS_MAX), driver.told
    time.sleep(1)  # it publishes
    driver.kill()
    node.kill()
    node.start()


@pytest.mark.timeout(600)
def test_no_row_is_lost_and_none_is_there_twice_whatever_is_killed(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "a") as first, Nsqd(tmp_path / "b") as second:
        nodes = (first, second)
        addresses = prepare(nodes)
        publisher, streams = Publisher(nodes), Streams(nodes)
        with (
            publisher.running(),
            Proxy(first.http_port) as proxy,
            Driver("tests.spark.copy_job") as driver,
        ):

            def start(addresses: str) -> None:
                driver.start(str(tmp_path), addresses).wait_for("running", START_SECONDS_MAX)
                streams.get_on(driver)

            start(addresses)
            kill_workers_again_and_again(driver, streams)
            kill_node(second, driver, streams)
            kill_planners(driver, streams)
            driver.kill()
            start(f"{proxy.address},127.0.0.1:{second.http_port}")
            kill_driver_and_node_in_mid_commit(driver, first, proxy)
            start(addresses)
            publisher.stop()
            streams.catch_up(driver)
            driver.finish(STEP_SECONDS_MAX)
        judge(nodes, tmp_path, publisher)
