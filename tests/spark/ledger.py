"""What the kill tests share: a publisher that goes on, streams as the nodes see them, a judgement.

What is judged does not depend on when a kill hits: the publisher never sends a body twice, and the
source's own logs say what was published.
"""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pyarrow.feather

from penstock.core.columns import BODY, ID, decode
from tests.spark.copy_job import AGAIN, CHANNELS, ROWS, SOURCE, TARGET
from tests.spark.driver_process import Driver
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

# Long, for machines that do much else: none of it is waited for when all is well.
START_SECONDS_MAX = 150.0
STEP_SECONDS_MAX = 120.0
BODIES_PER_REQUEST = 20
PUBLISH_INTERVAL_S = 0.05


def prepare(nodes: Sequence[Nsqd]) -> str:
    """Make the topics; return the nodes' addresses."""
    for node in nodes:
        for topic in (SOURCE, TARGET, AGAIN):
            assert node.post(f"/topic/create?topic={topic}").status == 200
        # This channel keeps every message, for the comparison at the end.
        assert node.post(f"/channel/create?topic={SOURCE}&channel=kept").status == 200
    return ",".join(f"127.0.0.1:{node.http_port}" for node in nodes)


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
        self.wait(driver, lambda: len(self.channels()) == wanted)
        before = self.read_so_far()

        def further() -> bool:
            return all(map(operator.gt, self.read_so_far(), before))

        self.wait(driver, further)

    def catch_up(self, driver: Driver) -> None:
        self.wait(driver, lambda: not any(channel["depth"] for channel in self.channels()))

    def wait(self, driver: Driver, done: Callable[[], bool]) -> None:
        wait_until(done, STEP_SECONDS_MAX, lambda: f"{self.read_so_far()}\n{driver.told}")


def read_log(nsqd: Nsqd, topic: str) -> list[tuple[str, bytes]]:
    """Each message of a topic's log on a node: its id and its body."""
    found = []
    log = nsqd.get(f"/log?topic={topic}").json
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


def judge(nodes: Sequence[Nsqd], folder: Path, publisher: Publisher) -> None:
    """The table and both copies hold what the logs of the source hold, each message once."""
    published = [row for node in nodes for row in read_log(node, SOURCE)]
    bodies = [body for _, body in published]
    assert len(set(bodies)) == len(bodies) and publisher.acked <= set(bodies)
    table = pyarrow.feather.read_table(folder / ROWS)
    archived = zip(table["id"].to_pylist(), table["body"].to_pylist(), strict=True)
    compare("the table", Counter(archived), Counter(published))
    for topic in (TARGET, AGAIN):
        copied = Counter(body for node in nodes for _, body in read_log(node, topic))
        compare(topic, copied, Counter(bodies))


def compare(what: str, found: Counter[Any], wanted: Counter[Any]) -> None:
    lost, more = wanted - found, found - wanted
    assert not lost and not more, f"{what}: {lost.total()} lost, {more.total()} too many"
