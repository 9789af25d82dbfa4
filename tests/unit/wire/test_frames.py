from __future__ import annotations

from penstock.errors import ProtocolError
from penstock.wire import frames


def test_a_response_is_size_type_and_data() -> None:
    assert frames.response(b"OK") == b"\0\0\0\x06\0\0\0\0OK"
    assert frames.response(b"OK") == frames.OK
    assert bytes.fromhex("0000000f 00000000") + b"_heartbeat_" == frames.HEARTBEAT
    assert bytes.fromhex("0000000e 00000000") + b"CLOSE_WAIT" == frames.CLOSE_WAIT


def test_an_error_is_code_space_text() -> None:
    failure = ProtocolError("E_INVALID", "cannot RDY in current state")
    assert frames.error(failure) == (
        bytes.fromhex("00000029 00000001") + b"E_INVALID cannot RDY in current state"
    )


def test_an_error_without_text_is_the_code_alone() -> None:
    assert frames.error(ProtocolError("E_BAD_PROTOCOL")) == (
        bytes.fromhex("00000012 00000001") + b"E_BAD_PROTOCOL"
    )


def test_bytes_that_are_not_utf8_come_back_as_they_were() -> None:
    command = b"FO\xff\xc3O"
    text = f"invalid command {command.decode('utf-8', 'surrogateescape')}"
    assert frames.error(ProtocolError("E_INVALID", text)).endswith(b" invalid command " + command)
