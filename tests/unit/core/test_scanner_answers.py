"""The command scanner: FIN, REQ, TOUCH and RDY, which run on the channel's window.

Numbers in brackets are rows of the captured exchanges with nsqd.
"""

from __future__ import annotations

import pytest

from penstock.wire.ids import message_id
from tests.support.blocks import NODE_ID, frame
from tests.support.scanners import MS, NOW_NS, WALL_NS, Peer, id_of


@pytest.mark.parametrize("state", ["subscribed", "closing"])
def test_answers_to_own_messages_are_silent(state: str) -> None:
    peer = Peer(state)
    sent = b"FIN %s\nREQ %s 0\nREQ %s 1500\nTOUCH %s\n" % tuple(id_of(i) for i in range(4))
    assert peer.send(sent) == []
    assert peer.scanner.answered
    states = [peer.window_state()[i] for i in range(4)]
    due_ns = WALL_NS + 1500 * MS
    assert states == [None, ("ready", 1, 0), ("deferred", 1, due_ns), ("in flight", 1, 0)]
    assert peer.consumer.in_flight_count == 1


@pytest.mark.parametrize("state", ["subscribed", "closing"])
@pytest.mark.parametrize(("name", "end"), [("FIN", b""), ("REQ", b" 0"), ("TOUCH", b"")])
def test_failed_answers_are_not_fatal(state: str, name: str, end: bytes) -> None:
    """Rows 33, 34, 36, 37 and 45; S0-4."""
    peer = Peer(state)
    ids = [b"0123456789abcdef", b"f" * 16, b"0" * 16, b"zzzzzzzzzzzzzzzz", b"\xff" * 16]
    ids += [b"+" + id_of(0)[1:], id_of(100), message_id(NODE_ID + 1, 0)]
    for wrong in ids:
        text = wrong.decode("utf-8", "surrogateescape")
        expected = f"E_{name}_FAILED {name} {text} failed ID not in flight"
        assert peer.send(name.encode() + b" " + wrong + end + b"\n") == [expected]
    other = id_of(7)
    expected = f"E_{name}_FAILED {name} {other.decode()} failed client does not own message"
    assert peer.send(name.encode() + b" " + other + end + b"\n") == [expected]
    assert peer.open and not peer.scanner.answered
    assert peer.send(name.encode() + b" " + id_of(0) + end + b"\n") == []


def test_ids_are_compared_byte_by_byte_so_upper_case_is_another_id() -> None:
    peer = Peer("subscribed", in_flight=32)
    assert peer.send(b"FIN " + id_of(10).upper() + b"\n") == [
        f"E_FIN_FAILED FIN {id_of(10).upper().decode()} failed ID not in flight"
    ]
    assert peer.send(b"FIN " + id_of(10) + b"\n") == []


@pytest.mark.parametrize("state", ["subscribed", "closing"])
@pytest.mark.parametrize("name", ["FIN", "REQ", "TOUCH"])
def test_answers_need_their_params_and_an_id_of_sixteen_bytes(state: str, name: str) -> None:
    """Row 32; the word is "params" here."""
    command = name.encode()
    short = [command] + ([command + b" " + id_of(0)] if name == "REQ" else [])
    for line in short:
        expected = f"E_INVALID {name} insufficient number of params"
        assert Peer(state).send(line + b"\n") == [expected]
    for wrong in (b"", b"abc", id_of(0)[:15], id_of(0) + b"0", id_of(0) * 2):
        line = command + b" " + wrong + b" 0\n"
        assert Peer(state).send(line) == ["E_INVALID invalid message ID"]


@pytest.mark.parametrize("text", [b"-1", b"+5", b"1e3", b"abc", b"1\r"])
def test_a_delay_of_req_that_is_not_digits_is_fatal(text: bytes) -> None:
    """Row 35: checked before the id is looked for."""
    for wrong_or_right in (id_of(0), b"0123456789abcdef"):
        peer = Peer("subscribed")
        expected = f"E_INVALID REQ could not parse timeout {text.decode()}"
        assert peer.send(b"REQ " + wrong_or_right + b" " + text + b" \n") == [expected]
        assert peer.window_state()[0] == ("in flight", 1, 0)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        (b"", 0),
        (b"1", 1),
        (b"3600000", 3_600_000),
        (b"3600001", 3_600_000),
        (b"18446744073709551615", 3_600_000),
        (b"18446744073709551616", 3_600_000),
        (b"18446744073709551617", 3_600_000),
    ],
)
def test_a_long_delay_of_req_is_clamped_without_a_word(text: bytes, delay_ms: int) -> None:
    """S4-7"""
    peer = Peer("subscribed")
    assert peer.send(b"REQ " + id_of(0) + b" " + text + b"\n") == []
    state = ("deferred", 1, WALL_NS + delay_ms * MS) if delay_ms else ("ready", 1, 0)
    assert peer.window_state()[0] == state


def test_touch_uses_the_clients_timeout_and_the_maximum() -> None:
    for timeout_ms, expected_ms in ((1_000, 1_000), (99_999, 99_999), (100_001, 100_000)):
        peer = Peer("subscribed", in_flight=0, msg_timeout_max_ns=100_000 * MS)
        peer.window.restore(2, 0, 0)
        peer.window.redeliver(peer.consumer, frame(2), NOW_NS)
        peer.scanner.msg_timeout_ns = timeout_ms * MS
        assert peer.send(b"TOUCH " + id_of(2) + b"\n") == []
        assert peer.window.next_deadline_ns == NOW_NS + expected_ms * MS


@pytest.mark.parametrize(
    ("line", "count"),
    [
        (b"RDY", 1),
        (b"RDY ", 0),
        (b"RDY 0", 0),
        (b"RDY 2500", 2500),
        (b"RDY 7 8", 7),
        (b"RDY 0000000000000000000000000007", 7),
    ],
)
def test_rdy_sets_the_ready_count(line: bytes, count: int) -> None:
    """Row 41: a missing count is 1, an empty one 0."""
    peer = Peer("subscribed")
    peer.consumer.ready_count = 99
    assert peer.send(line + b"\n") == [] and peer.consumer.ready_count == count
    assert peer.scanner.answered


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"2501", "RDY count 2501 out of range 0-2500"),  # [31]
        (b"9223372036854775808", "RDY count -9223372036854775808 out of range 0-2500"),
        (b"18446744073709551615", "RDY count -1 out of range 0-2500"),
        (b"18446744073709551616", "RDY count 18446744073709551616 out of range 0-2500"),
        (b"18446744073709551617", "RDY count 18446744073709551617 out of range 0-2500"),
        (b"9" * 30 + b"x", f"RDY could not parse count {'9' * 30}x"),
        (b"-1", "RDY could not parse count -1"),
        (b"x", "RDY could not parse count x"),
    ],
)
def test_a_bad_ready_count_is_fatal_and_changes_nothing(text: bytes, expected: str) -> None:
    """nsqd keeps the count in a signed number, so it shows large ones as negative.

    Beyond 64 bits nsqd takes 2^64 + 1 as 1; here it is out of range.
    """
    peer = Peer("subscribed")
    assert peer.send(b"RDY " + text + b"\n") == [f"E_INVALID {expected}"]
    assert peer.consumer.ready_count == 0


@pytest.mark.parametrize("line", [b"RDY 5", b"RDY -1", b"RDY 9999999", b"RDY", b"RDY x y"])
def test_rdy_is_ignored_unread_while_closing(line: bytes) -> None:
    """Row 39."""
    peer = Peer("closing")
    assert peer.send(line + b"\nNOP\n") == []
    assert peer.open and peer.consumer.ready_count == 0
