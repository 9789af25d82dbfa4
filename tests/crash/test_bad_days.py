"""Damaged files, wrong folders and disks that fail: a clear error, and the rest goes on.

Real nsqd processes; the failing and slow disks are files of the engine that do so when told.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.engine.broker import Broker
from penstock.engine.clock import Clock
from penstock.engine.opening import open_broker
from penstock.engine.options import Options
from penstock.engine.ticket import Ticket
from penstock.server.loop import LoopTurns, ThreadDisk
from penstock.storage.datapath import DataPath
from penstock.storage.files import Files
from penstock.wire import commands
from tests.crash.load import wait_until
from tests.crash.lossy import KEEP, LOSE, LossyFiles
from tests.crash.test_restart import folder_of, receive, subscribe
from tests.daemon import Nsqd
from tests.engine import HOUR, MINUTE, MS, SECOND, Client, Engine

# Starting


def refused(data_path: Path) -> str:
    """What nsqd logs when it will not start on ``data_path``."""
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "nsqd"),
            f"--data-path={data_path}",
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
        ],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    (fatal,) = [line for line in done.stderr.splitlines() if "FATAL" in line]
    return fatal


def test_a_missing_data_path_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in refused(tmp_path / "nowhere")


def test_a_file_as_data_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert str(tmp_path / "file") in refused(tmp_path / "file")


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Permissions do not stop root, a read-only mount does."""
    if os.geteuid():
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)
        return
    bind = ["mount", "--bind", str(folder), str(folder)]
    if subprocess.run(bind, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_a_read_only_data_path_is_refused(tmp_path: Path, used: bool) -> None:
    folder = tmp_path / "nsqd"
    folder.mkdir()
    if used:
        with Nsqd(folder) as nsqd:
            assert nsqd.post("/pub?topic=t", b"x").status == 200
    with read_only(folder):
        fatal = refused(folder)
    assert str(folder) in fatal
    assert "Read-only" in fatal or "Permission" in fatal


# Damaged files

BATCHES = 30
PER_BATCH = 10


def body_of(batch: int, place: int) -> bytes:
    return b"%d-%d " % (batch, place) + bytes(500)


def publish_all(nsqd: Nsqd) -> set[bytes]:
    """Batches of messages to t, for the channels a and b."""
    for channel in ("a", "b"):
        with nsqd.connect() as raw:
            subscribe(raw, "t", channel, 0)
    with nsqd.connect() as raw:
        for batch in range(BATCHES):
            bodies = [body_of(batch, place) for place in range(PER_BATCH)]
            assert raw.command(commands.mpub("t", bodies))[1] == b"OK"
    return {body_of(batch, place) for batch in range(BATCHES) for place in range(PER_BATCH)}


def drain(nsqd: Nsqd, channel: str, count: int) -> set[bytes]:
    """The next ``count`` messages, finished; more must not come."""
    with nsqd.connect() as raw:
        subscribe(raw, "t", channel, 2500)
        seen = set()
        for _ in range(count):
            message = receive(raw)
            seen.add(message.body)
            raw.send(commands.fin(message.id))
        assert raw.silent(0.3), "more than expected"
    assert len(seen) == count, "some came twice"
    return seen


def edit(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def flip(at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at] ^= 0x40

    return change


def test_a_corrupt_byte_in_a_sealed_segment_costs_one_batch(tmp_path: Path) -> None:
    """R3: later messages are delivered, the damage is counted and logged, the bytes are kept."""
    nsqd = Nsqd(tmp_path / "nsqd", "--max-bytes-per-file=30000")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        folder = folder_of(nsqd, "t")
        segment = sorted(folder.glob("*.log"))[1]
        edit(segment, flip(9000))
        nsqd.start()
        seen = drain(nsqd, "a", len(published) - PER_BATCH)
        lost = published - seen
        (batch,) = {body.split(b"-")[0] for body in lost}
        assert len(lost) == PER_BATCH and int(batch) > 3
        nsqd.wait_for_log(rf"topic=t.*{segment.name}.*corrupt|topic=t.*corrupt.*{segment.name}")
        wait_until(
            lambda: bool(list(folder.glob("*.corrupt"))), 5, lambda: f"{list(folder.iterdir())}"
        )
        assert nsqd.channel("t", "a")["depth"] == 0
        assert drain(nsqd, "b", len(seen)) == seen
        assert nsqd.post("/pub?topic=t", b"goes on").status == 200
        assert drain(nsqd, "a", 1) == {b"goes on"}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.extend(b"\xffgarbage" * 1000),
        lambda data: data.extend(data[64:4000]),
        lambda data: data.extend(bytes(10_000)),
    ],
    ids=["garbage", "old batches again", "zeros"],
)
def test_bytes_behind_the_last_batch_are_cut_off(
    tmp_path: Path, change: Callable[[bytearray], None]
) -> None:
    """R3: torn is not corrupt."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        (segment,) = folder_of(nsqd, "t").glob("*.log")
        edit(segment, change)
        nsqd.start()
        nsqd.wait_for_log(r"topic=t: .*torn")
        assert nsqd.post("/pub?topic=t", b"new").status == 200
        assert drain(nsqd, "a", len(published) + 1) == published | {b"new"}
        nsqd.kill()
        nsqd.start()
        assert "torn" not in nsqd.log, "torn once is enough"
        assert drain(nsqd, "b", len(published) + 1) == published | {b"new"}


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "garbage"])
def test_a_damaged_journal_loses_no_message_and_no_channel(tmp_path: Path, damage: str) -> None:
    """R3, R6: finished messages may come again, on all channels that nsqd.dat knows."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        drain(nsqd, "a", len(published))
        assert nsqd.post("/channel/pause?topic=t&channel=b").status == 200
        time.sleep(0.4)
        nsqd.kill()
        journal = folder_of(nsqd, "t") / "journal"
        if damage == "gone":
            journal.unlink()
        elif damage == "garbage":
            journal.write_bytes(os.urandom(500))
        elif damage == "cut":
            edit(journal, lambda data: data.__delitem__(slice(0, 20)))
        else:
            edit(journal, lambda data: [flip(at)(data) for at in range(5, len(data), 30)] and None)
        nsqd.start()
        channels = {c["channel_name"]: c for c in nsqd.stats()["topics"][0]["channels"]}
        assert set(channels) == {"a", "b"}
        nsqd.post("/channel/unpause?topic=t&channel=b")
        assert drain(nsqd, "b", len(published)) == published
        time.sleep(0.4)
        nsqd.kill()
        nsqd.start()
        assert nsqd.channel("t", "b")["depth"] == 0, "the journal was not written anew"


