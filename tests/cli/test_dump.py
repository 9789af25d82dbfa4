"""`penstock dump`: files told to a person."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.dump import main
from penstock.core.batches import STAGED
from penstock.core.buried import ATTEMPTS, BURY, Buried
from penstock.core.crc32c import crc32c
from penstock.core.slots import SlotBatch
from penstock.storage import ledger
from penstock.storage.channel_reader import ChannelReader
from penstock.storage.drain import DrainRecord, HandoverIntent, encode_drain
from penstock.storage.files import Files
from penstock.storage.journal import (
    encode_begun,
    encode_buried,
    encode_channel,
    encode_gone,
    encode_progress,
    encode_reader,
    encode_removed,
    encode_seek,
    encode_synced,
    encode_topic,
    encode_unburied,
)
from penstock.storage.metadata import ChannelEntry, TopicEntry, write_metadata
from penstock.storage.node import load_node
from penstock.storage.patterns import PatternRecord, encode_patterns
from penstock.storage.slot_counts import CountsFile, SlotCount
from penstock.storage.slots import SlotName, SlotStore
from penstock.storage.staging import (
    Key,
    Seal,
    StagingStore,
    encode_header,
    encode_part,
    encode_seal,
    origin_of,
)
from penstock.storage.staging_notes import Noted, StagingNotes
from penstock.storage.topic_log import TopicLog
from tests.support.staging import ATTEMPT, deferred, plain
from tests.unit.storage.build import NODE_ID, append, append_many, batch, moved_batch


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    log = TopicLog.create(Files(), f"{tmp_path}/t", 0xAB, NODE_ID, 100)
    append(log, batch(100, 2, append_ns=1_800_000_000_123_456_789, body=b"x" * 100))
    log.abandon(110)
    append(log, batch(110, 1, slot=77, ordinals=[4]))
    log.synced(log.roll())
    return Path(log.segments()[0].path)


def test_a_segment_is_told_line_by_line(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(segment)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0].split()[:5] == [
        *("0", "segment", "format=1", "node_id=7", "instance=00000000000000ab"),
    ]
    assert "64  batch 100..101 count=2 size=324 appended=2027-01-15T08:00:00.123456Z" in lines[1]
    assert lines[2].endswith("body=100:'" + "x" * 60 + "'...")
    assert "id=01c0000000000065" in lines[3] and lines[3].split()[0] == "254"
    assert lines[4].endswith("slot=77 ordinals=[4]")
    assert [line.split()[1] for line in lines[5:]] == ["110", "sparse", "gap", "origins", "sealed"]


def test_moved_messages_are_shown_with_where_they_came_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = TopicLog.create(Files(), f"{tmp_path}/t", 0xAB, NODE_ID, 100)
    append(log, moved_batch(100, 0xCD, 3, [7, 9]))
    assert main(["--brief", log.segments()[0].path]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.endswith("moved_from=000000000cd0003 indexes=[7,9]")


def test_brief_leaves_the_messages_out(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--brief", str(segment)]) == 0
    assert "body=" not in capsys.readouterr().out


def test_damage_is_shown_where_it_is(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(bytes(data))
    assert main([str(segment)]) == 1
    out, err = capsys.readouterr()
    assert "!!        64  324 bytes are not a batch, index 100 up to 110" in out
    assert "batch 110..110" in out
    assert "1 damaged places" in err


def test_an_unsealed_segment_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = TopicLog.create(Files(), f"{tmp_path}/t", 1, NODE_ID, 100)
    append_many(log, 1)
    assert main([log.segments()[0].path]) == 0
    assert capsys.readouterr().out.endswith("not sealed\n")


def test_a_journal_is_told_record_by_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal"
    path.write_bytes(
        encode_topic(100, False, True, 7)
        + encode_channel(1, 100, False, 0, "billing")
        + b"junk"
        + encode_progress(1, 110, [(115, 120)], {112: (3, 0), 113: (1, 1_800_000_000_000_000_000)})
        + encode_progress(1, 110, [], {114: (0, ~0), 121: (1, ~1_800_000_000_000_000_000)})
        + encode_gone(1)
        + encode_synced(100, 4096)
        + encode_channel(2, 100, True, 0, "query", pulled=True)
        + encode_reader(2, ChannelReader("1f" * 16, "pipeline lake", 1_800_000_000_000))
        + encode_channel(3, 80, False, 0, "late", pulled=True, partial=True)
        + encode_removed(90)
    )
    assert main([str(path)]) == 1
    told = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()]
    assert told == [
        "topic released=100 frozen=False paused=True void_stamp=7",
        "channel id=1 name=billing start=100 paused=False defer_stamp=0",
        "70  bytes that are not a record",
        "progress id=1 low=110 runs=[115..119]"
        " marks=[112(attempts=3),113(attempts=1 due=2027-01-15T08:00:00.000000Z)]",
        "progress id=1 low=110 runs=[]"
        " marks=[114(attempts=0 kicked),121(attempts=1 due=2027-01-15T08:00:00.000000Z kicked)]",
        "gone id=1",
        "synced base=100 offset=4096",
        "channel id=2 name=query start=100 paused=True defer_stamp=0 pulled",
        f"reader id=2 reader=pipeline lake (identity {'1f' * 16}, since 2027-01-15T08:00:00Z)",
        "channel id=3 name=late start=80 paused=False defer_stamp=0 pulled partial",
        "removed whole_from=90",
    ]


def test_a_seek_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal"
    sought = encode_seek(1, 1_800_000_000_000_000_000, 200, 5, 50, *(False, 0, "c"), *[False] * 3)
    path.write_bytes(sought + encode_begun(6, 1_800_000_000_000_000_000, 210))
    assert main([str(path)]) == 0
    assert [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()] == [
        "seek old_id=1 id=5 name=c start=50 paused=False defer_stamp=0"
        " begun=2027-01-15T08:00:00.000000Z below=200",
        "begun id=6 begun=2027-01-15T08:00:00.000000Z below=210",
    ]


def test_buried_messages_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Buried()
    table.put(7, 3, ATTEMPTS, 1_800_000_000_000_000_000, "worker 10.0.0.7:5123")
    table.put(9, 1, BURY, 1_800_000_000_000_000_000, text="no such order")
    path = tmp_path / "journal"
    kicked = encode_unburied(1, (7).to_bytes(8, "big") + (8).to_bytes(8, "big"), kicked=True)
    damaged = encode_buried(1, b"\0\0x")
    path.write_bytes(encode_buried(1, table.drain()[0]) + kicked + damaged)
    assert main([str(path)]) == 0
    assert [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()] == [
        "buried id=1 [7(attempts attempts=3 at=2027-01-15T08:00:00.000000Z 'worker 10.0.0.7:5123'),"
        "9(bury attempts=1 at=2027-01-15T08:00:00.000000Z 'no such order')]",
        "unburied id=1 kicked runs=[7..7]",
        "buried id=1 a BURIED record is cut",
    ]


def test_node_and_metadata_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = load_node(Files(), f"{tmp_path}/node.json")
    topics = [TopicEntry("orders", True, [ChannelEntry("billing")])]
    write_metadata(Files(), f"{tmp_path}/nsqd.dat", topics, "1.3.0")
    assert main([f"{tmp_path}/node.json", f"{tmp_path}/nsqd.dat"]) == 0
    out = capsys.readouterr().out
    assert node.uuid in out
    assert "  topic=orders paused\n    channel=billing\n" in out


def test_what_cannot_be_shown_does_not_stop_the_rest(
    segment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_bytes(b"something else")
    (tmp_path / "nsqd.dat").write_bytes(b"{")
    wrong = [f"{tmp_path}/other", f"{tmp_path}/nsqd.dat", f"{tmp_path}/none", str(tmp_path)]
    assert main([*wrong, str(segment)]) == 1
    out, err = capsys.readouterr()
    assert "batch 100..101" in out
    assert len(err.splitlines()) == 4
    assert "not a Penstock file" in err and "No such file" in err


def test_wrong_use_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_a_closed_pipe_ends_it_quietly(tmp_path: Path) -> None:
    log = TopicLog.create(Files(), f"{tmp_path}/t", 1, NODE_ID, 100)
    append_many(log, 100, 20)
    code = "import sys; from penstock.cli.dump import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, log.segments()[0].path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(10) == 0


def test_a_slot_file_and_its_checkpoints_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = SlotName(1_800_000_000_000, 60_000, 7)
    store = SlotStore(Files(), str(tmp_path))
    records = SlotBatch(name.number)
    due_ns = 1_800_000_001_000_000_000
    records.add(0, b"orders", 0xAB, b"hello", due_ns - 5, due_ns, 1)
    store.append(name, records.packed(), fresh=True)
    store.append_fired(name, [0], fresh=True)
    assert main([str(tmp_path / name.slot_file), str(tmp_path / name.fired_file)]) == 0
    out = capsys.readouterr().out
    assert "topic=orders~00000000000000ab due=2027-01-15T08:00:01.000000Z" in out
    assert "body=5:'hello'" in out
    assert "fired ordinals=0..0" in out


def test_the_counts_of_slots_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = SlotName(1_800_000_000_000, 60_000, 7)
    path = tmp_path / "deferred.counts"
    counts = CountsFile(Files(), str(path))
    counts.write_whole([SlotCount(name, size=500, record_count=4, fired_size=24, fired_count=1)])
    assert main([str(path)]) == 0
    assert f"{name.slot_file} count=4 size=500 fired=1 fired_size=24" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:100])
    assert main([str(path)]) == 1
    assert "!! 1 of 1 entries are damaged or missing" in capsys.readouterr().out


def test_a_damaged_slot_file_is_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = SlotName(1_800_000_000_000, 60_000, 7)
    store = SlotStore(Files(), str(tmp_path))
    store.append(name, b"garbage" * 20, fresh=True)
    assert main([str(tmp_path / name.slot_file)]) == 1
    assert "!!" in capsys.readouterr().out


def test_a_staging_file_is_told_part_by_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R19: plain and deferred rows, the seal, and damage."""
    store = StagingStore(Files(), str(tmp_path))
    one, two = plain(b"a", b"bc"), deferred((1_800_000_000_000_000_000, b"late"))
    store.append(
        0x1F,
        [
            encode_header(0x1F, Key("q", 3, 7, ATTEMPT), 1_800_000_000_000_000_000),
            *encode_part(0x1F, 0, "t", False, 2, one, crc32c(one)),
            *encode_part(0x1F, 1, "u", True, 1, two, crc32c(two)),
            encode_seal(0x1F, Seal(2, 3)),
        ],
    )
    path = tmp_path / "000000000000001f.staging"
    assert main([str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "staging=000000000000001f query=q batch=3 partition=7" in lines[0]
    assert [line.split()[1:] for line in lines[1:4]] == [
        ["part", "0", "topic=t", "count=2", "size=15"],
        ["body=1:'a'"],
        ["body=2:'bc'"],
    ]
    assert lines[4].endswith("part 1 topic=u count=1 size=20 deferred")
    assert lines[5].endswith("due=2027-01-15T08:00:00.000000Z body=4:'late'")
    assert lines[6].endswith("sealed parts=2 count=3")
    assert main(["--brief", str(path)]) == 0
    assert "body=" not in capsys.readouterr().out
    data = bytearray(path.read_bytes())
    data[data.index(b"bc")] ^= 1
    path.write_bytes(bytes(data[:-1]))
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert (
        "the part is damaged" in out and "39 bytes are not a record" in out and "not sealed" in out
    )


def test_the_ledger_is_told_record_by_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R19."""
    path = tmp_path / "ledger"
    bound = {"t": ledger.Bound(0xAB, 100)}
    members = (ledger.Member(0x1F, 7, ATTEMPT),)
    path.write_bytes(
        ledger.encode_coordinator("q", 0, ledger.Coordinator("node", "host:1"))
        + ledger.encode_decision("q", 0, ledger.Decision(3, (ledger.Winner("n", 7, "aa", 2),)))
        + b"garbage"
        + ledger.encode_intent("q", ledger.Intent(3, 0, 2, members, bound, {(0x1F, 1): 5}))
        + ledger.encode_published("q", 0, ledger.Published(3, 2, "d"))
    )
    assert main([str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(
        "coordinator time=1970-01-01T00:00:00.000000Z query=q node=node address=host:1"
    )
    assert lines[1].endswith("query=q batch=3 winners=[n:7:aa:2]")
    assert lines[2].startswith("!!")
    assert f"members=[31:7:{ATTEMPT}] topics=[t~00000000000000ab>=100] stamps=[31:1:5]" in lines[3]
    assert lines[4].endswith("query=q batch=3 count=2 digest=d")


def test_notes_of_stagings_are_told_record_by_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R19."""
    path = tmp_path / "staging.notes"
    notes = StagingNotes(Files(), str(path))
    notes.seal(Noted(0x1F, Key("q", 3, 7, ATTEMPT), Seal(1, 2), 300), 0)
    notes.ledger(120)
    assert main([str(path)]) == 0
    sealed, synced = capsys.readouterr().out.splitlines()
    assert sealed.endswith(f"batch=3 partition=7 attempt={ATTEMPT} parts=1 count=2 size=300")
    assert " sealed " in sealed and synced.endswith("size=120")


def test_a_batch_says_which_part_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """R19."""
    log = TopicLog.create(Files(), f"{tmp_path}/t", 1, NODE_ID, 100)
    made = batch(100)
    origin = origin_of(0x1F, 7)
    made.origin, made.flags = origin, STAGED
    append(log, made)
    assert main([log.segments()[0].path]) == 0
    assert "staging=000000000000001f part=7" in capsys.readouterr().out


def test_patterns_are_told_one_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = PatternRecord("q", ChannelReader("1" * 32, "me", 0), ("a.*", "b"), ("a.retry",))
    path = tmp_path / "patterns.json"
    path.write_bytes(encode_patterns([record]))
    assert main([str(path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    since = "since 1970-01-01T00:00:00Z"
    assert line == f"channel=q of me (identity {'1' * 32}, {since}): a.*, b except a.retry"


def test_a_drain_and_its_intent_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to, node = "http://10.0.0.2:4151", "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    intent = HandoverIntent(to, node, "drain/q", 3, "0" * 32, 5, ((77, ((0, 3), (7, 2))),))
    path = tmp_path / "drain.json"
    path.write_bytes(encode_drain(DrainRecord(2, True, "1" * 16, 0, to, 4, 30, intent)))
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"draining to={to} batch=4 handed_over=30",
        f"  intent drain/q batch=3 count=5 at {to}, node {node}",
        "    slot=77 ordinals=0..2, 7..8",
    ]
    path.write_bytes(encode_drain(DrainRecord()))
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == "not draining batch=0 handed_over=0\n"
