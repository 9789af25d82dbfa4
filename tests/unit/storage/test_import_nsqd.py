"""A Go nsqd's data path becomes ours: what each channel had, it has."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.storage import import_topic
from tests.support.go_queues import GoMessage, GoPath, message
from tests.unit.storage.build import NODE_ID
from tests.unit.storage.imported import Taken, bodies, open_target, take


@pytest.fixture
def source(tmp_path: Path) -> GoPath:
    return GoPath(tmp_path / "go")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


# ---- merging


def test_a_message_in_two_channels_is_taken_once(source: GoPath, target: Path) -> None:
    messages = [message(i) for i in range(10)]
    source.metadata({"t": ["a", "b", "done"]})
    source.queue("t", [])
    source.queue("t:a", messages)
    source.queue("t:b", messages, finished=6)
    source.queue("t:done", messages, finished=10)
    report = take(source, target)
    topic = open_target(target)["t"]
    assert topic.bodies == bodies(messages)
    assert topic.timestamps == [m.timestamp_ns for m in messages]
    assert topic.left("a") == dict.fromkeys(bodies(messages), 0)
    assert topic.left("b") == dict.fromkeys(bodies(messages[6:]), 0)
    assert topic.left("done") == {}
    assert topic.channel("b").runs == [] and topic.channel("done").runs == []  # cursors only
    (told,) = report.topics
    assert (report.message_count, report.record_count, told.body_size) == (10, 14, 60)
    assert [(c.name, c.undelivered_count, c.finished_count) for c in told.channels] == [
        ("a", 10, 0),
        ("b", 4, 6),
        ("done", 0, 10),
    ]


def test_ids_are_made_anew_and_ascend(source: GoPath, target: Path) -> None:
    source.queue("t", [message(i) for i in range(5)])
    take(source, target)
    topic = open_target(target)["t"]
    for index, frame in topic.frames.items():
        assert frame[18:34] == b"%016x" % (NODE_ID << 54 | index)
        assert frame[16:18] == b"\0\x01"


def test_attempts_are_kept_for_each_channel(source: GoPath, target: Path) -> None:
    source.metadata({"t": ["a", "b"]})
    source.queue("t:a", [message(1), message(2, attempts=3), message(3)])
    source.queue("t:b", [message(3, attempts=1), message(1), message(2, attempts=65535)])
    report = take(source, target)
    topic = open_target(target)["t"]
    assert topic.left("a") == {b"body-1": 0, b"body-2": 3, b"body-3": 0}
    assert topic.left("b") == {b"body-1": 0, b"body-2": 65535, b"body-3": 1}
    assert [c.retried_count for c in report.topics[0].channels] == [1, 2]


def test_what_was_delivered_before_comes_first_then_by_time(source: GoPath, target: Path) -> None:
    # So that attempts stand at the start of the log: what lies below them is kept in memory.
    source.queue("t:a", [message(3), message(1), message(9, attempts=1), message(2)])
    source.queue("t:b", [message(2), message(8, attempts=2)])
    take(source, target)
    topic = open_target(target)["t"]
    assert topic.bodies == [b"body-8", b"body-9", b"body-1", b"body-2", b"body-3"]


def test_a_message_twice_in_a_queue_is_taken_once_with_the_most_attempts(
    source: GoPath, target: Path
) -> None:
    # A killed nsqd had requeued it, and its meta file still has the old read position.
    source.queue("t:a", [message(1), message(2), message(1, attempts=2), message(1, attempts=1)])
    report = take(source, target)
    assert open_target(target)["t"].left("a") == {b"body-1": 2, b"body-2": 0}
    assert (report.message_count, report.record_count) == (2, 4)


def test_only_copies_that_agree_are_one_message(source: GoPath, target: Path) -> None:
    one = message(1, body=b"long")
    other_time = message(1, body=b"time", timestamp_ns=5)
    other_size = message(1, body=b"size!")
    other_id = GoMessage(b"ffffffffffffffff", one.timestamp_ns, b"id__")
    source.queue("t:a", [one, other_time, other_size, other_id])
    source.queue("t:b", [one])
    take(source, target)
    topic = open_target(target)["t"]
    assert sorted(topic.bodies) == [b"id__", b"long", b"size!", b"time"]
    assert topic.left("b") == {b"long": 0}


def test_times_before_1970_are_in_order(source: GoPath, target: Path) -> None:
    times = [-(2**63), -1, 0, 2**63 - 1]
    messages = [message(i, timestamp_ns=time) for i, time in enumerate(times)]
    source.queue("t:a", messages[::-1])
    take(source, target)
    assert open_target(target)["t"].timestamps == times


# ---- the topic's own queue


def test_what_the_topic_had_not_copied_yet_is_for_all_channels(
    source: GoPath, target: Path
) -> None:
    source.metadata({"t": ["a", "b"]})
    source.queue("t", [message(1), message(7), message(8)])
    source.queue("t:a", [message(5, attempts=1), message(6)])
    source.queue("t:b", [message(6)])
    report = take(source, target)
    topic = open_target(target)["t"]
    new = {b"body-1": 0, b"body-7": 0, b"body-8": 0}
    assert topic.left("a") == {b"body-5": 1, b"body-6": 0, **new}
    assert topic.left("b") == {b"body-6": 0, **new}
    assert topic.held() == []
    assert report.topics[0].held_count == 3
    assert [c.undelivered_count for c in report.topics[0].channels] == [5, 4]
    assert [c.finished_count for c in report.topics[0].channels] == [0, 1]


def test_a_message_on_its_way_to_the_channels_is_for_all_of_them(
    source: GoPath, target: Path
) -> None:
    # Killed while copying: it is in the topic's queue and already in some channels'.
    source.metadata({"t": ["a", "b"]})
    source.queue("t", [message(1), message(2)])
    source.queue("t:a", [message(1, attempts=4)])
    take(source, target)
    topic = open_target(target)["t"]
    assert topic.left("a") == {b"body-1": 4, b"body-2": 0}
    assert topic.left("b") == {b"body-1": 0, b"body-2": 0}


def test_a_paused_topic_holds_its_own_queue_back(source: GoPath, target: Path) -> None:
    source.metadata({"t": ["a", "b"]}, paused={"t", "t:b"})
    source.queue("t", [message(1), message(3)])
    source.queue("t:a", [message(2)])
    take(source, target)
    topic = open_target(target)["t"]
    assert topic.recovered.state.paused and topic.recovered.state.frozen
    assert topic.held() == [b"body-1", b"body-3"]
    assert not topic.channel("a").paused and topic.channel("b").paused
    assert topic.left("b") == {b"body-1": 0, b"body-3": 0}


def test_a_topic_without_channels_keeps_its_queue_for_the_first(
    source: GoPath, target: Path
) -> None:
    source.metadata({"t": []})
    source.queue("t", [message(1), message(2)])
    take(source, target)
    topic = open_target(target)["t"]
    assert topic.held() == [b"body-1", b"body-2"]
    assert topic.recovered.state.frozen and not topic.recovered.state.paused


# ---- names


def test_topics_without_messages_keep_channels_and_pauses(source: GoPath, target: Path) -> None:
    source.metadata({"a": [], "b": ["x", "y"], "c": []}, paused={"b:y", "c"})
    take(source, target)
    found = open_target(target)
    assert sorted(found) == ["a", "b", "c"]
    assert found["c"].recovered.state.paused and not found["a"].recovered.state.paused
    states = found["b"].recovered.state.channels
    assert {name: state.paused for name, state in states.items()} == {"x": False, "y": True}


def test_ephemeral_and_invalid_names_are_skipped_and_told(source: GoPath, target: Path) -> None:
    source.metadata({"t#ephemeral": ["a"], "t": ["b#ephemeral", "c", "no good"], "bad name": []})
    source.queue("t#ephemeral", [message(1)])
    source.queue("t:b#ephemeral", [message(2)])
    source.queue("bad name:c", [message(3)])
    source.queue("t:c", [message(4)])
    report = take(source, target)
    found = open_target(target)
    assert sorted(found) == ["t"]
    assert sorted(found["t"].recovered.state.channels) == ["c"]
    assert found["t"].bodies == [b"body-4"]
    assert report.notes == [
        "topic t#ephemeral: ephemeral, skipped",
        "channel t:b#ephemeral: ephemeral, skipped",
        "channel t:no good: not a valid name, skipped",
        "topic bad name: not a valid name, skipped",
        "queue bad name:c: not a valid name, skipped",
        "queue t#ephemeral: ephemeral, skipped",
        "queue t:b#ephemeral: ephemeral, skipped",
    ]
    assert not report.damage


def test_queues_that_nsqd_dat_does_not_name_are_taken(source: GoPath, target: Path) -> None:
    source.metadata({"t": ["a"]})
    source.queue("t:late", [message(1)])
    source.queue("u;windows", [message(2)])
    source.queue("v", [message(3)])
    report = take(source, target)
    found = open_target(target)
    assert found["t"].left("late") == {b"body-1": 0} and found["t"].left("a") == {}
    assert found["u"].left("windows") == {b"body-2": 0}
    assert found["v"].held() == [b"body-3"]
    assert report.notes == [
        "queue t:late: not in nsqd.dat; imported anyway",
        "queue u;windows: not in nsqd.dat; imported anyway",
        "queue v: not in nsqd.dat; imported anyway",
    ]


def test_without_nsqd_dat_the_queue_files_tell(source: GoPath, target: Path) -> None:
    source.queue("t:a", [message(1)])
    report = take(source, target)
    assert open_target(target)["t"].left("a") == {b"body-1": 0}
    assert "nsqd.dat is missing" in report.notes[0]


# ---- damage


def test_damage_is_told_and_the_rest_is_taken(source: GoPath, target: Path) -> None:
    messages = [message(i) for i in range(9)]
    source.metadata({"t": ["a", "b"]})
    source.queue("t:a", messages, per_file=3)
    source.queue("t:b", messages[:5])
    path = source.data_file("t:a", 1)
    path.write_bytes(path.read_bytes()[:-3])
    report = take(source, target)
    topic = open_target(target)["t"]
    assert topic.bodies == bodies(messages[:5] + messages[6:])
    assert bodies(messages[:5] + messages[6:]) == list(topic.left("a"))
    assert bodies(messages[:5]) == list(topic.left("b"))
    (damage,) = report.damage
    size = len(messages[0].record)
    assert (damage.path, damage.offset, damage.size) == (str(path), 2 * size, size - 3)
    assert report.damaged_size == size - 3


def test_every_cut_of_a_queue_is_imported(source: GoPath, tmp_path: Path) -> None:
    messages = [message(i, body=b"x" * i) for i in range(3)]
    source.metadata({"t": ["a"]})
    source.queue("t:a", messages)
    path = source.data_file("t:a", 0)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        target = tmp_path / f"target-{cut}"
        report = take(source, target)
        ends = [sum(len(m.record) for m in messages[: i + 1]) for i in range(3)]
        count = sum(end <= cut for end in ends)
        assert open_target(target)["t"].bodies == bodies(messages[:count])
        assert report.damage and report.message_count == count


def test_salvage_can_be_switched_off(source: GoPath, target: Path, tmp_path: Path) -> None:
    source.queue("t:a", [message(1), message(2)])
    source.meta("t:a", 1, (0, 0), (0, len(message(1).record)))
    assert take(source, target).salvaged_count == 1
    assert take(source, tmp_path / "other", salvage=False).message_count == 1


def test_a_body_that_cannot_be_read_is_taken_from_another_copy(
    source: GoPath, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.queue("t:a", [message(1), message(2)])
    source.queue("t:b", [message(2)])
    load = import_topic._Bodies._load

    def fail(self: import_topic._Bodies, number: int, place: int) -> bytes:
        if "t:a" in self._paths[number]:
            raise OSError(5, "Input/output error")
        return load(self, number, place)

    monkeypatch.setattr(import_topic._Bodies, "_load", fail)
    report = take(source, target)
    topic = open_target(target)["t"]
    assert topic.left("a") == topic.left("b") == {b"body-2": 0}
    (damage,) = report.damage
    assert (damage.size, damage.what) == (6, "cannot be read: Input/output error")


# ---- size


def test_random_queues_against_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, merges and journal records are made small, so that many are needed."""
    monkeypatch.setattr(import_topic, "BATCH_SIZE", 500)
    monkeypatch.setattr(import_topic, "JOURNAL_COUNT_MAX", 20)
    monkeypatch.setattr(import_topic, "CACHE_BLOCK_SIZE", 64)
    monkeypatch.setattr(import_topic, "CACHE_COUNT", 2)
    monkeypatch.setattr("penstock.storage.sorted_runs.BLOCK_COUNT", 7)
    monkeypatch.setattr(import_topic, "RUN_COUNT_MAX", 30)
    monkeypatch.setattr(import_topic, "FAN_IN_MAX", 3)
    for seed in range(20):
        random.seed(seed)
        messages = [message(i, body=b"%d " % i + random.randbytes(i % 80)) for i in range(300)]
        by_number = {m.id: m.body for m in messages}
        expected: dict[str, Taken] = {}
        channels = [f"c{i}" for i in range(random.randrange(1, 5))]
        path = GoPath(tmp_path / f"go-{seed}")
        path.metadata({"t": channels})
        own = messages[280:]
        path.queue("t", own, per_file=9)
        for channel in channels:
            share = random.choice([0.02, 0.5, 0.98])
            had = [
                message(i, random.choice([0, 0, 0, 0, 2]), by_number[message(i).id])
                for i in range(280)
                if random.random() < share
            ]
            random.shuffle(had)
            path.queue(f"t:{channel}", had, per_file=50)
            numbers = {m.id: m.attempts for m in had} | dict.fromkeys((m.id for m in own), 0)
            expected[channel] = {by_number[id]: count for id, count in numbers.items()}
        target = tmp_path / f"target-{seed}"
        report = take(path, target)
        topic = open_target(target)["t"]
        for told in report.topics[0].channels:
            assert topic.left(told.name) == expected[told.name]
            assert told.undelivered_count == len(expected[told.name])
            assert told.retried_count == sum(map(bool, expected[told.name].values()))
        assert len(topic.bodies) == report.message_count == len(set(topic.bodies))
        assert set(topic.bodies) == set().union(*expected.values())
