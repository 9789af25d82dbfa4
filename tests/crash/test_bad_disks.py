"""Disks that fail or are slow, and clocks that step: the engine on files that do so when told."""

from __future__ import annotations

import asyncio
import errno
import itertools
import time
from pathlib import Path

import pytest

from penstock.clock import Clock
from penstock.core.ticket import Ticket
from penstock.engine.components import Components
from penstock.engine.context import Context, Supervisor
from penstock.engine.options import Options
from penstock.engine.recovery import open_data_path
from penstock.net.lookout import Lookout
from penstock.net.poller import Poller
from penstock.nsqd.disk_threads import ThreadDisk
from penstock.storage.datapath import DataPath
from penstock.storage.files import Files
from tests.crash.lossy import KEEP, LOSE, LossyFiles
from tests.support.engine import HOUR, MINUTE, MS, SECOND, Client, Engine

# Disks that fail


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_what_a_failed_sync_should_have_covered_is_written_again(sync_every: int) -> None:
    """R8: after a failed fdatasync the kernel may have dropped the pages."""
    files = LossyFiles()
    engine = Engine(files, sync_every=sync_every)
    Client(engine, "t", "a").close()
    assert engine.publish("t", b"one", b"two") is None
    engine.advance(3 * SECOND)
    files.fail("sync", errno.EIO)
    error = engine.publish("t", b"three")
    engine.advance(3 * SECOND)
    assert error is None, "group commit answers after the second try"
    assert engine.components.health.problem is None, engine.components.health.text
    engine.crash(LOSE)
    engine.start()
    assert set(engine.unfinished("t", "a")) == {b"one", b"two", b"three"}


def test_a_disk_that_fails_for_a_while_refuses_and_recovers() -> None:
    """R8, S4-2: EIO instead of ENOSPC."""
    files = LossyFiles()
    engine = Engine(files)
    client = Client(engine, "t", "a", 100)
    assert engine.publish("t", b"before") is None
    for _ in range(3):
        files.fail("append", errno.EIO)
        error = engine.publish("t", b"refused")
        assert isinstance(error, OSError) and error.errno == errno.EIO
        assert engine.components.health.problem is not None
    assert engine.publish("t", b"after") is None
    engine.advance(2 * SECOND)
    assert engine.components.health.problem is None
    assert [received.body for received in client.take()] == [b"before", b"after"]
    engine.crash(KEEP)
    engine.start()
    assert set(engine.unfinished("t", "a")) == {b"before", b"after"}


def test_a_journal_that_cannot_be_written_is_written_whole_later() -> None:
    """R8: finishes are not lost while the journal's disk fails, nor do they pile up."""
    files = LossyFiles()
    engine = Engine(files)
    client = Client(engine, "t", "a", 100)
    assert engine.publish("t", *[b"%d" % number for number in range(20)]) is None
    for received in client.take():
        client.finish(received.index)
        if received.index % 3 == 0:
            files.fail("append", errno.ENOSPC)
        engine.advance(300 * MS)
    files.failures.clear()
    engine.advance(5 * SECOND)
    assert engine.components.health.problem is None, engine.components.health.text
    assert engine.publish("t", b"new") is None
    engine.crash(KEEP)
    engine.start()
    assert set(engine.unfinished("t", "a")) == {b"new"}


# The clock


def test_a_clock_set_back_brings_no_index_and_no_append_time_back() -> None:
    """R1, R4, D-17: also over restarts."""
    engine = Engine(max_bytes_per_file=300)
    Client(engine, "t", "a").close()
    indexes: list[int] = []
    for number in range(6):
        assert engine.publish("t", b"%d" % number) is None
        engine.clock.step_wall(-HOUR)
        if number % 2:
            engine.crash(KEEP)
            engine.start()
        indexes.append(max(engine.logged("t")))
    assert indexes == sorted(set(indexes))
    segments = engine.topic("t").log.segments()
    assert len(segments) > 2
    for before, after in itertools.pairwise(segments):
        assert before.append_ns_last <= after.append_ns_first


