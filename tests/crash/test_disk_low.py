"""A real nsqd that retains, on a file system of 64 MB that publishers fill (R8, R21).

Retained segments go first, oldest first; then publishes are refused, at the watermark if it was
set by hand, else when the disk is full; consumers go on; everything resumes by itself; nothing that
was answered with OK is lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.support.daemon import ERROR, Nsqd
from tests.support.small_disk import small_disk
from tests.support.waits import wait_until

DISK_SIZE_MB = 64
BODY_SIZE = 16_000
WATERMARK = 25
RESUME_S = 20.0
POLICY = '[[policy]]\ntopic = "*"\nretain = "1h"\n'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "policy.toml").write_text(POLICY)
    with small_disk(tmp_path / "disk", DISK_SIZE_MB) as folder:
        yield folder


def options(disk: Path, *more: str) -> tuple[str, ...]:
    policy = disk.parent / "policy.toml"
    return (f"--policy-file={policy}", "--max-bytes-per-file=1000000", *more)


def free_share(disk: Path) -> float:
    found = os.statvfs(disk)
    return found.f_bavail / found.f_blocks


def body_of(number: int) -> bytes:
    return b"%08d" % number + bytes(BODY_SIZE - 8)


def consume_along(nsqd: Nsqd, disk: Path, topic: str, numbers: range, floor: float) -> None:
    """Publish and finish, one after another: every publish is accepted.

    In memory a disk of this size is full in a quarter of a second: wait while room is made.
    """
    with nsqd.connect() as producer, nsqd.connect() as consumer:
        consumer.subscribe(topic, "c", ready_count=1)
        for number in numbers:
            if not number % 10:
                wait_until(lambda: free_share(disk) > floor, RESUME_S, lambda: nsqd.log)
            assert producer.command(commands.pub(topic, body_of(number)))[1] == b"OK"
            message = consumer.receive()
            assert message.body == body_of(number)
            consumer.send(commands.fin(message.id))


def fill(nsqd: Nsqd, topic: str, first: int) -> tuple[set[int], bytes]:
    """Publish until it is refused; returns what was accepted, and the refusal."""
    accepted = set()
    with nsqd.connect() as raw:
        for number in range(first, first + 2 * DISK_SIZE_MB * 1_000_000 // BODY_SIZE):
            kind, reply = raw.command(commands.pub(topic, body_of(number)))
            if kind == ERROR:
                return accepted, reply
            assert reply == b"OK"
            accepted.add(number)
    raise AssertionError("nothing is refused")


def fill_for_good(nsqd: Nsqd, topic: str) -> tuple[set[int], bytes]:
    """Publish until a publish is refused and nothing retained is left to make room."""
    accepted, refusal = fill(nsqd, topic, 0)
    for _ in range(300):
        time.sleep(0.1)  # a journal that found the disk full is written again after a second
        more, refusal = fill(nsqd, topic, len(accepted))
        accepted |= more
        if not more and nsqd.metric('penstock_topic_retained_bytes{topic="old"}') == 0:
            return accepted, refusal
    raise AssertionError(f"messages stay retained on a full disk\n{nsqd.log}")


def finish_all(nsqd: Nsqd, topic: str, numbers: set[int]) -> None:
    with nsqd.connect() as consumer:
        consumer.subscribe(topic, "c", ready_count=10)
        left = set(numbers)
        while left:
            message = consumer.receive()
            left.discard(int(message.body[:8]))
            consumer.send(commands.fin(message.id))


def given_up(nsqd: Nsqd, topic: str) -> float:
    return nsqd.metric(f'penstock_topic_retained_given_up_total{{topic="{topic}"}}')


@pytest.mark.parametrize("by_hand", [True, False])
def test_retained_segments_go_first_then_publishes_are_refused(disk: Path, by_hand: bool) -> None:
    floor = 0.16 if by_hand else 0.03
    flags = options(disk, *([f"--disk-low-watermark={WATERMARK}"] if by_hand else []))
    with Nsqd(disk, *flags) as nsqd:
        # Three disks full of finished messages: a disk that only retention fills refuses nothing.
        consume_along(nsqd, disk, "old", range(12_000), floor)
        assert given_up(nsqd, "old") > 4000
        assert nsqd.get("/ping").status == 200
        nsqd.post("/topic/create?topic=new")
        nsqd.post("/channel/create?topic=new&channel=c")
        accepted, refusal = fill_for_good(nsqd, "new")
        assert refusal.startswith(b"E_PUB_FAILED PUB failed"), refusal
        assert (b"--disk-low-watermark is 25 %" in refusal) == by_hand, refusal
        place = nsqd.get("/log?topic=old").json
        assert place["whole_from"] == place["first"]
        ping = nsqd.get("/ping")
        assert ping.status == 500 and ping.text.startswith("NOK"), ping
        assert nsqd.post("/pub?topic=new", body_of(0)).status == 503
        nsqd.wait_for_log(r"retained segments are given up, oldest first")
        nsqd.kill()
        nsqd.start()
        finish_all(nsqd, "new", accepted)
        wait_until(lambda: nsqd.get("/ping").status == 200, RESUME_S, lambda: nsqd.log)
        consume_along(nsqd, disk, "new", range(20_000, 20_100), floor)
