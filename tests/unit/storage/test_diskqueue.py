"""The disk queues of a Go nsqd, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.storage import diskqueue
from penstock.storage.diskqueue import (
    Meta,
    QueueDamage,
    QueueExtent,
    find_queues,
    is_queue_file,
    parse_meta,
    plan_queue,
    records,
)
from penstock.storage.files import Files
from tests.support.go_queues import GoMessage, GoPath, message

# nsqd's own bytes, as they were captured.
CAPTURED = bytes.fromhex("0000002318e81e018ce176a50000") + b"189b54c59f803003" + b"message-5"


@pytest.fixture
def source(tmp_path: Path) -> GoPath:
    return GoPath(tmp_path / "go")


def read_queue(
    source: GoPath, name: str = "t", *, salvage: bool = True, msg_size_max: int = 1024
) -> tuple[list[GoMessage], list[QueueDamage], list[str]]:
    """Messages, damage and notes of a queue."""
    files = Files(read_only=True)
    (queue,) = [
        queue
        for queue in find_queues(str(source.folder), files.list(str(source.folder)))
        if queue.name == name
    ]
    plan = plan_queue(files, queue, salvage=salvage)
    damage = plan.damage
    found = []
    for extent in plan.extents:
        for record in records(files, extent, damage, msg_size_max):
            body = files.pread(extent.path, record.offset, record.body_size)
            assert body is not None
            found.append(GoMessage(record.id, record.timestamp_ns, body, record.attempts))
    files.close()
    return found, damage, plan.notes


def test_a_captured_record_is_read(source: GoPath) -> None:
    source.data_file("t", 0).write_bytes(CAPTURED)
    source.meta("t", 1, (0, 0), (0, len(CAPTURED)))
    (found,), damage, notes = read_queue(source)
    assert found == GoMessage(b"189b54c59f803003", 0x18E81E018CE176A5, b"message-5", 0)
    assert found.record == CAPTURED
    assert not damage and not notes


@pytest.mark.parametrize("per_file", [1, 2, 3, 100])
@pytest.mark.parametrize("finished", range(8))
def test_a_queue_is_read_from_its_read_position_on(
    source: GoPath, per_file: int, finished: int
) -> None:
    messages = [message(i, attempts=i % 3, body=b"x" * i) for i in range(7)]
    source.queue("t", messages, per_file=per_file, finished=finished)
    assert read_queue(source) == (messages[finished:], [], [])


@pytest.mark.parametrize("block_size", [30, 31, 40, 64, 100])
def test_where_blocks_end_changes_nothing(
    source: GoPath, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diskqueue, "BLOCK_SIZE", block_size)
    messages = [message(i, body=b"x" * (i * 7 % 90)) for i in range(50)]
    source.queue("t", messages, per_file=20)
    assert read_queue(source) == (messages, [], [])


def test_every_cut_of_a_file_gives_the_whole_records_before_it(source: GoPath) -> None:
    messages = [message(i, body=b"x" * i) for i in range(5)]
    whole = b"".join(m.record for m in messages)
    ends = [len(b"".join(m.record for m in messages[:count])) for count in range(6)]
    for cut in range(len(whole)):
        source.data_file("t", 0).write_bytes(whole[:cut])
        source.meta("t", 5, (0, 0), (0, cut))
        count = sum(end <= cut for end in ends) - 1
        found, damage, _ = read_queue(source)
        assert found == messages[:count]
        torn = cut - ends[count]
        told = [(d.path, d.offset, d.size) for d in damage]
        assert told == ([(str(source.data_file("t", 0)), ends[count], torn)] if torn else [])


def test_every_cut_of_an_older_file_costs_only_that_file(source: GoPath) -> None:
    messages = [message(i) for i in range(6)]
    source.queue("t", messages, per_file=3)
    path = source.data_file("t", 0)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        found, damage, _ = read_queue(source)
        assert found == messages[: cut // len(messages[0].record)] + messages[3:]
        assert len(damage) == (cut % len(messages[0].record) > 0)


@pytest.mark.parametrize("length", [-1, 0, 25, 1024 + 27, 2**31 - 1])
def test_behind_an_invalid_length_the_file_is_lost_and_the_next_is_read(
    source: GoPath, length: int
) -> None:
    messages = [message(i) for i in range(6)]
    source.queue("t", messages, per_file=3)
    path = source.data_file("t", 0)
    at = len(messages[0].record)
    data = bytearray(path.read_bytes())
    data[at : at + 4] = length.to_bytes(4, "big", signed=True)
    path.write_bytes(bytes(data))
    found, damage, _ = read_queue(source)
    assert found == [messages[0], *messages[3:]]
    assert damage == [QueueDamage(str(path), at, len(data) - at, f"invalid length {length}")]


def test_a_record_of_the_largest_size_is_read_and_a_larger_one_names_the_flag(
    source: GoPath,
) -> None:
    messages = [message(1, body=b"x" * 1024), message(2, body=b"x" * 1025)]
    source.queue("t", messages)
    found, (damage,), _ = read_queue(source, msg_size_max=1024)
    assert found == messages[:1]
    assert "--max-msg-size of 1025 or more" in damage.what
    assert read_queue(source, msg_size_max=1025)[0] == messages


def test_what_a_killed_nsqd_wrote_behind_its_write_position_is_salvaged(source: GoPath) -> None:
    messages = [message(i) for i in range(5)]
    source.queue("t", messages)
    size = len(messages[0].record)
    source.meta("t", 2, (0, size), (0, 3 * size))
    assert read_queue(source) == (messages[1:], [], [])
    assert read_queue(source, salvage=False) == (messages[1:3], [], [])


def test_stale_bytes_behind_the_write_position_are_no_messages(source: GoPath) -> None:
    # A file that was overwritten in place: what is left of an older record starts anywhere.
    fresh = message(1)
    stale = message(2, body=b"\0\0\0\x1e" + b"y" * 30)
    source.data_file("t", 0).write_bytes(fresh.record + stale.record[30:])
    source.meta("t", 1, (0, 0), (0, len(fresh.record)))
    found, (damage,), _ = read_queue(source)
    assert found == [fresh]
    assert (damage.offset, damage.size, damage.what) == (len(fresh.record), 34, "no message")


def test_an_odd_id_is_believed_where_the_meta_file_vouches_for_it(source: GoPath) -> None:
    odd = GoMessage(b"not a hex number", 5, b"body")
    source.queue("t", [odd])
    assert read_queue(source)[0] == [odd]


def test_a_file_behind_the_write_file_is_salvaged(source: GoPath) -> None:
    # A restarted nsqd goes to the next file, and its meta file tells so only 2 s later.
    messages = [message(i) for i in range(4)]
    source.queue("t", messages, per_file=2)
    source.meta("t", 2, (0, 0), (0, 2 * len(messages[0].record)))
    found, damage, notes = read_queue(source)
    assert found == messages and not damage
    assert notes == [f"{source.data_file('t', 1)}: not known to the meta file; read"]
    assert read_queue(source, salvage=False)[0] == messages[:2]


def test_without_a_meta_file_all_is_read(source: GoPath) -> None:
    messages = [message(i) for i in range(4)]
    source.queue("t", messages, per_file=2)
    source.meta_file("t").unlink()
    found, damage, notes = read_queue(source)
    assert found == messages and not damage and len(notes) == 1
    assert read_queue(source, salvage=False)[0] == []


def test_every_cut_of_a_meta_file_is_told_and_nothing_is_lost(source: GoPath) -> None:
    messages = [message(i) for i in range(4)]
    source.queue("t", messages, per_file=2, finished=1)
    whole = source.meta_file("t").read_bytes()
    for cut in range(len(whole)):
        source.meta_file("t").write_bytes(whole[:cut])
        found, (damage,), _ = read_queue(source)
        assert found == messages
        assert damage == QueueDamage(str(source.meta_file("t")), 0, cut, "meta file is invalid")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"6\n0,78\n1,113",
        b"6\n0,78\n1,113\n\n",
        b"6\n0,-1\n1,113\n",
        b"6\n2,0\n1,113\n",
        b"6\n1,114\n1,113\n",
        b"6\r\n0,78\r\n1,113\r\n",
        b"6\n0,78\n1,11111111111111111111113\n",
    ],
)
def test_a_meta_file_of_another_form_is_not_believed(data: bytes) -> None:
    assert parse_meta(data) is None


def test_a_meta_file_is_understood() -> None:
    assert parse_meta(b"6\n0,78\n1,113\n") == Meta(6, 0, 78, 1, 113)
    assert parse_meta(b"-2\n1,113\n1,113\n") == Meta(-2, 1, 113, 1, 113)


def test_missing_files_are_told_and_the_others_read(source: GoPath) -> None:
    messages = [message(i) for i in range(12)]
    source.queue("t", messages, per_file=2)
    for number in (0, 2, 3, 5):
        source.data_file("t", number).unlink()
    found, damage, _ = read_queue(source)
    assert found == messages[2:4] + messages[8:10]
    assert [(d.path, d.what) for d in damage] == [
        (str(source.data_file("t", 0)), "1 files missing, from number 0 on"),
        (str(source.data_file("t", 2)), "2 files missing, from number 2 on"),
        (str(source.data_file("t", 5)), "1 files missing, from number 5 on"),
    ]


def test_a_meta_file_that_names_a_billion_files_takes_no_time(source: GoPath) -> None:
    source.data_file("t", 7).write_bytes(message(1).record)
    source.meta("t", 1, (0, 0), (10**18, 5))
    found, damage, _ = read_queue(source)
    assert found == [message(1)]
    assert len(damage) == 2


def test_an_empty_queue_needs_no_file(source: GoPath) -> None:
    for read, write in (((0, 0), (0, 0)), ((3, 50), (3, 50))):
        source.meta("t", 0, read, write)
        assert read_queue(source) == ([], [], [])


def test_the_next_file_may_not_be_there_yet(source: GoPath) -> None:
    source.queue("t", [message(1)])
    source.meta("t", 1, (0, 0), (1, 0))
    assert read_queue(source) == ([message(1)], [], [])


def test_a_file_shorter_than_the_meta_file_says_is_told(source: GoPath) -> None:
    source.queue("t", [message(1)])
    size = len(message(1).record)
    source.meta("t", 2, (0, 0), (0, 2 * size))
    found, damage, _ = read_queue(source)
    assert found == [message(1)]
    path = str(source.data_file("t", 0))
    assert damage == [QueueDamage(path, size, size, f"{size} bytes missing at the end")]


def test_a_read_position_behind_the_end_is_told(source: GoPath) -> None:
    source.queue("t", [message(1), message(2)], per_file=1)
    source.meta("t", 2, (0, 1000), (1, len(message(2).record)))
    found, damage, _ = read_queue(source)
    assert found == [message(2)]
    assert len(damage) == 1


def test_a_file_that_was_read_already_is_left_out(source: GoPath) -> None:
    messages = [message(i) for i in range(4)]
    source.queue("t", messages, per_file=2)
    source.meta("t", 2, (1, 0), (1, 2 * len(messages[0].record)))
    found, damage, notes = read_queue(source)
    assert found == messages[2:] and not damage and len(notes) == 1


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(message(1).record)
    size = len(message(1).record)
    damage: list[QueueDamage] = []
    found = list(records(Files(), QueueExtent(str(path), 0, 2 * size, 2 * size), damage))
    assert len(found) == 1
    assert damage == [QueueDamage(str(path), size, size, "file became shorter")]


def test_names_of_files_name_queues() -> None:
    names = [
        "t.diskqueue.000000.dat",
        "t.diskqueue.meta.dat",
        "t:c.diskqueue.000012.dat",
        "a.diskqueue.000001.dat.diskqueue.000002.dat",
        "big.diskqueue.1234567.dat",
        *("t.diskqueue.000001.dat.bad", "t.diskqueue.00000.dat", "t.diskqueue.meta.dat.123.tmp"),
        *("nsqd.dat", ".diskqueue.000000.dat", "t.diskqueue.0000000.dat"),
    ]
    queues = find_queues("/x", names)
    assert [(q.name, q.has_meta, q.numbers) for q in queues] == [
        ("a.diskqueue.000001.dat", False, [2]),
        ("big", False, [1234567]),
        ("t", True, [0]),
        ("t:c", False, [12]),
    ]
    assert queues[1].path(1234567) == "/x/big.diskqueue.1234567.dat"
    assert [name for name in names if is_queue_file(name)] == [*names[:5], names[10]]