def test_in_flight_deadlines_do_not_follow_the_wall_clock() -> None:
    """R4: a message times out after its timeout, whatever the clock on the wall does."""
    engine = Engine()
    client = Client(engine, "t", "a", 1, msg_timeout_ns=10 * SECOND)
    assert engine.publish("t", b"x") is None
    assert len(client.take()) == 1
    engine.clock.step_wall(HOUR)
    engine.advance(9 * SECOND)
    assert not client.take()
    engine.clock.step_wall(-3 * HOUR)
    engine.advance(2 * SECOND)
    (again,) = client.take()
    assert again.attempts == 2


def test_due_times_follow_a_stepped_clock_within_a_moment() -> None:
    """R4, D-17: what is due by the new time comes, what is not any more waits."""
    engine = Engine()
    client = Client(engine, "t", "a", 10, msg_timeout_ns=HOUR)
    assert engine.defer("t", HOUR, b"hour") is None
    assert engine.defer("t", 10 * MINUTE, b"minutes") is None
    engine.clock.step_wall(30 * MINUTE)
    engine.advance(300 * MS)
    (received,) = client.take()
    assert received.body == b"minutes"
    assert client.finish(received.index) == 0
    engine.clock.step_wall(-30 * MINUTE)
    engine.advance(40 * MINUTE)
    assert not client.take()
    engine.advance(21 * MINUTE)
    assert [received.body for received in client.take()] == [b"hour"]


# A slow disk


class SlowFiles(Files):
    """Appends to topics named slow take their time."""

    delay_s = 0.0

    def append(self, path: str, parts: object, offset: int = -1) -> int:
        if "/slow~" in path and path.endswith(".log"):
            time.sleep(self.delay_s)
        return super().append(path, parts, offset)  # type: ignore[arg-type]

    def sync(self, path: str) -> None:
        if "/slow~" in path:
            time.sleep(self.delay_s)
        super().sync(path)


def test_a_slow_disk_holds_only_its_own_topic(tmp_path: Path) -> None:
    """R9: the loop serves other topics while a write waits; one stall at most is noticed."""
    latencies_s = asyncio.run(_publish_beside_a_slow_topic(tmp_path))
    stalls = [latency_s for latency_s in latencies_s if latency_s > 0.1]
    assert len(latencies_s) > 50
    assert len(stalls) <= 1, sorted(latencies_s)[-5:]


async def _publish_beside_a_slow_topic(folder: Path) -> list[float]:
    loop = asyncio.get_running_loop()
    files = SlowFiles()
    disk = ThreadDisk(loop)
    options = Options(data_path=str(folder))
    data = DataPath(files, str(folder))
    supervisor = Supervisor()
    turns = Poller(loop, Lookout(loop.call_soon), supervisor)
    components = Components(Context(options, data, files, disk, turns, Clock(), supervisor))
    open_data_path(components)
    components.start()

    async def publish(topic: str) -> float:
        done = asyncio.Event()
        started_s = loop.time()
        ticket: Ticket = components.broker.create_topic(topic)[0].publish([b"x"])
        ticket.add(lambda _: done.set())
        await asyncio.wait_for(done.wait(), 10)
        assert ticket.error is None
        return loop.time() - started_s

    await publish("slow")
    await publish("fast")
    files.delay_s = 0.3
    end_s = loop.time() + 2.0
    slow = 0

    async def keep_slow_busy() -> None:
        nonlocal slow
        while loop.time() < end_s:
            await publish("slow")
            slow += 1

    busy = asyncio.create_task(keep_slow_busy())
    latencies_s = []
    while loop.time() < end_s:
        latencies_s.append(await publish("fast"))
        await asyncio.sleep(0.01)
    await busy
    assert slow >= 3
    files.delay_s = 0.0
    components.refuse_all()
    disk.close()
    files.close()
    return latencies_s
