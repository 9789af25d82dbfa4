from __future__ import annotations

import hashlib
import zlib

import pytest

from penstock.wire.ids import INDEX_MAX, default_node_id, message_id, split_id


@pytest.mark.parametrize(
    ("node_id", "index", "text"),
    [
        (0, 0, b"0000000000000000"),
        (0, INDEX_MAX, b"003fffffffffffff"),
        (1, 0, b"0040000000000000"),
        (1023, INDEX_MAX, b"ffffffffffffffff"),
        (617, 255, b"9a400000000000ff"),
    ],
)
def test_an_id_is_node_and_index_in_hex_and_back(node_id: int, index: int, text: bytes) -> None:
    assert message_id(node_id, index) == text
    assert split_id(text) == (node_id, index)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"000000000000000",
        b"00000000000000000",
        b"00000000000000AB",
        b" 00000000000000a",
        b"+00000000000000a",
        b"0x0000000000000a",
        b"0_00000000000000",
        b"000000000000000\n",
        b"00000000x0000000",
    ],
)
def test_bytes_that_are_no_id_of_ours_are_not_taken_for_one(text: bytes) -> None:
    assert split_id(text) is None


def test_the_default_node_id_is_the_crc_of_the_raw_digest() -> None:
    digest = bytes.fromhex(hashlib.md5(b"host1").hexdigest())
    assert default_node_id("host1") == zlib.crc32(digest) % 1024 == 84
    assert 0 <= default_node_id("") < 1024
    assert default_node_id("host1") != default_node_id("host2")
