"""The command scanner as a reader of a stream: splits, long lines, ends in the middle, bounds."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from tests.support.bodies import sized
from tests.support.scanners import NOW_NS, WALL_NS, Peer, id_of, multi

# One of everything, as one client might send it.
CONVERSATION = b"".join(
    [
        b"IDENTIFY\n" + sized(b'{"client_id":"c"}'),
        b"AUTH\r\n" + sized(b"secret"),
        b"NOP\n",
        b"PUB t1\n" + sized(b"a\nb"),
        b"PUB new\r\n" + sized(b"\x00" * 30),
        b"MPUB t1 surplus\n" + multi(b"x", b"FIN \n", b"yy"),
        b"DPUB t1 250\n" + sized(b"later"),
        b"DPUB t1 \n" + sized(b"now"),
        b"SUB t1 c\n",
        b"RDY 5\n",
        b"FIN " + id_of(0) + b"\n",
        b"FIN " + id_of(0) + b"\n",
        b"FIN " + id_of(1) + b"\r\n",
        b"TOUCH " + id_of(7) + b"\n",
        b"REQ " + id_of(2) + b" 100\n",
        b"CLS\n",
        b"RDY junk\n",
        b"REQ " + id_of(3) + b" 0\n",
        b"SUB t1 c\n",
    ]
)
ENDS = "E_INVALID cannot SUB in current state"


def outcome(*pieces: bytes) -> tuple[Any, ...]:
    peer = Peer()
    results = peer.send(*pieces)
    return results, peer.owed(), peer.published(), peer.window_state(), peer.scanner.pub_counts


def test_everything_in_one_packet_and_one_byte_a_packet_are_the_same() -> None:
    whole = outcome(CONVERSATION)
    assert whole[0][-1] == ENDS and len(whole[0]) == 9
    assert outcome(*(CONVERSATION[i : i + 1] for i in range(len(CONVERSATION)))) == whole


def test_every_cut_gives_the_same() -> None:
    """Scanner rule 2."""
    whole = outcome(CONVERSATION)
    for cut in range(len(CONVERSATION) + 1):
        assert outcome(CONVERSATION[:cut], CONVERSATION[cut:]) == whole


@pytest.mark.parametrize("size", [2, 3, 5, 7, 13, 21, 64])
def test_packets_of_every_size_give_the_same(size: int) -> None:
    pieces = [CONVERSATION[i : i + size] for i in range(0, len(CONVERSATION), size)]
    assert outcome(*pieces) == outcome(CONVERSATION)


def test_bytes_that_come_while_a_command_waits_are_kept() -> None:
    """Fed before the commands already there were asked for."""
    peer = Peer()
    for i in range(0, len(CONVERSATION), 10):
        peer.scanner.feed(CONVERSATION[i : i + 10])
    assert peer.scanner.buffered_size == len(CONVERSATION)
    assert peer.send(b"") == outcome(CONVERSATION)[0]


def test_empty_packets_change_nothing() -> None:
    pieces: list[bytes] = [b""]
    for i in range(0, len(CONVERSATION), 9):
        pieces += [CONVERSATION[i : i + 9], b"", b""]
    assert outcome(*pieces) == outcome(CONVERSATION)


# ---- lines


@pytest.mark.parametrize("state", ["init", "subscribed", "closing"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_of_16384_bytes_is_read_and_one_more_is_not(state: str, end: bytes) -> None:
    """The limit includes the line feed; beyond it the connection closes without an error."""
    longest = b"NOP " + b"x" * (16_384 - 4 - len(end)) + end
    assert len(longest) == 16_384
    assert Peer(state).send(longest + b"NOP\n") == []
    assert Peer(state).send(b"x" + longest) == [("LINE_TOO_LONG",)]
    assert Peer(state).send(longest[:-1], b"\n") == []
    assert Peer(state).send(longest[:-1] + b"x") == [("LINE_TOO_LONG",)]
    assert Peer(state).send(longest[:-1] + b"x", b"\n") == [("LINE_TOO_LONG",)]


def test_a_line_that_never_ends_is_noticed_whatever_its_packets() -> None:
    for size in (1, 100, 16_383, 16_384, 20_000):
        peer = Peer()
        results: list[Any] = []
        for _ in range(0, 20_000, size):
            results += peer.send(b"x" * size)
        assert results == [("LINE_TOO_LONG",)]


def test_a_line_of_nothing_but_spaces_is_an_empty_command() -> None:
    assert Peer().send(b" " * 16_383 + b"\n") == ["E_INVALID invalid command "]


def test_an_over_long_command_name_is_told_whole() -> None:
    name = b"x" * 16_383
    assert Peer().send(name + b"\n") == ["E_INVALID invalid command " + name.decode()]


# ---- the end of the stream


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"IDENTIFY", "E_BAD_BODY IDENTIFY failed to read body"),
        (b"AUTH", "E_BAD_BODY AUTH failed to read body"),
        (b"PUB t1", "E_BAD_MESSAGE PUB failed to read message body"),
        (b"DPUB t1 5", "E_BAD_MESSAGE DPUB failed to read message body"),
    ],
)
def test_a_body_that_is_cut_off_has_its_error(line: bytes, text: str) -> None:
    stream = line + b"\n" + sized(b"abc")
    for cut in range(len(stream) + 1):
        peer = Peer()
        peer.send(stream[:cut])
        if cut <= len(line) or cut == len(stream):
            assert peer.eof() is None, "between commands, or in a line, nothing is said"
        else:
            assert peer.eof() == (f"{text} size" if cut < len(line) + 5 else text)


def test_a_multi_body_that_is_cut_off_says_where() -> None:
    stream = b"MPUB t1\n" + multi(b"aa", b"bb")
    texts = ["E_BAD_BODY MPUB failed to read body size"] * 4
    texts += ["E_BAD_BODY MPUB failed to read message count"] * 4
    for number in range(2):
        texts += [f"E_BAD_MESSAGE MPUB failed to read message({number}) body size"] * 4
        texts += ["E_BAD_MESSAGE MPUB failed to read message body"] * 2
    for cut, text in enumerate(texts, len(b"MPUB t1\n")):
        for pieces in ([stream[:cut]], [stream[i : i + 1] for i in range(cut)]):
            peer = Peer()
            assert peer.send(*pieces) == []
            assert peer.eof() == text
    peer = Peer()
    peer.send(stream)
    assert peer.eof() is None


# ---- bounds


def test_a_size_too_big_is_refused_before_its_body_is_buffered() -> None:
    """Scanner rule 4."""
    for line in (b"PUB t1\n", b"MPUB t1\n", b"DPUB t1 5\n", b"IDENTIFY\n", b"AUTH\n"):
        stream = line + b"\x7f\xff\xff\xff"
        peer = Peer()
        assert len(peer.send(*(stream[i : i + 1] for i in range(len(stream))))) == 1
        assert peer.scanner.buffered_size == len(stream)


def test_one_byte_a_packet_costs_time_by_the_byte() -> None:
    """Scanner rule 3: looking at everything again with each byte would take 20 s here."""
    size = 600_000
    bodies = [b"m"] * (size // 10)
    for stream in (b"PUB t1\n" + sized(b"m" * size), b"MPUB t1\n" + multi(*bodies)):
        peer = Peer()
        started = time.process_time()
        for i in range(len(stream)):
            peer.scanner.feed(stream[i : i + 1])
            assert peer.scanner.next(NOW_NS, WALL_NS) is None
        assert time.process_time() - started < 5
        assert peer.scanner.buffered_size == 0
        assert sum(map(len, peer.published()["t1"])) in (size, len(bodies))


def test_the_memory_of_a_large_body_is_given_back() -> None:
    peer = Peer()
    stream = b"DPUB t1 5\n" + sized(b"m" * 1_000_000)
    tracemalloc.start()
    try:
        for _ in range(3):
            for i in range(0, len(stream), 10_000):
                peer.send(stream[i : i + 10_000])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000
