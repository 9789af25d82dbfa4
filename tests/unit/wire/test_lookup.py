"""The V1 codec: what each side writes, the other reads.  Answers are in the transcripts."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc

import pytest

from penstock.errors import ProtocolError
from penstock.wire.lookup import (
    IDENTIFY_SIZE_MAX,
    LINE_SIZE_MAX,
    MAGIC,
    Command,
    CommandReader,
    Identity,
    Place,
    ReplyReader,
    decode_place,
    encode_command,
    encode_error,
    encode_identify,
    encode_identify_reply,
    encode_reply,
)

NODE = Identity("10.0.0.9", "h", 4150, 4151, "1.3.0", "zone", "region")
COMMANDS = [
    (b"PING\n", Command("PING")),
    (encode_identify(NODE), Command("IDENTIFY", (), NODE)),
    (encode_command("REGISTER", "t", "c"), Command("REGISTER", ("t", "c"))),
    (encode_command("REGISTER", "t", ""), Command("REGISTER", ("t",))),
    (encode_command("UNREGISTER", "t", "c"), Command("UNREGISTER", ("t", "c"))),
]
STREAM = MAGIC + b"".join(raw for raw, _ in COMMANDS)


def test_what_nsqd_writes_nsqlookupd_reads() -> None:
    assert CommandReader().feed(STREAM) == [command for _, command in COMMANDS]


def test_every_cut_of_a_stream_gives_the_same_commands() -> None:
    for at in range(len(STREAM) + 1):
        reader = CommandReader()
        items = [*reader.feed(STREAM[:at]), *reader.feed(STREAM[at:])]
        assert items == [command for _, command in COMMANDS], at
        assert reader.eof() is None


def test_nothing_is_read_after_an_error() -> None:
    reader = CommandReader()
    items = reader.feed(MAGIC + b"NOPE\nPING\n")
    assert [str(item) for item in items] == ["E_INVALID invalid command NOPE"]
    assert reader.feed(b"PING\n") == []
    assert reader.eof() is None


def test_a_line_may_be_as_long_as_the_limit() -> None:
    line = b"PING " + b"x" * (LINE_SIZE_MAX - 5)
    assert len(CommandReader().feed(MAGIC + line + b"\n")) == 1
    (error,) = CommandReader().feed(MAGIC + line + b"x\n")
    assert isinstance(error, ProtocolError)


def test_a_peer_that_sends_a_byte_a_packet_costs_no_more() -> None:
    reader = CommandReader()
    items = [item for byte in STREAM for item in reader.feed(bytes([byte]))]
    assert len(items) == len(COMMANDS)


def test_a_declared_size_reserves_nothing() -> None:
    tracemalloc.start()
    try:
        for size in (-1, IDENTIFY_SIZE_MAX + 1, 2**31 - 1):
            (error,) = CommandReader().feed(MAGIC + b"IDENTIFY\n" + struct.pack(">i", size))
            assert str(error) == f"E_BAD_BODY IDENTIFY invalid body size {size}"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_replies_are_read_back_at_every_cut() -> None:
    bodies = [b"OK", b"", b"E_INVALID x", b"y" * 100]
    stream = b"".join(encode_reply(body) for body in bodies)
    for at in range(len(stream) + 1):
        reader = ReplyReader(100)
        assert [*reader.feed(stream[:at]), *reader.feed(stream[at:])] == bodies


@pytest.mark.parametrize("size", [-1, 101, 2**31 - 1, -(2**31)])
def test_a_reply_beyond_its_bound_is_refused_when_declared(size: int) -> None:
    with pytest.raises(ProtocolError):
        ReplyReader(100).feed(struct.pack(">i", size))


def test_nsqlookupd_tells_its_place() -> None:
    (reply,) = ReplyReader(1000).feed(encode_identify_reply(NODE))
    assert reply == (
        b'{"broadcast_address":"10.0.0.9","hostname":"h","http_port":4151,'
        b'"tcp_port":4150,"version":"1.3.0"}'
    )
    assert decode_place(reply) == Place("10.0.0.9", 4151)
    secure = dataclasses.replace(NODE, https_port=4162)
    (reply,) = ReplyReader(1000).feed(encode_identify_reply(secure))
    assert b'"http_port":4151,"https_port":4162,"tcp_port"' in reply
    assert decode_place(reply) == Place("10.0.0.9", 4151, 4162)


@pytest.mark.parametrize(
    ("reply", "place"),
    [(b"{}", Place("", 0)), (b'{"broadcast_address":"a"}', Place("a", 0)), (b"null", Place("", 0))],
)
def test_a_place_may_be_missing(reply: bytes, place: Place) -> None:
    assert decode_place(reply) == place


@pytest.mark.parametrize("reply", [b"E_INVALID", b"E_BAD_BODY x", b"OK", b"", b"[]", b"{"])
def test_what_is_no_place_is_an_error(reply: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_place(reply)


def test_an_error_without_a_text_has_no_blank_behind_it() -> None:
    assert encode_error(ProtocolError("E_BAD_PROTOCOL")) == b"\0\0\0\x0eE_BAD_PROTOCOL"
