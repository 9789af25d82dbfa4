from __future__ import annotations

import pytest

from penstock.wire import commands

ID = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            commands.identify({"client_id": "c", "hostname": "h"}),
            b'IDENTIFY\n\0\0\0 {"client_id":"c","hostname":"h"}',
        ),
        (commands.auth(b"secret"), b"AUTH\n\0\0\0\x06secret"),
        (commands.sub("t", "c#ephemeral"), b"SUB t c#ephemeral\n"),
        (commands.pub("t1", b"hello"), b"PUB t1\n\0\0\0\x05hello"),
        (
            commands.mpub("t1", [b"a", b"bb"]),
            b"MPUB t1\n\0\0\0\x0f\0\0\0\x02\0\0\0\x01a\0\0\0\x02bb",
        ),
        (commands.dpub("t1", 250, b"d"), b"DPUB t1 250\n\0\0\0\x01d"),
        (commands.rdy(5), b"RDY 5\n"),
        (commands.fin(ID), b"FIN 0123456789abcdef\n"),
        (commands.req(ID, 100), b"REQ 0123456789abcdef 100\n"),
        (commands.touch(ID), b"TOUCH 0123456789abcdef\n"),
        (commands.cls(), b"CLS\n"),
        (commands.nop(), b"NOP\n"),
    ],
)
def test_commands_are_the_protocols_bytes(made: bytes, expected: bytes) -> None:
    assert made == expected
