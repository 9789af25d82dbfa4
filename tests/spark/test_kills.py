"""Exactly once, whatever is killed (R18, R19).

Two streams run in a driver process of their own, topic to Parquet and topic to topic, over two
nodes, while a publisher goes on.  In turn kill -9 hits the Python workers of the executors, a node,
the driver's own Python processes, the driver with its JVM and all workers, and at last driver and
node together when the node has published and the driver does not know.  In the end the table and
the target topic hold what the logs of the source hold: no row is lost, none is there twice.

What is judged does not depend on when a kill hits: the publisher never sends a body twice, and the
source's own logs say what was published.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pyarrow.feather
import pytest

from penstock.core.columns import BODY, ID, decode
from tests.daemon import Nsqd
from tests.proxy import Proxy
from tests.spark.copying import CHANNELS, ROWS, SOURCE, TARGET
from tests.spark.driving import Driver

# Long, for machines that do much else: none of it is waited for when all is well.
START_SECONDS_MAX = 150.0
STEP_SECONDS_MAX = 120.0
WORKER_KILLS = 3
BODIES_PER_REQUEST = 20
PUBLISH_INTERVAL_S = 0.05


def ok(nsqd: Nsqd, target: str, method: str = "GET", body: bytes | None = None) -> Any:
    reply = nsqd.http(method, target, body)
    assert reply.status == 200, (target, reply.text)
    return reply.json


class Publisher:
    """Publishes to the nodes in turn and goes on when one is away; no body is sent twice."""

    def __init__(self, nodes: Sequence[Nsqd]) -> None:
        self.acked: set[bytes] = set()
        self._nodes = nodes
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def running(self) -> Iterator[Publisher]:
        self._thread.start()
        try:
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        turn = 0
        while not self._stop.wait(PUBLISH_INTERVAL_S):
            node = self._nodes[turn % len(self._nodes)]
            turn += 1
            bodies = [b"%012d" % (self._number + n) + b"." * 100 for n in range(BODIES_PER_REQUEST)]
            self._number += len(bodies)
            try:
                reply = node.http("POST", f"/mpub?topic={SOURCE}", b"\n".join(bodies))
            except (OSError, HTTPException):
                continue  # killed, or not back yet; whether it has them is for its log to say
            if reply.status == 200:
                self.acked.update(bodies)


class Streams:
    """How far the two streams are, as the nodes see it."""

    def __init__(self, nodes: Sequence[Nsqd]) -> None:
        self.nodes = nodes

    def channels(self) -> list[Any]:
        """The statistics of each stream's channel on each node, as far as they are made yet."""
        return [
            channel
            for node in self.nodes
            for channel in node.stats(f"&topic={SOURCE}")["topics"][0]["channels"]
            if channel["channel_name"] in CHANNELS.values()
        ]

    def read_so_far(self) -> list[int]:
        """How far each stream has committed, on each node."""
        return [channel["pull"]["low"] for channel in self.channels()]

    def get_on(self, driver: Driver) -> None:
        """Wait until each stream has come further on each node."""
        wanted = len(self.nodes) * len(CHANNELS)
        self._wait(driver, lambda: len(self.channels()) == wanted)
        before = self.read_so_far()

        def further() -> bool:
            return all(map(operator.gt, self.read_so_far(), before))

        self._wait(driver, further)

    def catch_up(self, driver: Driver) -> None:
        self._wait(driver, lambda: not any(channel["depth"] for channel in self.channels()))

    def _wait(self, driver: Driver, done: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + STEP_SECONDS_MAX
        while not done():
            assert time.monotonic() < give_up_s, f"{self.read_so_far()}\n{driver.told}"
            time.sleep(0.1)


def read_log(nsqd: Nsqd, topic: str) -> list[tuple[str, bytes]]:
    """Each message of a topic's log on a node: its id and its body."""
    found = []
    log = ok(nsqd, f"/log?topic={topic}")
    start, end = log["first"], log["end"]
    while start < end:
        target = f"/log/read?topic={topic}&instance={log['instance']}&start={start}&end={end}"
        reply = nsqd.get(target)
        assert reply.status == 200, reply.text
        columns = decode(reply.body, start, end, ID | BODY)
        ids = columns.id
        bodies = columns.body
        offsets = memoryview(columns.body_offsets or b"").cast("i")
        assert ids is not None and bodies is not None
        for n in range(columns.count):
            id = bytes(ids[16 * n : 16 * n + 16]).decode()
            found.append((id, bytes(bodies[offsets[n] : offsets[n + 1]])))
        start = int(reply.headers["X-Penstock-Next"])
    return found


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
    give_up_s = time.monotonic() + STEP_SECONDS_MAX
    while len(driver.failures) < failures + len(CHANNELS):
        assert time.monotonic() < give_up_s, driver.told
        time.sleep(0.1)
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
        for node in nodes:
            # This channel keeps every message, for the comparison at the end.
            for target in (f"/topic/create?topic={SOURCE}", f"/topic/create?topic={TARGET}"):
                assert node.post(target).status == 200
            assert node.post(f"/channel/create?topic={SOURCE}&channel=kept").status == 200
        addresses = [f"127.0.0.1:{node.http_port}" for node in nodes]
        publisher, streams = Publisher(nodes), Streams(nodes)
        with (
            publisher.running(),
            Proxy(first.http_port) as proxy,
            Driver("tests.spark.copying") as driver,
        ):

            def start(*addresses: str) -> None:
                driver.start(str(tmp_path), ",".join(addresses)).wait_for(
                    "running", START_SECONDS_MAX
                )
                streams.get_on(driver)

            start(*addresses)
            kill_workers_again_and_again(driver, streams)
            kill_node(second, driver, streams)
            kill_planners(driver, streams)
            driver.kill()
            start(proxy.address, addresses[1])
            kill_driver_and_node_in_mid_commit(driver, first, proxy)
            start(*addresses)
            publisher.stop()
            streams.catch_up(driver)
            driver.finish(STEP_SECONDS_MAX)
        published = [row for node in nodes for row in read_log(node, SOURCE)]
        copied = [body for node in nodes for _, body in read_log(node, TARGET)]
    table = pyarrow.feather.read_table(tmp_path / ROWS)
    archived = list(zip(table["id"].to_pylist(), table["body"].to_pylist(), strict=True))
    bodies = {body for _, body in published}
    assert len(bodies) == len(published) and publisher.acked <= bodies
    assert sorted(archived) == sorted(published)
    assert sorted(copied) == sorted(bodies)
