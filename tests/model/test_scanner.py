"""Split-invariance of the command scanner: where the kernel cuts the stream changes nothing."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.bodies import sized
from tests.support.scanners import STATES, Peer, id_of, multi

BODIES = st.binary(min_size=1, max_size=20)
TOPICS = st.sampled_from([b"t1", b"t2", b"new", b"bad$", b"", b"x#ephemeral"])
DECIMALS = st.sampled_from([b"0", b"", b"1", b"250", b"-1", b"99999999", b"18446744073709551617"])
IDS = st.sampled_from(
    [id_of(i) for i in range(10)] + [b"f" * 16, b"short", b"x" * 16, b"0123456789abcdef"]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b" \n", b" more  of it\r\n"])


def line(*parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(st.tuples(*parts).map(b" ".join), ENDS).map(b"".join)


def word(text: bytes) -> st.SearchStrategy[bytes]:
    return st.just(text)


LYING_MULTI = st.builds(
    lambda total, count, bodies: struct.pack(">ii", total, count) + b"".join(map(sized, bodies)),
    st.integers(-1, 60),
    st.integers(-1, 4),
    st.lists(st.binary(max_size=5), max_size=4),
)
MULTIS = st.lists(BODIES, min_size=1, max_size=5).map(lambda bodies: multi(*bodies)) | LYING_MULTI
SIZED = BODIES.map(sized) | BODIES.map(sized) | st.binary(max_size=6)

COMMANDS = st.one_of(
    st.tuples(line(word(b"IDENTIFY")), SIZED).map(b"".join),
    st.tuples(line(word(b"AUTH")), SIZED).map(b"".join),
    line(word(b"SUB"), TOPICS, TOPICS),
    line(word(b"RDY"), DECIMALS),
    line(word(b"FIN"), IDS),
    line(word(b"FIN"), IDS),
    line(word(b"REQ"), IDS, DECIMALS),
    line(word(b"TOUCH"), IDS),
    line(word(b"CLS")),
    line(word(b"NOP")),
    st.tuples(line(word(b"PUB"), TOPICS), SIZED).map(b"".join),
    st.tuples(line(word(b"PUB"), word(b"t1")), BODIES.map(sized)).map(b"".join),
    st.tuples(line(word(b"MPUB"), TOPICS), MULTIS).map(b"".join),
    st.tuples(line(word(b"DPUB"), TOPICS, DECIMALS), SIZED).map(b"".join),
    st.binary(max_size=30),
    st.integers(16_370, 16_390).map(lambda size: b"NOP " + b"x" * size + b"\n"),
)
STREAMS = st.lists(COMMANDS, min_size=1, max_size=14).map(b"".join)


def outcome(state: str, pieces: list[bytes]) -> dict[str, Any]:
    """All that can be seen from outside after the pieces were fed."""
    peer = Peer(state, topics=("t1", "t2"), message_size_max=15, body_size_max=60)
    results = peer.send(*pieces)
    return {
        "results": results,
        "owed": peer.owed(),
        "tickets": len(peer.tickets),
        "counts": dict(peer.scanner.pub_counts),
        "published": peer.published(),
        "window": peer.window_state(),
        "drained": peer.window.drain(),
        "ready": (peer.consumer.ready_count, peer.consumer.in_flight_count),
        "flags": (peer.scanner.answered, peer.scanner.progressed),
        # What is left over matters only while the connection goes on.
        "rest": (peer.scanner.buffered_size, peer.eof()) if peer.open else None,
    }


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    at = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[a:b] for a, b in pairwise(at)]


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(STATES)), STREAMS, st.lists(st.integers(0, 1 << 16), max_size=12))
def test_a_stream_cut_anywhere_gives_the_same(state: str, stream: bytes, places: list[int]) -> None:
    """Scanner rules 1 and 2: results, published messages, owed replies, answers, leftovers."""
    assert outcome(state, cut(stream, places)) == outcome(state, [stream])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(STATES)), STREAMS.filter(lambda stream: len(stream) < 3000))
def test_a_stream_byte_by_byte_gives_the_same(state: str, stream: bytes) -> None:
    pieces = [stream[i : i + 1] for i in range(len(stream))]
    assert outcome(state, pieces) == outcome(state, [stream])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(STATES)), st.lists(st.binary(max_size=40), max_size=10))
def test_garbage_gives_the_same_however_it_is_cut(state: str, pieces: list[bytes]) -> None:
    assert outcome(state, pieces) == outcome(state, [b"".join(pieces)])
