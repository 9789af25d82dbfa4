"""nsqd.dat and node.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CorruptError, StorageError
from penstock.storage.channel_reader import ChannelReader
from penstock.storage.files import Files
from penstock.storage.metadata import (
    ChannelEntry,
    Metadata,
    TopicEntry,
    decode_metadata,
    encode_metadata,
    load_metadata,
    write_metadata,
)
from penstock.storage.node import load_node

EXAMPLE = (
    b'{"topics":[{"name":"orders","paused":false,"channels":[{"name":"billing","paused":false}]},'
    b'{"name":"t","paused":false,"channels":null}],"version":"1.3.0"}'
)
TOPICS = [TopicEntry("orders", False, [ChannelEntry("billing")]), TopicEntry("t")]


def test_the_file_is_nsqds_byte_for_byte() -> None:
    assert encode_metadata(TOPICS, "1.3.0") == EXAMPLE
    assert encode_metadata([], "1.3.0") == b'{"topics":null,"version":"1.3.0"}'


def test_what_was_written_is_read() -> None:
    assert decode_metadata(EXAMPLE) == Metadata(TOPICS, "1.3.0")
    paused = [TopicEntry("a", True, [ChannelEntry("b", True), ChannelEntry("c")])]
    assert decode_metadata(encode_metadata(paused, "x")).topics == paused
    assert decode_metadata(b'{"topics":null,"version":"1"}') == Metadata([], "1")
    assert decode_metadata(b'{"topics":[{"name":"a","later":1}]}').topics == [TopicEntry("a")]


def test_a_reader_is_read_and_one_that_was_changed_is_none() -> None:
    reader = ChannelReader("1f" * 16, "pipeline ü, pid 7", 1_700_000_000_000)
    topics = [TopicEntry("a", False, [ChannelEntry("q", pulled=True, reader=reader)])]
    data = encode_metadata(topics, "1.3.0")
    assert decode_metadata(data).topics == topics
    start = data.index(b'"reader":')
    for at in range(start, len(data) - len(b'}]}],"version":"1.3.0"}')):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            try:
                (channel,) = decode_metadata(bytes(changed)).topics[0].channels
            except CorruptError:
                continue  # not JSON any more
            assert channel.reader in (None, reader), changed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"topics":7}',
        b'{"topics":[7]}',
        b'{"topics":[{}]}',
        b'{"topics":[{"name":7}]}',
        b'{"topics":[{"name":"a","channels":[{}]}]}',
        b'{"topics":[{"name":"a","paused":"yes"}]}',
        b'{"version":1}',
    ],
)
def test_anything_else_is_an_error_that_names_the_file(data: bytes) -> None:
    with pytest.raises(CorruptError, match=r"failed to parse metadata in /d/nsqd\.dat"):
        decode_metadata(data, "/d/nsqd.dat")


def test_the_file_is_private_and_a_missing_one_is_a_fresh_start(tmp_path: Path) -> None:
    path = f"{tmp_path}/nsqd.dat"
    assert load_metadata(Files(), path) == Metadata()
    write_metadata(Files(), path, TOPICS, "1.3.0")
    assert load_metadata(Files(), path).topics == TOPICS
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["nsqd.dat"]


def test_a_node_is_made_once(tmp_path: Path) -> None:
    path = f"{tmp_path}/penstock/node.json"
    node = load_node(Files(), path)
    node.raise_floor(Files(), 500)
    node.raise_floor(Files(), 400)
    assert load_node(Files(), path) == node
    assert node.index_floor == 500


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"format":1,"uuid":"x","index_floor":1}',
        b'{"format":1,"uuid":"7c9e6679-7425-40de-944b-e07fc1f90ae7","index_floor":-1}',
    ],
)
def test_a_node_that_cannot_be_read_is_an_error(tmp_path: Path, data: bytes) -> None:
    # Not replaced by a new one: Spark would take the same messages for another node's.
    (tmp_path / "node.json").write_bytes(data)
    with pytest.raises(CorruptError, match=r"node\.json"):
        load_node(Files(), f"{tmp_path}/node.json")


def test_a_node_of_a_later_version_is_refused(tmp_path: Path) -> None:
    text = '{"format":2,"uuid":"7c9e6679-7425-40de-944b-e07fc1f90ae7","index_floor":1}'
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(StorageError, match="later version"):
        load_node(Files(), f"{tmp_path}/node.json")
