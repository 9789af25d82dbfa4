"""The client's frame decoder: what it returns, what it refuses, and that splits never matter."""

from __future__ import annotations

import itertools
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.frames import FrameReader, Message, Reply
from penstock.errors import ProtocolError

ID = b"0123456789abcdef"


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", 4 + len(data), kind) + data


def message_frame(
    body: bytes, *, id: bytes = ID, attempts: int = 1, timestamp_ns: int = 7
) -> bytes:
    return frame(2, struct.pack(">qH", timestamp_ns, attempts) + id + body)


def plain(frames: list[Message | Reply]) -> list[tuple[object, ...]]:
    return [
        (f.timestamp_ns, f.attempts, f.id, f.body) if isinstance(f, Message) else (f.error, f.text)
        for f in frames
    ]


def test_a_response_and_an_error_are_replies() -> None:
    replies = FrameReader().feed(frame(0, b"OK") + frame(1, b"E_INVALID no"))
    assert plain(replies) == [(False, b"OK"), (True, b"E_INVALID no")]


def test_a_message_has_its_time_attempts_id_and_body() -> None:
    # Row 42 of the captured exchanges.
    data = bytes.fromhex("0000001f00000002 18e81e4ba1bb95fc 0001") + b"189b55edf2c01000m"
    (message,) = FrameReader().feed(data)
    assert plain([message]) == [(0x18E81E4BA1BB95FC, 1, b"189b55edf2c01000", b"m")]


def test_attempts_and_time_take_their_whole_range() -> None:
    data = message_frame(b"", attempts=65535, timestamp_ns=-(2**63))
    assert plain(FrameReader().feed(data)) == [(-(2**63), 65535, ID, b"")]


def test_any_buffer_can_be_fed() -> None:
    for kind in (bytes, bytearray, memoryview):
        assert plain(FrameReader().feed(kind(frame(0, b"OK")))) == [(False, b"OK")]


def test_finish_answers_a_run_of_messages_with_their_fins() -> None:
    ids = [b"%016x" % i for i in range(3)]
    data = b"".join(message_frame(b"x" * i, id=id) for i, id in enumerate(ids))
    finished = FrameReader().finish(data)
    assert finished.commands == b"".join(b"FIN %s\n" % id for id in ids)
    assert (finished.count, finished.body_size, finished.replies) == (3, 3, [])


def test_finish_keeps_heartbeats_and_errors_apart() -> None:
    data = frame(0, b"_heartbeat_") + message_frame(b"a") + frame(1, b"E_FIN_FAILED x")
    finished = FrameReader().finish(data)
    assert finished.count == 1
    assert plain(finished.replies) == [(False, b"_heartbeat_"), (True, b"E_FIN_FAILED x")]


def test_finish_reads_the_stamp_at_the_start_of_each_body() -> None:
    bodies = [struct.pack(">q", 123456789) + b"rest", b"short", struct.pack(">q", -5)]
    finished = FrameReader().finish(b"".join(message_frame(b) for b in bodies))
    assert array("q", finished.stamps).tolist() == [123456789, 0, -5]


def test_nothing_is_carried_from_one_finish_to_the_next() -> None:
    reader = FrameReader()
    reader.finish(message_frame(b"a"))
    finished = reader.finish(b"")
    assert (finished.count, finished.commands, finished.stamps) == (0, b"", b"")


def test_a_reader_may_change_between_feed_and_finish_within_a_frame() -> None:
    data = message_frame(b"body")
    for cut in range(len(data) + 1):
        reader = FrameReader()
        head = reader.feed(data[:cut])
        tail = reader.finish(data[cut:])
        assert len(head) + tail.count == 1


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (struct.pack(">I", 3), "frame size 3 out of range 4-100"),
        (struct.pack(">I", 0), "frame size 0 out of range 4-100"),
        (struct.pack(">I", 101), "frame size 101 out of range 4-100"),
        (struct.pack(">i", -1), "frame size 4294967295 out of range 4-100"),
        (frame(3, b""), "frame type 3 is not known"),
        (frame(2, b"x" * 25), "message frame of 25 bytes has no head"),
    ],
)
def test_a_bad_frame_is_refused_after_the_good_ones_before_it(data: bytes, text: str) -> None:
    stream = frame(0, b"OK") + data + frame(0, b"late")
    for size in range(1, len(stream) + 1):
        reader = FrameReader(100)
        seen: list[Message | Reply] = []
        for at in range(0, len(stream), size):
            if reader.error is None:
                seen += reader.feed(stream[at : at + size])
        assert plain(seen) == [(False, b"OK")]
        assert str(reader.error) == f"E_BAD_FRAME {text}"
        with pytest.raises(ProtocolError, match=text):
            reader.feed(b"")
        with pytest.raises(ProtocolError, match=text):
            reader.finish(b"")


def test_the_largest_frame_is_accepted_and_one_byte_more_is_not() -> None:
    assert plain(FrameReader(100).feed(frame(0, b"x" * 96))) == [(False, b"x" * 96)]
    reader = FrameReader(100)
    assert reader.feed(frame(0, b"x" * 97)) == []
    assert reader.error is not None


def test_a_size_is_refused_before_anything_of_the_frame_is_held() -> None:
    reader = FrameReader(100)
    reader.feed(struct.pack(">I", 101) + b"x" * 50)
    assert reader.held_size == 0


def test_a_frame_size_limit_out_of_range_is_refused() -> None:
    for limit in (3, -1, 2**31):
        with pytest.raises(ValueError, match="out of range"):
            FrameReader(limit)


FRAMES = st.lists(
    st.one_of(
        st.binary(max_size=40).map(lambda data: frame(0, data)),
        st.binary(max_size=40).map(lambda data: frame(1, data)),
        st.builds(
            message_frame,
            st.binary(max_size=60),
            id=st.binary(min_size=16, max_size=16),
            attempts=st.integers(0, 65535),
            timestamp_ns=st.integers(-(2**63), 2**63 - 1),
        ),
        st.binary(min_size=1, max_size=12),
    ),
    max_size=8,
)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@given(FRAMES, st.lists(st.integers(0, 400), max_size=20))
def test_where_the_stream_is_split_never_changes_the_frames(
    frames: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(frames)
    whole = FrameReader(100)
    expected = plain(whole.feed(stream))
    reader = FrameReader(100)
    seen: list[Message | Reply] = []
    for piece in pieces(stream, cuts):
        if reader.error is None:
            seen += reader.feed(piece)
    assert plain(seen) == expected
    assert str(reader.error) == str(whole.error)


@given(FRAMES, st.lists(st.integers(0, 400), max_size=20))
def test_feed_and_finish_see_the_same_stream(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frames)
    seen = FrameReader(100).feed(stream)
    messages = [f for f in seen if isinstance(f, Message)]
    reader = FrameReader(100)
    runs = []
    for piece in pieces(stream, cuts):
        if reader.error is None:
            runs.append(reader.finish(piece))
    assert b"".join(r.commands for r in runs) == b"".join(b"FIN %s\n" % m.id for m in messages)
    assert sum(r.count for r in runs) == len(messages)
    assert sum(r.body_size for r in runs) == sum(len(m.body) for m in messages)
    assert plain([x for r in runs for x in r.replies]) == plain(
        [f for f in seen if isinstance(f, Reply)]
    )
