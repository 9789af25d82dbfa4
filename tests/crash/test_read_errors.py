"""A disk that cannot be read for a while costs time and nothing else; damage is reported.

Only a bad checksum, a missing file or one that is too short is damage.  What the disk refuses to
give is asked for again, with growing pauses, and /ping fails meanwhile.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.crash.lossy import KEEP, LossyFiles
from tests.support.client import Client as TcpClient
from tests.support.engine import SECOND, Client, Engine
from tests.support.faults import FaultyNsqd
from tests.support.waits import eventually

COUNT = 400
SEGMENT_SIZE = 8_000


def filled(files: LossyFiles, count: int = COUNT) -> tuple[Engine, Client]:
    """A topic of many small sealed segments, and one consumer that has seen nothing yet."""
    engine = Engine(files, max_bytes_per_file=SEGMENT_SIZE)
    client = Client(engine, "t", "a", ready_count=0)
    for number in range(count):
        assert engine.publish("t", b"%04d" % number) is None
    engine.settle()
    return engine, client


def bodies(count: int = COUNT) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


def finish_all_but(client: Client, *kept: bytes) -> dict[bytes, int]:
    """Take everything, finish it except for ``kept``; returns what was kept."""
    indexes = {}
    while taken := client.take():
        for received in taken:
            if received.body in kept:
                indexes[received.body] = received.index
            else:
                assert client.finish(received.index) == 0
        client.engine.settle()
    return indexes


def segments(engine: Engine) -> list[str]:
    return [record.path for record in engine.topic("t").log.segments()]


def test_stragglers_are_not_moved_while_their_segment_cannot_be_read() -> None:
    """R5: it was read as zeros, its messages dropped and the file removed."""
    files = LossyFiles()
    engine, client = filled(files)
    first = segments(engine)[0]
    files.faults.add(first, errno.EIO, "pread")
    client.ready(COUNT)
    engine.advance(2 * SECOND)
    files.faults.heal()
    engine.advance(2 * SECOND)
    kept = finish_all_but(client, b"0003", b"0007")
    assert sorted(kept) == [b"0003", b"0007"]
    files.faults.add(first, errno.EIO, "pread")
    engine.advance(8 * SECOND)
    assert first in segments(engine) and files.exists(first)
    assert "moving unfinished messages" in engine.components.health.text
    assert engine.components.damage.summary is None
    files.faults.heal()
    engine.advance(40 * SECOND)
    assert engine.components.health.problem is None, engine.components.health.text
    assert not files.exists(first), "it is moved once it can be read"
    for index in kept.values():
        assert client.requeue(index) == 0
    engine.advance(SECOND)
    assert [received.body for received in client.take()] == [b"0003", b"0007"]


def test_a_segment_that_could_not_be_moved_is_forgotten_once_it_is_finished() -> None:
    files = LossyFiles()
    engine, client = filled(files)
    client.ready(COUNT)
    engine.settle()
    kept = finish_all_but(client, b"0003")
    files.faults.add("*.log", errno.EIO, "pread")
    engine.advance(8 * SECOND)
    assert engine.components.health.problem is not None
    assert client.finish(kept[b"0003"]) == 0
    engine.advance(40 * SECOND)
    assert engine.components.health.problem is None, engine.components.health.text
    assert len(segments(engine)) <= 1


def test_damage_found_while_moving_is_reported_and_kept_before_the_segment_goes() -> None:
    """R3, R5: one of two was gone, without a line and without evidence."""
    files = LossyFiles()
    engine, client = filled(files)
    client.ready(COUNT)
    engine.settle()
    kept = finish_all_but(client, b"0003", b"0007")
    first = segments(engine)[0]
    files.edit(first, lambda data: data.__setitem__(data.index(b"0003"), ord("X")))
    engine.advance(20 * SECOND)
    (record,) = engine.components.damage.records
    assert (record.kind, record.topic, record.path, record.messages) == ("log", "t", first, 1)
    folder = first.rpartition("/")[0]
    assert any(name.endswith(".corrupt") for name in files.list(folder))
    assert not files.exists(first), "the other one is moved"
    assert client.requeue(kept[b"0007"]) == 0
    engine.advance(SECOND)
    assert [received.body for received in client.take()] == [b"0007"]
    assert client.finish(kept[b"0003"]) == 0, "whoever has it may still finish it"
    assert engine.components.health.problem is None


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3, 7])
def test_errors_of_reads_cost_no_message_and_no_consumer(times: int, cold: bool) -> None:
    """R3: also those of a segment's tables, which lost the consumer its place."""
    files = LossyFiles()
    engine, _ = filled(files)
    engine.crash(KEEP)
    engine.start()
    files.cold = cold
    client = Client(engine, "t", "a", ready_count=0)
    files.faults.add("*.log", errno.EIO, "pread", times=times)
    client.ready(COUNT)
    engine.advance(50 * SECOND)
    assert [received.body for received in client.take()] == bodies()
    assert engine.components.damage.summary is None
    assert engine.components.health.problem is None, engine.components.health.text


