"""Parts of stagings: what is refused, and that their frames are those of a publish (R19)."""

from __future__ import annotations

import struct

import pytest

from penstock.core.appender import Appender
from penstock.core.parts import frames, measure
from penstock.core.slots import SlotBatch
from tests.support.staging import deferred, plain

BODIES = [b"a", b"bc", b"\0" * 300]
ROWS = [(5, b"a"), (2_000, b"bc"), (1_000, b"d" * 300)]


def test_a_good_part_is_measured() -> None:
    assert measure(plain(*BODIES), False, 300) == (3, 303)
    assert measure(deferred(*ROWS), True, 300, 2_000) == (3, 303)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "BAD_BODY"),
        (b"\0\0\0", "BAD_BODY"),
        (b"\0\0\0\0", "BAD_BODY"),
        (b"\xff\xff\xff\xff\0\0\0\1a", "BAD_BODY"),
        (plain(b"a") + b"x", "BAD_BODY"),
        (plain(b"a", b"b")[:-1], "BAD_MESSAGE"),
        (plain(b"a", b"bcdef")[:-6], "BAD_MESSAGE"),
        (plain(b"a", b""), "BAD_MESSAGE"),
        (plain(b"abcdef", b""), "BAD_MESSAGE"),
        (plain(b"x" * 301), "MSG_TOO_BIG"),
        (struct.pack(">II", 1, 0x80000000) + b"a", "MSG_TOO_BIG"),
    ],
)
def test_a_bad_part_is_refused(body: bytes, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        measure(body, False, 300)


def test_a_deferred_part_is_refused_for_its_times_too() -> None:
    for due_ns in (-1, 2_001):
        with pytest.raises(ValueError, match="INVALID_DEFER"):
            measure(deferred((due_ns, b"a")), True, 300, 2_000)
    with pytest.raises(ValueError, match="BAD_BODY"):
        measure(plain(b"a"), True, 300, 2_000)
    with pytest.raises(ValueError, match="BAD_MESSAGE"):
        measure(deferred(*ROWS)[:-1], True, 300, 2_000)


def test_every_cut_of_a_part_is_refused() -> None:
    for body, is_deferred in ((plain(*BODIES), False), (deferred(*ROWS), True)):
        for size in range(len(body)):
            with pytest.raises(ValueError, match="BAD_"):
                measure(body[:size], is_deferred, 300, 2_000)
            if not is_deferred:
                with pytest.raises(ValueError, match="BAD_"):
                    frames(body[:size], 1, 0, 0)


def test_the_frames_of_a_part_are_those_of_a_publish() -> None:
    """R19: whoever consumes cannot tell."""
    appender = Appender("t", 5, 1000, lambda: None)
    appender.extend(BODIES, 1234567890)
    batch = appender.seal(0)
    assert frames(plain(*BODIES), 5, batch.first, 1234567890) == batch.payload


def test_taken_indexes_are_not_given_again() -> None:
    """R1."""
    appender = Appender("t", 5, 1000, lambda: None)
    assert appender.take(3) == 1000
    appender.add(b"x", 1)
    with pytest.raises(AssertionError):
        appender.take(1)
    assert appender.seal(0).first == 1003


def test_rows_become_the_records_of_single_publishes() -> None:
    """R16, R19: a run ends where the next row is due elsewhere."""
    part = deferred(*ROWS)
    run, one = SlotBatch(7), SlotBatch(7)
    count, at = run.add_rows(part, 4, 10, 3, b"topic", 9, 1_000, 50, 0, 1_500)
    assert count == 1, "the second is due too late"
    count, at = run.add_rows(part, at, 10, 4, b"topic", 9, 1_000, 51, 1_500, 3_000)
    assert count == 1, "the third is due too early"
    count, at = run.add_rows(part, at, 10, 5, b"topic", 9, 1_000, 52, 0, 1_500)
    assert (count, at) == (1, len(part))
    for number, (due_ns, body) in enumerate(ROWS):
        one.add(3 + number, b"topic", 9, body, 1_000, max(due_ns, 1_000), 50 + number)
    assert run.packed() == one.packed()
    assert run.rows() == one.rows()
    assert SlotBatch(7).add_rows(part, 4, 2, 0, b"t", 9, 0, 1, 0, 5_000)[0] == 2
    with pytest.raises(ValueError, match="BAD_MESSAGE"):
        SlotBatch(7).add_rows(part[:-1], 4, 10, 0, b"t", 9, 0, 1, 0, 5_000)
