"""Below --disk-low-watermark retained segments go early, oldest first over all topics (R21)."""

from __future__ import annotations

import errno
import logging

import pytest

from penstock.engine.retention.retained import Retained
from tests.crash.lossy import KEEP, LossyFiles
from tests.support.engine import HOUR, MS, SECOND, Client, Engine, Received
from tests.support.retention import retaining

SPACE = 4 << 20
BODY_SIZE = 10_000


class Node:
    """Topics "a" and "b", which retain for an hour, on a small disk."""

    def __init__(self, percent: int | None, *, retain_ns: int = HOUR) -> None:
        self.files = LossyFiles(space=SPACE)
        self.engine = Engine(self.files, max_bytes_per_file=100_000, disk_low_watermark=percent)
        self.clients = {}
        for name in "ab":
            retaining(self.engine, name, retain_ns=retain_ns)
            self.clients[name] = Client(self.engine, name, "c", 2500)
        self.engine.settle()

    @property
    def free(self) -> float:
        return self.files.free_size("/") / SPACE

    def publish(self, name: str) -> Exception | None:
        error = self.engine.publish(name, bytes(BODY_SIZE))
        if error is None:
            self.finish(name)
        self.engine.advance(SECOND // 50)
        return error

    def finish(self, name: str) -> list[Received]:
        received = self.clients[name].take()
        for message in received:
            assert self.clients[name].finish(message.index) == 0
        return received

    def given_up(self) -> dict[str, int]:
        return {
            each.topic.name: each.given_up_count
            for each in self.engine.components.retention.retained
        }


def test_retained_segments_go_oldest_first_over_all_topics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    node = Node(20)
    for _ in range(100):
        assert node.publish("a") is None
    for _ in range(150):
        assert node.publish("b") is None
    node.engine.advance(2 * SECOND)
    assert not node.engine.components.room.low
    for _ in range(80):
        assert node.publish("b") is None
    node.engine.advance(5 * SECOND)
    counts = node.given_up()
    assert counts["a"] > 0 and counts["b"] == 0, "those of a are all older"
    assert 0.2 <= node.free < 0.35 and not node.engine.components.room.low
    assert node.engine.topic("a").whole_from == node.engine.topic("a").log.first > 0
    assert 100 - counts["a"] == node.engine.topic("a").log.count
    lines = [record.message for record in caplog.records if record.message.startswith("disk:")]
    assert len(lines) == 2, lines
    assert "less than --disk-low-watermark (20 %)" in lines[0]
    assert "free again; " in lines[1] and "were given up" in lines[1]


def test_publishing_goes_on_at_the_watermark_for_good() -> None:
    """A disk that is filled all the time is no reason to refuse anything."""
    node = Node(20)
    for number in range(1500):
        assert node.publish("ab"[number % 2]) is None, number
    assert node.free >= 0.1
    assert sum(node.given_up().values()) > 1000


def test_without_the_flag_nothing_is_refused_until_the_disk_is_full() -> None:
    """R21, R8: five percent, and only what is retained goes."""
    node = Node(None)
    client = Client(node.engine, "a", "slow", 0)
    node.engine.settle()
    accepted = 0
    while node.publish("a") is None:
        accepted += 1
    assert node.free < 0.05 and node.given_up() == {"a": 0, "b": 0}
    error = node.engine.publish("a", b"x" * BODY_SIZE)
    assert isinstance(error, OSError) and error.errno == errno.ENOSPC
    assert "watermark" not in str(error)
    client.ready(2500)
    node.engine.settle()
    for message in client.take():
        assert client.finish(message.index) == 0
    node.engine.advance(10 * SECOND)
    assert node.publish("a") is None, "what was finished was given up"
    assert node.given_up()["a"] > 0


def test_with_the_flag_publishes_are_refused_below_it_and_both_end_by_themselves() -> None:
    node = Node(20)
    health = node.engine.components.health
    client = Client(node.engine, "a", "slow", 0)
    node.engine.settle()
    for _ in range(400):
        if (error := node.publish("a")) is not None:
            break
    assert isinstance(error, OSError) and error.errno == errno.ENOSPC
    assert "--disk-low-watermark is 20 %" in str(error) and 0.1 < node.free < 0.2
    assert "--disk-low-watermark" in health.text and health.text.startswith("NOK")
    assert node.engine.defer("a", HOUR, b"x") is not None
    client.ready(2500)
    node.engine.settle()
    for message in client.take():
        assert client.finish(message.index) == 0
    node.engine.advance(10 * SECOND)
    assert health.text == "OK" and node.publish("a") is None
    assert node.engine.defer("a", HOUR, b"x") is None


def test_somebody_else_who_makes_room_ends_it_too() -> None:
    node = Node(20, retain_ns=0)
    node.files.put("/ballast", bytes(SPACE * 9 // 10))
    node.engine.advance(3 * SECOND)
    assert node.publish("a") is not None
    node.files.unlink("/ballast")
    node.engine.advance(3 * SECOND)
    assert node.publish("a") is None


def test_zero_is_off() -> None:
    node = Node(0)
    node.publish("a")
    node.files.put("/ballast", bytes(int(node.files.free_size("/") - 20_000)))
    node.engine.advance(5 * SECOND)
    assert not node.engine.components.room.low and node.given_up() == {"a": 0, "b": 0}


def test_a_disk_that_cannot_be_measured_changes_nothing() -> None:
    node = Node(20)
    node.files.faults.add("*", errno.EIO, "free_size")
    node.files.put("/ballast", bytes(SPACE * 9 // 10))
    node.engine.advance(3 * SECOND)
    assert node.publish("a") is None and not node.engine.components.room.low
    node.files.faults.heal()
    node.engine.advance(3 * SECOND)
    assert node.engine.components.room.low


def test_without_retention_and_flag_the_disk_is_not_measured() -> None:
    engine = Engine(LossyFiles(space=SPACE))
    engine.files.faults.add("*", errno.EIO, "free_size")
    engine.advance(10 * SECOND)
    assert engine.files.faults.hit_count == 0


def test_a_segment_with_a_straggler_makes_room_too() -> None:
    """R5, R21: the message itself is kept in a side file."""
    node = Node(20)
    client = Client(node.engine, "a", "slow", 1)
    node.engine.settle()
    assert node.publish("a") is None
    client.ready(2500)
    stuck = client.take()[0]
    for _ in range(400):
        assert node.publish("a") is None and node.free > 0.1
        for message in client.take():
            assert client.finish(message.index) == 0
    node.engine.advance(15 * SECOND)
    log = node.engine.topic("a").log
    assert log.first == stuck.index and log.segments()[0].side
    assert node.free >= 0.2 and not node.engine.components.room.low
    assert node.given_up()["a"] == 401 - log.count


def test_finished_active_segments_of_many_topics_make_room_too() -> None:
    """Each is too small to be rolled for its size, and young; together they fill the disk."""
    files = LossyFiles(space=8 << 20)
    engine = Engine(files, disk_low_watermark=20)
    for name in (names := [f"t{number}" for number in range(8)]):
        retaining(engine, name, retain_ns=HOUR)
        client = Client(engine, name, "c", 2500)
        for _ in range(7):
            assert engine.publish(name, bytes(100_000)) is None
        for message in client.take():
            client.finish(message.index)
    engine.advance(5 * SECOND)
    engine.publish("new", b"x")
    engine.topic("new").create_channel("c")
    accepted_size = 0
    while engine.publish("new", bytes(100_000)) is None:
        accepted_size += 100_000
        engine.advance(SECOND // 20)
    assert accepted_size > 5_000_000, "20 % of the disk, and the reserve, are not used"
    assert sum(engine.topic(name).log.size for name in names) == 0


@pytest.mark.parametrize("kept", ["buried", "requeued"])
def test_segments_that_something_else_keeps_are_passed_over(kept: str) -> None:
    """To give them up would free nothing; what is newer and only retained goes instead."""
    node = Node(20)
    client = node.clients["a"]
    for _ in range(100):
        assert node.engine.publish("a", bytes(BODY_SIZE)) is None
        (message,) = client.take()
        if kept == "buried":
            assert client.bury(message.index) == 0
        else:
            assert client.requeue(message.index, HOUR) == 0
    for number in range(600):
        assert node.publish("b") is None, number
    assert node.given_up()["b"] > 300
    assert node.engine.topic("a").log.count == 100


@pytest.mark.parametrize("restart", [False, True])
def test_retained_segments_make_room_for_the_reserve_of_a_disk_that_was_full(restart: bool) -> None:
    """On a small disk it needs more than the watermark: publishes would be refused for good."""
    node = Node(1)
    for _ in range(200):
        assert node.publish("a") is None
    first = node.engine.topic("a").log.first
    node.files.put("/ballast", bytes(node.files.free_size("/")))
    assert node.engine.publish("a", bytes(BODY_SIZE)) is not None
    node.engine.components.health.needs_room(OSError(errno.ENOSPC, "a journal was not written"))
    node.engine.settle()
    assert not node.engine.components.health.reserve.held
    if restart:
        node.files.put("/more", bytes(node.files.free_size("/") - 20_000))  # a start needs some
        node.engine.crash(KEEP)
        node.engine.start()
    node.engine.advance(10 * SECOND)
    assert node.engine.components.health.reserve.held
    assert node.engine.components.health.text == "OK"
    assert node.engine.publish("a", bytes(BODY_SIZE)) is None
    assert node.engine.topic("a").log.first > first


def test_a_full_reserve_is_freed_also_while_publishes_are_refused() -> None:
    """R8: finishing works when the disk is full, though the watermark has refused publishes."""
    node = Node(20)
    client = Client(node.engine, "a", "slow", 0)
    node.engine.settle()
    while node.publish("a") is None:
        pass
    left = node.files.free_size("/")
    node.files.put("/ballast", bytes(left))
    client.ready(2500)
    node.engine.settle()
    for message in client.take():
        assert client.finish(message.index) == 0
    node.engine.advance(20 * SECOND)
    assert node.engine.components.health.text == "OK" and node.publish("a") is None


def test_a_search_over_thousands_of_topics_takes_a_millisecond_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R29: and the oldest segment of all goes first."""
    node = Node(20)
    engine, clock = node.engine, node.engine.clock
    names = [f"t{number}" for number in range(600)]
    for name in reversed(names):
        topic = retaining(engine, name, retain_ns=HOUR)
        topic.create_channel("c#ephemeral")
        assert engine.publish(name, b"x") is None
        engine.done(topic.writer.roll_soon())
        clock.advance(SECOND)
    engine.advance(SECOND)
    oldest_ns, longest_ns = Retained.oldest_ns, 0

    def slow(retained: Retained) -> int | None:
        clock.advance(50_000)
        return oldest_ns(retained)

    monkeypatch.setattr(Retained, "oldest_ns", slow)
    node.files.append("/big", [bytes(int(node.files.free_size("/") * 0.9))])
    for _ in range(2000):
        if engine.turns.calls:
            begun_ns = clock.monotonic_ns()
            engine.turns.calls.popleft()()
            longest_ns = max(longest_ns, clock.monotonic_ns() - begun_ns)
        elif engine.disk.works:
            engine.disk.step()
        elif not engine.turns.fire():
            clock.advance(SECOND // 50)
        if engine.topic(names[-1]).removal.retained.given_up_end:
            break
    given_up = [name for name in names if engine.topic(name).removal.retained.given_up_end]
    assert given_up and given_up == names[-len(given_up) :]
    assert longest_ns < 15 * MS
