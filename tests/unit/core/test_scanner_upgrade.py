"""What the scanner does for TLS and AUTH: refusing, giving its stream up, asking again."""

from __future__ import annotations

import pytest

from tests.support.bodies import sized
from tests.support.scanners import NOW_NS, WALL_NS, Peer, multi


@pytest.mark.parametrize(
    "command",
    ["NOP", "PUB t1", "MPUB t1", "DPUB t1 5", "SUB t1 c", "RDY 1", "CLS", "AUTH", "FOO bar", ""],
)
def test_without_tls_only_identify_is_let_through(command: str) -> None:
    peer = Peer()
    peer.scanner.tls_required = True
    name = command.partition(" ")[0]
    sent = peer.send(command.encode() + b"\n" + sized(b"body"))
    assert sent == [f"E_INVALID cannot {name} in current state (TLS required)"]
    assert peer.published() == {}


def test_identify_is_let_through_without_tls() -> None:
    peer = Peer()
    peer.scanner.tls_required = True
    assert peer.send(b"IDENTIFY\n" + sized(b"{}")) == [("IDENTIFY", b"{}")]
    peer.scanner.tls_required = False
    assert peer.send(b"PUB t1\n" + sized(b"x")) == []


@pytest.mark.parametrize("cut", range(30))
def test_what_follows_a_command_can_be_taken_away(cut: int) -> None:
    peer = Peer()
    wire = b"IDENTIFY\n" + sized(b"{}") + b"\x16\x03\x01 not for us\n"
    found = None
    for piece in (wire[:cut], wire[cut:]):
        peer.scanner.feed(piece)
        found = found or peer.scanner.next(NOW_NS, WALL_NS)
    assert found == ("IDENTIFY", b"{}")
    assert peer.scanner.take_held() == b"\x16\x03\x01 not for us\n"
    assert peer.scanner.buffered_size == 0
    assert peer.scanner.take_held() == b""
    assert peer.send(b"PU", b"B t1\n" + sized(b"x")) == []
    assert peer.published() == {"t1": [b"x"]}


def test_a_forgotten_topic_is_looked_up_again() -> None:
    peer = Peer()
    assert peer.send(b"PUB t1\n" + sized(b"a")) == []
    appender = peer.appenders.pop(b"t1")
    assert peer.send(b"PUB t1\n" + sized(b"b")) == []
    peer.scanner.forget_topic()
    assert peer.send(b"PUB t1\n" + sized(b"c")) == [("TOPIC", "PUB", "t1")]
    assert peer.scanner.pub_counts == {"t1": 3}
    assert appender.count == 2


def test_a_closed_topic_in_the_table_is_asked_for() -> None:
    peer = Peer(topics=("t1", "t2"))
    assert peer.send(b"PUB t1\n" + sized(b"a"), b"PUB t2\n" + sized(b"a")) == []
    peer.appenders[b"t1"].closed = True
    assert peer.send(b"PUB t1\n" + sized(b"b")) == [("TOPIC", "PUB", "t1")]
    peer.appenders[b"t2"].closed = True
    assert peer.send(b"MPUB t2\n" + multi(b"b")) == [("TOPIC", "MPUB", "t2")]
