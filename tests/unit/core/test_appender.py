"""The appender: bodies in, a batch of frames out."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.appender import INDEX_BITS, Appender
from penstock.wire import ids
from tests.support.blocks import frame, read_frames
from tests.support.bodies import several, sized


class Opened:
    """Counts the batches that begin."""

    def __init__(self, node_id: int = 5, first: int = 100) -> None:
        self.count = 0
        self.appender = Appender("orders", node_id, first, self)

    def __call__(self) -> None:
        self.count += 1


def test_a_frame_has_the_bytes_a_consumer_receives() -> None:
    appender = Opened(node_id=5, first=0x1234).appender
    appender.add(b"hello", 0x0102030405060708)
    assert appender.seal(0).payload == (
        b"\x00\x00\x00\x23\x00\x00\x00\x02"
        b"\x01\x02\x03\x04\x05\x06\x07\x08"
        b"\x00\x01"
        b"0140000000001234"
        b"hello"
    )


def test_a_batch_is_frames_back_to_back_with_ascending_indexes() -> None:
    appender = Opened(first=100).appender
    for index in range(100, 110):
        appender.add(b"x" * (index - 100), index)
    assert (appender.first, appender.count, appender.next_index) == (100, 10, 110)
    assert (appender.body_size, appender.size) == (45, 45 + 340)
    batch = appender.seal(777)
    frames = b"".join(frame(i, b"x" * (i - 100), timestamp_ns=i) for i in range(100, 110))
    assert batch.payload == frames
    assert (batch.first, batch.count, batch.end) == (100, 10, 110)
    assert (batch.publish_ns, batch.append_ns, batch.body_size) == (100, 777, 45)


def test_indexes_go_on_in_the_next_batch() -> None:
    appender = Opened(first=7).appender
    appender.add(b"a", 1)
    appender.add(b"b", 1)
    appender.seal(0)
    assert (appender.first, appender.count, appender.size, appender.body_size) == (9, 0, 0, 0)
    appender.add(b"c", 1)
    batch = appender.seal(0)
    assert (batch.first, batch.count) == (9, 1)
    assert [sent.index for sent in read_frames(batch.payload)] == [9]


def test_a_batch_opens_with_its_first_message_and_only_then() -> None:
    opened = Opened()
    appender = opened.appender
    assert opened.count == 0 and appender.ticket is None
    appender.add(b"a", 1)
    ticket = appender.ticket
    appender.add(b"b", 1)
    assert opened.count == 1 and appender.ticket is ticket
    appender.seal(0)
    assert appender.ticket is None
    appender.add(b"c", 1)
    assert opened.count == 2 and appender.ticket is not ticket


def test_an_error_while_opening_appends_nothing() -> None:
    def fail() -> None:
        raise OSError("disk")

    appender = Appender("orders", 1, 5, fail)
    with pytest.raises(OSError, match="disk"):
        appender.add(b"a", 1)
    assert (appender.count, appender.size, appender.next_index) == (0, 0, 5)
    appender.opened = lambda: None
    appender.add(b"b", 1)
    assert [sent.body for sent in read_frames(appender.seal(0).payload)] == [b"b"]


def test_publish_ns_is_the_smallest_timestamp_of_the_batch() -> None:
    appender = Opened().appender
    for timestamp_ns in (50, 30, 40):
        appender.add(b"a", timestamp_ns)
    assert appender.seal(0).publish_ns == 30
    appender.add(b"a", 60)
    assert appender.seal(0).publish_ns == 60


def test_sealing_an_empty_batch_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        Opened().appender.seal(0)


@pytest.mark.parametrize("size", [0, 1, 4061, 4062, 4063, 1 << 20, (1 << 20) + 1])
def test_bodies_of_every_size_around_the_buffers_are_kept(size: int) -> None:
    """The buffer starts at 4096 bytes, or up to 1 MiB if the last batch was large, and doubles."""
    body = bytes(i * 31 % 251 for i in range(size % 1000)) + b"\n" * (size - size % 1000)
    appender = Opened(first=0).appender
    for _ in range(3):
        for _ in range(2):
            appender.add(body, 1)
        payload = appender.seal(0).payload
        assert [sent.body for sent in read_frames(payload)] == [body, body]


def test_the_id_is_node_id_and_index_for_all_of_their_bits() -> None:
    assert INDEX_BITS == ids.INDEX_BITS
    for node_id in (0, 1, 512, 1023):
        for index in (0, 1, 2**32 - 1, 2**32, 2**53, ids.INDEX_MAX):
            appender = Opened(node_id=node_id, first=index).appender
            appender.add(b"", 1)
            assert appender.seal(0).payload[18:34] == ids.message_id(node_id, index)


@pytest.mark.parametrize("timestamp_ns", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_timestamps_are_signed_64_bit(timestamp_ns: int) -> None:
    appender = Opened().appender
    appender.add(b"", timestamp_ns)
    assert struct.unpack_from(">q", appender.seal(0).payload, 8) == (timestamp_ns,)


@pytest.mark.parametrize("node_id", [-1, 1024])
def test_a_node_id_of_more_than_ten_bits_is_refused(node_id: int) -> None:
    with pytest.raises(AssertionError):
        Opened(node_id=node_id)


BODIES = st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=5)


@given(BODIES, st.binary(max_size=5))
def test_an_mpub_body_is_all_its_messages_or_none(bodies: list[bytes], rest: bytes) -> None:
    whole = several(*bodies)
    appender = Opened().appender
    for cut in range(len(whole)):
        with pytest.raises(ValueError, match="BAD_BODY" if cut < 4 else "BAD_MESSAGE"):
            appender.extend_multi(whole[:cut], 5, 6, 1)
    for count_max, size_max in ((len(bodies) - 1, 6), (5, max(map(len, bodies)) - 1)):
        with pytest.raises(ValueError, match="BAD_"):
            appender.extend_multi(whole, count_max, size_max, 1)
    assert appender.count == 0
    appender.extend_multi(whole + rest, 5, 6, 7)
    batch = appender.seal(0)
    assert [sent.body for sent in read_frames(batch.payload)] == bodies
    assert (batch.count, batch.publish_ns) == (len(bodies), 7)
    assert batch.body_size == sum(map(len, bodies))


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_an_mpub_body_of_no_messages_is_none(count: int) -> None:
    with pytest.raises(ValueError, match="BAD_BODY"):
        Opened().appender.extend_multi(struct.pack(">i", count) + sized(b"x"), 5, 6, 1)


@given(st.lists(st.sampled_from([b"", b"a", b"\r", b"bcd", b"\0\0"])).map(b"\n".join))
def test_lines_are_messages(body: bytes) -> None:
    lines = [line for line in body.split(b"\n") if line]
    appender = Opened().appender
    longest = max(map(len, lines), default=0)
    if longest:
        with pytest.raises(ValueError, match="MSG_TOO_BIG"):
            appender.extend_lines(body, longest - 1, 1)
        assert appender.count == 0
    assert appender.extend_lines(body, longest, 1) == len(lines)
    if lines:
        assert [sent.body for sent in read_frames(appender.seal(0).payload)] == lines


def test_small_batches_of_many_topics_take_little_memory() -> None:
    """Cut to size, each left a hole of 4 KB that no other batch fitted into."""
    appenders = [Opened().appender for _ in range(500)]
    kept = []
    before = resident_size()
    for _ in range(40):
        for appender in appenders:
            appender.add(b"x", 0)
        kept += [appender.seal(0).payload for appender in appenders]
    assert resident_size() - before < 20 << 20
    assert len(kept) == 20_000


def resident_size() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
