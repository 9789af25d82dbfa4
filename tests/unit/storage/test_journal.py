"""The ack journal: records, replay, compaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage import journal
from penstock.storage.channel_reader import ChannelReader
from penstock.storage.files import Files
from penstock.storage.journal import (
    FRAMING,
    POLICY,
    TOPIC_ID,
    ChannelState,
    Journal,
    TopicState,
    encode_begun,
    encode_channel,
    encode_gone,
    encode_policy,
    encode_progress,
    encode_reader,
    encode_removed,
    encode_seek,
    encode_synced,
    encode_topic,
    records,
    replay,
    snapshot,
)


def channel(*progress: bytes) -> ChannelState:
    data = encode_channel(1, 100, False, 0, "c") + b"".join(progress)
    return replay(data).channels["c"]


def test_records_say_what_was_recorded() -> None:
    data = b"".join(
        [
            encode_topic(150, True, False, 42),
            encode_channel(7, 120, True, 99, "päckchen"),
            encode_progress(7, 130, [(140, 145)], {132: (2, 0), 150: (1, 777)}),
            encode_synced(100, 4096),
        ]
    )
    state = replay(data)
    assert (state.released, state.frozen, state.paused, state.void_stamp) == (150, True, False, 42)
    assert state.synced == (100, 4096)
    assert state.index_max == 151 and state.channel_id_max == 7
    assert state.channels == {
        "päckchen": ChannelState(
            7, "päckchen", 120, True, 99, 130, [(140, 145)], {132: (2, 0), 150: (1, 777)}
        )
    }


def test_the_last_policy_of_a_topic_or_channel_counts() -> None:
    data = b"".join(
        [
            encode_topic(150, False, False, 0),
            encode_policy(9, {"max_attempts": "1"}),  # of no channel
            encode_channel(7, 120, False, 0, "c"),
            encode_policy(7, {"max_attempts": "1"}),
            encode_policy(7, {"max_attempts": "2", "later": [1]}),
            encode_channel(7, 120, True, 0, "c"),
            encode_policy(TOPIC_ID, {"retain": "7d"}),
        ]
    )
    state = replay(data)
    assert state.policy == {"retain": "7d"}
    assert state.channels["c"].policy == {"max_attempts": "2", "later": [1]}
    again = replay(b"".join(snapshot(state)))
    assert (again.policy, again.channels) == (state.policy, state.channels)
    state = replay(data + encode_policy(7, {}) + encode_policy(TOPIC_ID, {}))
    assert state.policy == state.channels["c"].policy == {}
    state = replay(data + encode_gone(7) + encode_channel(8, 120, False, 0, "c"))
    assert state.channels["c"].policy == {}


def test_a_policy_that_is_no_object_is_skipped_and_counted() -> None:
    for text in (b"[]", b"{", b"\xff", b"[" * 100_000, b""):
        bad = FRAMING.encode(POLICY, bytes(4) + text)
        state = replay(encode_policy(TOPIC_ID, {"retain": "7d"}) + bad)
        assert (state.policy, state.corrupt_count) == ({"retain": "7d"}, 1)


def test_finishes_add_up_and_low_swallows_what_touches_it() -> None:
    found = channel(
        encode_progress(1, 110, [(120, 125)]),
        encode_progress(1, 105, [(125, 130), (110, 112), (140, 141)]),
    )
    assert (found.low, found.runs) == (112, [(120, 130), (140, 141)])


def test_marks_of_finished_messages_are_dropped_and_the_last_mark_counts() -> None:
    found = channel(
        encode_progress(1, 100, [], {105: (1, 0), 120: (1, 0), 150: (1, 5)}),
        encode_progress(1, 110, [(120, 121)], {150: (2, 0)}),
    )
    assert found.marks == {150: (2, 0)}


def test_a_changed_channel_keeps_its_progress() -> None:
    found = channel(encode_progress(1, 130), encode_channel(1, 0, True, 5, "c"))
    assert (found.start, found.low, found.paused, found.defer_stamp) == (100, 130, True, 5)


def test_flags_of_a_channel_are_those_told_last() -> None:
    data = encode_channel(1, 5, False, 0, "c", named=True)
    assert replay(data).channels["c"].named
    assert replay(b"".join(snapshot(replay(data)))).channels["c"].named
    used = replay(data + encode_channel(1, 5, False, 0, "c"))
    assert not used.channels["c"].named and not used.channels["c"].pulled


def test_a_deleted_channel_is_gone_and_its_name_can_come_back() -> None:
    data = encode_channel(1, 100, False, 0, "c") + encode_progress(1, 130) + encode_gone(1)
    assert replay(data).channels == {}
    again = replay(data + encode_channel(2, 140, False, 0, "c") + encode_progress(1, 900))
    assert (again.channels["c"].id, again.channels["c"].low) == (2, 140)
    assert again.index_max == 900


def test_records_of_a_later_kind_are_ignored() -> None:
    from penstock.storage.journal import FRAMING

    state = replay(encode_synced(1, 2) + FRAMING.encode(77, b"future") + encode_synced(3, 4))
    assert (state.synced, state.corrupt_count) == ((3, 4), 0)


def test_a_progress_with_many_runs_becomes_several_records() -> None:
    runs = [(200 + 3 * i, 201 + 3 * i) for i in range(10_000)]
    marks = {100_000 + i: (1, i) for i in range(5_000)}
    data = encode_progress(1, 110, runs, marks)
    assert len(list(records(data))) == 3
    found = channel(data)
    assert (found.low, found.runs, found.marks) == (110, runs, marks)


run = st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1]))
progress = st.tuples(
    st.integers(0, 60),
    st.lists(run, max_size=4),
    st.dictionaries(st.integers(0, 60), st.tuples(st.integers(1, 9), st.integers(0, 9))),
)


@given(st.lists(progress, max_size=6))
def test_replay_is_the_union_of_all_finishes_and_a_snapshot_says_the_same(
    history: list[tuple[int, list[tuple[int, int]], dict[int, tuple[int, int]]]],
) -> None:
    data = [encode_channel(1, 0, False, 0, "c")]
    finished: set[int] = set()
    marks: dict[int, tuple[int, int]] = {}
    for low, runs, some in history:
        data.append(encode_progress(1, low, runs, some))
        finished |= set(range(low)) | {i for a, b in runs for i in range(a, b)}
        marks |= some
    state = replay(b"".join(data))
    found = state.channels["c"]
    told = set(range(found.low)) | {i for a, b in found.runs for i in range(a, b)}
    assert told == finished
    assert found.low not in finished
    assert found.runs == sorted(found.runs)
    assert all(a < b for a, b in found.runs)
    assert found.marks == {i: mark for i, mark in marks.items() if i not in finished}
    again = replay(b"".join(snapshot(state)))
    again.index_max = state.index_max
    assert again == state


@given(st.binary(max_size=200))
def test_any_bytes_can_be_replayed(data: bytes) -> None:
    state = replay(data)
    assert state.channels == {} and state.torn_size == len(data)


def test_a_large_snapshot_is_written_in_pieces(tmp_path: Path) -> None:
    """Of a million buried messages it has 23 MB: it is never in memory as a whole."""
    files, path = Files(), str(tmp_path / "journal")
    pieces = [bytes([number]) * 100_000 for number in range(40)]
    made = 0

    def produce() -> Iterator[bytes]:
        nonlocal made
        for piece in pieces:
            made += 1
            yield piece
            written = files.size(f"{path}.new") if files.exists(f"{path}.new") else 0
            assert made * len(piece) - written < 2 << 20

    large = Journal(files, path)
    large.write(b"old")
    large.compact(produce())
    assert files.read(path) == b"".join(pieces)
    assert large.size == files.size(path) == 4_000_000


def test_a_journal_buffers_writes_and_compacts(tmp_path: Path) -> None:
    path = f"{tmp_path}/journal"
    journal = Journal(Files(), path)
    journal.add(encode_channel(1, 100, False, 0, "c"))
    journal.add(encode_progress(1, 110))
    assert journal.size == 0 and journal.buffer_size > 0
    journal.write(journal.take())
    assert journal.take() == b"" and journal.buffer_size == 0
    assert journal.size == Path(path).stat().st_size
    journal.add(encode_progress(1, 120))
    state = TopicState(channels={"c": ChannelState(1, "c", 100, low=115)})
    journal.compact(snapshot(state))
    journal.write(journal.take())
    journal.sync()
    assert replay(Path(path).read_bytes()).channels["c"].low == 120
    assert Journal(Files(), path).size == journal.size
    assert [p.name for p in tmp_path.iterdir()] == ["journal"]


def test_pull_channels_and_what_was_removed_are_recorded() -> None:
    """R18."""
    data = encode_channel(3, 100, True, 0, "q", pulled=True) + encode_removed(70)
    state = replay(data + encode_removed(60))
    assert state.channels["q"] == ChannelState(3, "q", 100, True, low=100, pulled=True)
    assert state.whole_from == 70 and state.index_max == 100
    assert replay(b"".join(snapshot(state))) == state
    plain = replay(data + encode_channel(4, 120, False, 0, "q"))
    assert plain.channels["q"] == ChannelState(4, "q", 120, low=120), "a name has one channel"


def test_the_reader_of_a_channel_is_the_one_told_last() -> None:
    """R45."""
    one, two = (
        ChannelReader("1f" * 16, "", 0),
        ChannelReader("2e" * 16, "pipeline ü, pid 7", 1 << 40),
    )
    data = encode_channel(3, 100, False, 0, "q", pulled=True, partial=True) + encode_reader(3, one)
    assert replay(data).channels["q"].reader == one and replay(data).channels["q"].partial
    data += encode_channel(3, 100, True, 0, "q", pulled=True) + encode_reader(3, two)
    state = replay(data)
    assert state.channels["q"].reader == two and not state.channels["q"].partial
    assert replay(b"".join(snapshot(state))) == state
    again = replay(data + encode_gone(3) + encode_channel(4, 100, False, 0, "q", pulled=True))
    assert again.channels["q"].reader is None, "it goes with its channel"
    assert replay(encode_reader(9, one)).channels == {}


def test_a_reader_that_is_none_is_a_bad_record() -> None:
    good = encode_channel(3, 100, False, 0, "q", pulled=True)
    reader = ChannelReader("1f" * 16, "q", 5)
    (payload,) = [found.payload for found in records(encode_reader(3, reader))]
    assert payload is not None
    for wrong in (
        payload[:3],
        payload[:20],
        payload + b"\xff",
        payload[:4] + b"\xff" + payload[5:],
    ):
        state = replay(good + journal.FRAMING.encode(journal.READER, wrong))
        assert state.corrupt_count == 1 and state.channels["q"].reader is None


def test_reading_a_journal_takes_no_longer_a_channel_the_more_there_are() -> None:
    def seconds(count: int) -> float:
        data = b"".join(encode_channel(n, 0, False, 0, f"c{n}") for n in range(count))
        started_s = time.process_time()
        assert len(replay(data).channels) == count
        return time.process_time() - started_s

    few, many = min(seconds(2000) for _ in range(3)), min(seconds(8000) for _ in range(3))
    assert many < 2 * 4 * few + 0.01


def test_a_channel_made_again_counts_without_the_record_that_the_first_one_is_gone() -> None:
    first = encode_channel(1, 5, False, 0, "c") + encode_progress(1, 9)
    again = encode_channel(7, 20, True, 0, "c")
    for data in (first + again, first + encode_gone(1) + again, first + again + encode_gone(1)):
        state = replay(data)
        assert [(c.id, c.low, c.paused) for c in state.channels.values()] == [(7, 20, True)]


def sought(*more: bytes) -> TopicState:
    """Channel 1 has finished much, and was sought to 50 as 5, where it finished 60."""
    return replay(
        b"".join(
            [
                encode_channel(1, 0, False, 7, "c"),
                encode_progress(1, 100, [(120, 125)], {130: (3, 0)}),
                encode_seek(1, 777, 140, *(5, 50, False, 7, "c", False, False, False)),
                encode_progress(5, 50, [(60, 61)], {70: (1, 0)}),
                *more,
            ]
        )
    )


def test_a_seek_begins_again_with_a_new_id() -> None:
    """R22"""
    state = sought()
    assert state.channels == {
        "c": ChannelState(
            *(5, "c", 50, False, 7, 50, [(60, 61)], {70: (1, 0)}),
            begun_ns=777,
            begun_end=140,
            first_id=1,
        )
    }
    assert state.channel_id_max == 5
    again = replay(b"".join(snapshot(state))).channels["c"]
    assert (again.id, again.low, again.begun_ns, again.begun_end) == (5, 50, 777, 140)


def test_a_seek_without_its_channel_makes_it() -> None:
    """Its CHANNEL record may be damaged."""
    state = replay(encode_seek(1, 777, 140, *(5, 50, True, 0, "c", False, False, False)))
    assert (state.channels["c"].id, state.channels["c"].paused) == (5, True)


def test_an_earlier_version_that_skipped_a_seek_continues_where_it_was() -> None:
    """R22: what it records is for the old id, or a new channel gets the id it does not know of."""
    twice = encode_seek(5, 888, 140, *(6, 0, False, 7, "c", False, False, False))
    for more in (b"", twice, twice + encode_progress(6, 5)):
        state = sought(more, encode_progress(1, 110))
        assert (state.channels["c"].id, state.channels["c"].low) == (1, 110)
        assert state.channels["c"].runs == [(120, 125)]
        state = sought(more, encode_channel(5, 90, False, 0, "b"), encode_progress(5, 95))
        found = {name: (each.id, each.low) for name, each in state.channels.items()}
        assert found == {"c": (1, 100), "b": (5, 95)}
        state = sought(more, encode_gone(1))
        assert state.channels == {} and state.gone["c"][0] == 1
        state = sought(more, encode_gone(1), encode_channel(5, 90, False, 0, "c"))
        assert state.channels["c"].id == 5 and state.channels["c"].low == 90


def test_a_sought_channel_is_deleted_by_both_of_its_ids() -> None:
    state = sought(encode_gone(1), encode_gone(5))
    assert state.channels == {} and set(state.gone) == {"c"}


def test_a_channel_that_begins_in_the_past_knows_since_when() -> None:
    state = replay(
        encode_channel(1, 0, False, 0, "c") + encode_begun(1, 5, 9) + encode_begun(2, 1, 1)
    )
    assert (state.channels["c"].begun_ns, state.channels["c"].begun_end) == (5, 9)
    again = replay(b"".join(snapshot(state))).channels["c"]
    assert (again.begun_ns, again.begun_end) == (5, 9)