def test_a_damaged_nsqd_dat_is_put_aside(tmp_path: Path) -> None:
    """R6: the folders and journals are the truth, nsqd.dat is for people and tools."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        edit(nsqd.data_path / "nsqd.dat", lambda data: data.__delitem__(slice(10, 20)))
        nsqd.start()
        nsqd.wait_for_log(r"ERROR.*nsqd\.dat")
        assert (nsqd.data_path / "nsqd.dat.bad").exists()
        assert drain(nsqd, "a", len(published)) == published
        text = (nsqd.data_path / "nsqd.dat").read_text()
        assert [topic["name"] for topic in json.loads(text)["topics"]] == ["t"]


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', '{"format": 9, "uuid": "x"}'])
def test_a_damaged_node_json_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    """R1, R7: an identity is not made up silently; removing the file loses nothing."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        assert nsqd.terminate() == 0
        node = nsqd.data_path / "penstock" / "node.json"
        node.write_text(text)
        fatal = refused(nsqd.data_path)
        assert str(node) in fatal and "remove it" in fatal
        node.unlink()
        nsqd.start()
        assert drain(nsqd, "a", len(published)) == published


def test_unknown_files_are_left_alone(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        root = nsqd.data_path
        strangers = [
            root / "notes.txt",
            root / "penstock" / "lost+found" / "x",
            root / "penstock" / "topics" / "README",
            root / "penstock" / "topics" / "no-instance" / "00000000000000000001.log",
            folder_of(nsqd, "t") / "backup.log",
            folder_of(nsqd, "t") / "12.log",
            root / "penstock" / "deferred" / "x.slot",
            root / "penstock" / "deferred" / "1-2.slot.orig",
        ]
        for path in strangers:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"a stranger")
        nsqd.start()
        assert drain(nsqd, "a", len(published)) == published
        assert nsqd.terminate() == 0
        assert all(path.read_bytes() == b"a stranger" for path in strangers)


def test_a_damaged_slot_costs_only_what_was_damaged(tmp_path: Path) -> None:
    """D-15, S2-4: the other deferred messages of the file are delivered, on time."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        with nsqd.connect() as raw:
            subscribe(raw, "t", "a", 0)
        with nsqd.connect() as raw:
            for number in range(20):
                body = b"%02d" % number + bytes(300)
                assert raw.command(commands.dpub("t", 2000, body))[1] == b"OK"
        published_s = time.time()
        nsqd.kill()
        slots = list((nsqd.data_path / "penstock" / "deferred").glob("*.slot"))
        largest = max(slots, key=lambda path: path.stat().st_size)
        edit(largest, flip(largest.stat().st_size // 2))
        in_it = sum(1 for _ in re.finditer(rb"\d\d\0{300}", largest.read_bytes()))
        nsqd.start()
        with nsqd.connect() as raw:
            subscribe(raw, "t", "a")
            seen = {receive(raw).body[:2] for _ in range(19)}
            assert time.time() >= published_s + 1.5
            assert len(seen) == 19 and in_it >= 1
            assert raw.silent(0.5)


def test_a_folder_without_its_segments_still_opens(tmp_path: Path) -> None:
    """R1: a person removed files; new messages get new indexes and are delivered."""
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        publish_all(nsqd)
        with nsqd.connect() as raw:
            subscribe(raw, "t", "a", 1)
            old_id = receive(raw).id
        nsqd.kill()
        for path in folder_of(nsqd, "t").glob("*.log"):
            path.unlink()
        nsqd.start()
        assert nsqd.post("/pub?topic=t", b"new").status == 200
        with nsqd.connect() as raw:
            subscribe(raw, "t", "a")
            message = receive(raw)
            assert message.body == b"new" and message.id > old_id


def test_a_copied_data_path_opens(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "nsqd")
    with nsqd:
        published = publish_all(nsqd)
        nsqd.kill()
        shutil.copytree(nsqd.data_path, tmp_path / "copy")
    with Nsqd(tmp_path / "copy") as copy:
        assert drain(copy, "a", len(published)) == published


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
    assert engine.broker.healthy, engine.broker.health
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
        assert not engine.broker.healthy
    assert engine.publish("t", b"after") is None
    engine.advance(2 * SECOND)
    assert engine.broker.healthy
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
    assert engine.broker.healthy, engine.broker.health
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

    def append(self, path: str, parts: object) -> int:
        if "/slow~" in path and path.endswith(".log"):
            time.sleep(self.delay_s)
        return super().append(path, parts)  # type: ignore[arg-type]

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
    broker = Broker(options, data, files, disk, LoopTurns(loop), Clock())
    open_broker(broker)
    broker.start()

    async def publish(topic: str) -> float:
        done = asyncio.Event()
        started_s = loop.time()
        ticket: Ticket = broker.create_topic(topic)[0].publish([b"x"])
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
    broker.refuse_all()
    disk.close()
    files.close()
    return latencies_s