def test_a_long_time_of_read_errors_shows_in_health_until_it_is_over() -> None:
    files = LossyFiles()
    engine, _ = filled(files)
    engine.crash(KEEP)
    engine.start()
    client = Client(engine, "t", "a", ready_count=COUNT)
    files.faults.add("*.log", errno.EIO, "pread")
    engine.advance(20 * SECOND)
    assert client.take() == [] or engine.components.health.problem is not None
    assert "topic=t channel=a: [Errno 5]" in engine.components.health.text
    client.close()  # nobody is there to try it for
    files.faults.heal()
    engine.advance(31 * SECOND)
    assert engine.components.health.problem is None, engine.components.health.text
    again = Client(engine, "t", "a", ready_count=COUNT)
    engine.advance(5 * SECOND)
    assert [received.body for received in again.take()][-1] == bodies()[-1]
    assert engine.components.damage.summary is None


def test_a_channel_that_is_emptied_or_deleted_ends_its_trouble() -> None:
    files = LossyFiles()
    engine, _ = filled(files)
    engine.crash(KEEP)
    engine.start()
    Client(engine, "t", "a", ready_count=COUNT)
    Client(engine, "t", "b", ready_count=COUNT)
    files.faults.add("*.log", errno.EIO, "pread")
    engine.advance(SECOND)
    assert engine.components.health.problem is not None
    engine.done(engine.topic("t").channels["a"].empty())
    engine.done(engine.topic("t").delete_channel("b"))
    engine.advance(31 * SECOND)
    assert engine.components.health.problem is None, engine.components.health.text


def test_a_message_that_cannot_be_read_does_not_hold_up_the_others() -> None:
    """R13: those to be sent again take turns around it."""
    files = LossyFiles()
    engine, client = filled(files)
    client.ready(COUNT)
    engine.settle()
    taken = client.take()
    first = segments(engine)[0]
    client.ready(0)
    wanted = [taken[1], taken[2], taken[-2], taken[-1]]
    for received in taken:
        if received not in wanted:
            assert client.finish(received.index) == 0
    engine.topic("t").feed.tail.clear()
    files.faults.add(first, errno.EIO, "pread")
    files.cold = True
    for received in wanted:
        assert client.requeue(received.index) == 0
    client.ready(10)
    engine.advance(SECOND)
    assert {received.body for received in client.take()} == {r.body for r in wanted[2:]}
    assert "to be sent again" in engine.components.health.text
    files.faults.heal()
    engine.advance(31 * SECOND)
    assert {received.body for received in client.take()} == {r.body for r in wanted[:2]}
    assert engine.components.health.problem is None, engine.components.health.text


def test_a_real_nsqd_delivers_everything_after_its_disk_could_not_be_read(tmp_path: Path) -> None:
    with FaultyNsqd(tmp_path / "nsqd", "--max-bytes-per-file=20000") as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=a")
        for start in range(0, 2000, 100):
            lines = b"\n".join(b"%04d" % n for n in range(start, start + 100))
            assert nsqd.post("/mpub?topic=t", lines).status == 200
        nsqd.restart()
        nsqd.fault("*.log", errno.EIO, "pread")
        with TcpClient.of(nsqd).sub("t", "a", ready=2500) as consumer:
            assert eventually(lambda: nsqd.get("/ping").status == 500)
            assert "topic=t channel=a" in nsqd.get("/ping").text
            assert nsqd.channel("t", "a")["depth"] == 2000
            nsqd.heal()
            got = []
            for _ in range(2000):
                message = consumer.message()
                got.append(message.body)
                consumer.fin(message)
            assert sorted(got) == bodies(2000)
            assert eventually(lambda: nsqd.get("/ping").status == 200)
        assert nsqd.get("/damage").json == {"records": []}


def test_a_start_on_a_disk_that_cannot_be_read_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    """R3: bytes that could not be read were taken for damage, and skipped for good."""
    with FaultyNsqd(tmp_path / "nsqd", "--max-bytes-per-file=20000") as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=a")
        for start in range(0, 1000, 100):
            lines = b"\n".join(b"%04d" % n for n in range(start, start + 100))
            assert nsqd.post("/mpub?topic=t", lines).status == 200
        nsqd.kill()
        for pattern, actions in [
            ("*.log", ("pread", "size")),
            ("*/journal", ("read",)),
            ("*/topics/t~*", ("list",)),
            ("*/nsqd.dat", ("read",)),
            ("*/damage.json", ("exists",)),
        ]:
            nsqd.fault(pattern, errno.EIO, *actions)
            with pytest.raises(AssertionError):
                nsqd.start()
            assert "failed to instantiate nsqd - [Errno 5] Input/output error: '/" in nsqd.log
            nsqd.heal()
        nsqd.start()
        assert nsqd.channel("t", "a")["depth"] == 1000
        assert nsqd.get("/damage").json == {"records": []}
