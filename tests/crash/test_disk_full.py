"""A real nsqd on a file system of 40 MB that runs full (R8).

Publishes are refused and /ping says so; consumers go on; once there is room everything resumes by
itself; nothing acknowledged is lost, not even by a kill while the disk is full.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.support.daemon import ERROR, MESSAGE, RESPONSE, Nsqd, Raw
from tests.support.small_disk import small_disk
from tests.support.waits import wait_until

DISK_SIZE_MB = 40
BODY_SIZE = 16_000
RESUME_S = 8.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_SIZE_MB) as folder:
        yield folder


def body_of(number: int) -> bytes:
    return b"%08d" % number + bytes(BODY_SIZE - 8)


def publish(nsqd: Nsqd, topic: str, body: bytes) -> bytes:
    """The answer to one PUB."""
    with nsqd.connect() as raw:
        return raw.command(commands.pub(topic, body))[1]


def fill(nsqd: Nsqd, topic: str, first: int = 0) -> set[int]:
    """Publish until the disk is full; returns what was acknowledged."""
    acked = set()
    with nsqd.connect() as raw:
        for number in range(first, first + DISK_SIZE_MB * 1_000_000 // BODY_SIZE):
            kind, reply = raw.command(commands.pub(topic, body_of(number)))
            if kind == ERROR:
                assert reply.startswith(b"E_PUB_FAILED PUB failed"), reply
                return acked
            assert (kind, reply) == (RESPONSE, b"OK")
            acked.add(number)
    raise AssertionError("the disk does not run full")


def consume(raw: Raw, count: int) -> list[int]:
    """Read and finish ``count`` messages."""
    numbers = []
    while len(numbers) < count:
        kind, data = raw.frame()
        if kind == MESSAGE:
            numbers.append(int(data[26:34]))
            raw.send(commands.fin(data[10:26]))
        else:
            assert data == b"_heartbeat_", data
            raw.send(commands.NOP)
    return numbers


def assert_full(nsqd: Nsqd, topic: str) -> None:
    ping = nsqd.get("/ping")
    assert (ping.status, ping.text[:3]) == (500, "NOK"), ping
    assert nsqd.post(f"/pub?topic={topic}", body_of(0)).status == 503
    with nsqd.connect() as raw:
        kind, reply = raw.command(commands.dpub(topic, 50, body_of(0)))
        assert kind == ERROR and reply.startswith(b"E_DPUB_FAILED"), reply
        assert raw.closed()
    with nsqd.connect() as raw:
        kind, reply = raw.command(commands.mpub(topic, [body_of(0), body_of(1)]))
        assert kind == ERROR and reply.startswith(b"E_MPUB_FAILED"), reply


def wait_for_room(nsqd: Nsqd) -> None:
    wait_until(
        lambda: nsqd.get("/ping").status == 200,
        RESUME_S,
        lambda: f"{nsqd.get('/ping')}\n{nsqd.log}",
    )


@pytest.mark.parametrize("options", [(), ("--max-bytes-per-file=2000000",), ("--sync-every=1",)])
def test_consuming_makes_room_and_publishing_resumes(disk: Path, options: tuple[str, ...]) -> None:
    """R8, S4-2: finishing works on a full disk, and its effect is room."""
    with Nsqd(disk, *options) as nsqd, nsqd.connect() as consumer:
        consumer.subscribe("t", "c", ready_count=0)
        acked = fill(nsqd, "t")
        assert_full(nsqd, "t")
        consumer.send(commands.rdy(10))
        seen = consume(consumer, len(acked))
        assert set(seen) == acked
        wait_for_room(nsqd)
        again = fill(nsqd, "t", first=10_000)
        assert len(again) > len(acked) // 2, "the room was not given back"
        assert set(consume(consumer, len(again))) == again


def test_nothing_is_lost_by_a_kill_while_the_disk_is_full(disk: Path) -> None:
    """R8, A-3: killed while full and started while full; also what was finished meanwhile."""
    nsqd = Nsqd(disk, "--max-bytes-per-file=1000000")
    with nsqd:
        with nsqd.connect() as consumer:
            consumer.subscribe("t", "c", ready_count=0)
            acked = fill(nsqd, "t")
            consumer.send(commands.rdy(1))
            finished = set(consume(consumer, 20))
            time.sleep(0.5)
        fill(nsqd, "t", first=20_000)
        for _ in range(3):
            nsqd.kill()
            nsqd.start()
            fill_more = publish(nsqd, "t", body_of(0))
            assert fill_more == b"OK" or fill_more.startswith(b"E_PUB_FAILED")
        with nsqd.connect() as consumer:
            consumer.subscribe("t", "c", ready_count=10)
            left = acked - finished
            seen: set[int] = set()
            while not left <= seen:
                seen.update(consume(consumer, 1))
            assert not seen & (finished - {0}), "finished half a second before the kill"
        wait_for_room(nsqd)
        assert publish(nsqd, "t", body_of(1)) == b"OK"


def test_it_resumes_when_somebody_else_makes_room(disk: Path) -> None:
    """R8: nobody has to touch nsqd.  Deferred messages wait for room and are not lost (D-11)."""
    ballast = disk / "ballast"
    with Nsqd(disk / "nsqd") as nsqd, nsqd.connect() as consumer:
        consumer.subscribe("t", "c", ready_count=10)
        with nsqd.connect() as raw:
            for number in range(5):
                assert raw.command(commands.dpub("t", 1000, body_of(number)))[1] == b"OK"
        _fill_with_zeros(ballast)
        assert publish(nsqd, "t", body_of(7)).startswith(b"E_PUB_FAILED")
        time.sleep(1.5)  # the deferred ones fall due while there is no room for them
        assert nsqd.get("/ping").status == 500
        ballast.unlink()
        wait_for_room(nsqd)
        assert sorted(consume(consumer, 5)) == list(range(5))
        assert publish(nsqd, "t", body_of(8)) == b"OK"
        assert consume(consumer, 1) == [8]


def test_deleting_a_topic_makes_room(disk: Path) -> None:
    """R6, R8: a deleted topic gives its room back at once, open files or not."""
    with Nsqd(disk) as nsqd:
        with nsqd.connect() as consumer:
            consumer.subscribe("t", "c", ready_count=1)
            fill(nsqd, "t")
            assert nsqd.post("/topic/delete?topic=t").status == 200
        wait_for_room(nsqd)
        assert len(fill(nsqd, "u")) > 500


def test_what_could_not_be_created_while_full_can_be_created_later(disk: Path) -> None:
    """R6, R8: a refused topic or channel is not remembered as refused."""
    ballast = disk / "ballast"
    with Nsqd(disk / "nsqd") as nsqd:
        assert publish(nsqd, "t", b"first") == b"OK"
        _fill_with_zeros(ballast)
        _fill_with_zeros(disk / "rest")
        for _ in range(3):
            with nsqd.connect() as raw:
                raw.command(commands.sub("t", "c"))
            nsqd.post("/topic/create?topic=fresh")
            publish(nsqd, "other", b"x")
            time.sleep(0.2)
        ballast.unlink()
        (disk / "rest").unlink()
        wait_for_room(nsqd)
        with nsqd.connect() as raw:
            raw.subscribe("t", "c")
            assert raw.message().body == b"first"
        assert nsqd.post("/topic/create?topic=fresh").status == 200
        assert publish(nsqd, "other", b"y") == b"OK"
        nsqd.kill()
        nsqd.start()
        names = {topic["topic_name"] for topic in nsqd.stats()["topics"]}
        assert {"t", "fresh", "other"} <= names


def test_it_starts_on_a_disk_without_a_byte_left(disk: Path) -> None:
    """R8: consuming must be possible, or nothing would ever make room."""
    ballast = disk / "ballast"
    nsqd = Nsqd(disk / "nsqd")
    with nsqd:
        with nsqd.connect() as raw:
            raw.subscribe("t", "c", ready_count=0)
            assert publish(nsqd, "t", body_of(1)) == b"OK"
        nsqd.kill()
        _fill_with_zeros(ballast)
        nsqd.start()
        assert nsqd.get("/ping").status in (200, 500)
        with nsqd.connect() as raw:
            raw.subscribe("t", "c")
            assert consume(raw, 1) == [1]
        ballast.unlink()
        wait_for_room(nsqd)


def _fill_with_zeros(path: Path) -> None:
    """Take every byte that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
