"""node.json and its copy: every flipped bit, every cut, and files of other versions."""

from __future__ import annotations

import json

import pytest

from penstock.errors import CorruptError, StorageError
from penstock.storage.node import INDEX_FLOOR_MAX, Node, encode_node, load_node
from tests.crash.lossy import LossyFiles

MAIN, COPY = "/data/penstock/node.json", "/data/penstock.node.json"
FLOOR = 7_301_234_567_890


def made() -> tuple[LossyFiles, Node]:
    files = LossyFiles()
    files.make_folder("/data/penstock")
    node = load_node(files, MAIN, COPY)
    assert node.made and not node.problems
    node.raise_floor(files, FLOOR)
    return files, node


def known(node: Node) -> tuple[str, int]:
    return node.uuid, node.index_floor


def test_a_node_is_written_twice_with_a_checksum() -> None:
    files, node = made()
    assert files.read(MAIN) == files.read(COPY)
    found = load_node(files, MAIN, COPY)
    assert known(found) == known(node) and not found.problems and not found.made


@pytest.mark.parametrize("path", [MAIN, COPY])
def test_every_flipped_bit_is_found_and_the_node_stays_the_same(path: str) -> None:
    files, node = made()
    good = files.read(path)
    silent = []
    for place in range(8 * len(good)):
        changed = bytearray(good)
        changed[place // 8] ^= 1 << place % 8
        files.put(path, bytes(changed))
        found = load_node(files, MAIN, COPY)
        assert known(found) == known(node), place
        if not found.problems:
            silent.append(place // 8)
        found.raise_floor(files, 0)
        assert files.read(MAIN) == files.read(COPY) or not found.stale
        files.put(MAIN, good)
        files.put(COPY, good)
    # Upper case in the UUID says the same, and a key that is not "checksum" is as no checksum.
    harmless = {at for at in range(len(good)) if good[at : at + 1].isalpha()}
    assert set(silent) <= harmless


@pytest.mark.parametrize("path", [MAIN, COPY])
def test_every_cut_is_found_and_the_node_stays_the_same(path: str) -> None:
    files, node = made()
    good = files.read(path)
    for size in range(len(good)):
        files.put(path, good[:size])
        found = load_node(files, MAIN, COPY)
        assert known(found) == known(node) and found.problems, size
        found.raise_floor(files, 0)
        assert files.read(path) == good
    files.put(path, bytes(len(good)))
    assert known(load_node(files, MAIN, COPY)) == known(node)


@pytest.mark.parametrize("path", [MAIN, COPY])
def test_one_missing_file_is_told_and_written_anew(path: str) -> None:
    files, node = made()
    files.unlink(path)
    found = load_node(files, MAIN, COPY)
    assert known(found) == known(node) and path in found.problems[0] and "missing" in str(found)
    found.raise_floor(files, FLOOR + 1)
    again = load_node(files, MAIN, COPY)
    assert again.index_floor == FLOOR + 1 and not again.problems


def test_a_flipped_bit_is_turned_back_though_there_is_no_copy() -> None:
    files, node = made()
    good = files.read(MAIN)
    at = good.index(node.uuid[:8].encode())
    files.put(MAIN, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    files.unlink(COPY)
    found = load_node(files, MAIN, COPY)
    assert known(found) == known(node) and "corrected" in found.problems[0]


def test_files_of_the_version_before_open_and_are_written_anew() -> None:
    files = LossyFiles()
    old = {"format": 1, "uuid": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "index_floor": FLOOR}
    files.put(MAIN, json.dumps(old).encode())
    found = load_node(files, MAIN, COPY)
    assert known(found) == (old["uuid"], FLOOR) and not found.problems and not found.made
    found.raise_floor(files, 0)
    assert "checksum" in json.loads(files.read(MAIN)) and files.read(MAIN) == files.read(COPY)


def test_a_kill_between_the_two_writes_is_no_damage() -> None:
    files, node = made()
    files.put(COPY, encode_node(node.uuid, FLOOR + 5))
    found = load_node(files, MAIN, COPY)
    assert known(found) == (node.uuid, FLOOR + 5) and not found.problems
    fresh = LossyFiles()
    fresh.put(COPY, encode_node(node.uuid, 0))
    fresh.make_folder("/data/penstock")
    found = load_node(fresh, MAIN, COPY)
    assert known(found) == (node.uuid, 0) and not found.problems


@pytest.mark.parametrize("path", [MAIN, COPY])
@pytest.mark.parametrize("version", [2, 7, 10, 99])
def test_a_later_version_is_refused_untouched(path: str, version: int) -> None:
    files, _ = made()
    later = json.loads(files.read(path)) | {"format": version, "more": [1]}
    files.put(path, json.dumps(later).encode())
    before = files.read(MAIN), files.read(COPY)
    with pytest.raises(StorageError, match=f"later version .format {version}"):
        load_node(files, MAIN, COPY)
    assert (files.read(MAIN), files.read(COPY)) == before


def test_two_unreadable_files_are_named_with_what_to_do() -> None:
    files, _ = made()
    files.put(MAIN, b"{")
    files.put(COPY, b"\0" * 20)
    with pytest.raises(CorruptError, match=f"{MAIN} .*{COPY} .*remove {MAIN} and {COPY}"):
        load_node(files, MAIN, COPY)


def test_a_floor_never_leaves_the_54_bits_of_an_index() -> None:
    files, node = made()
    node.raise_floor(files, 1 << 60)
    found = load_node(files, MAIN, COPY)
    assert found.index_floor == INDEX_FLOOR_MAX and not found.problems


def test_a_floor_of_an_earlier_version_beyond_54_bits_does_not_stop_the_start() -> None:
    files = LossyFiles()
    old = {"format": 1, "uuid": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "index_floor": 1 << 55}
    files.put(MAIN, json.dumps(old).encode())
    found = load_node(files, MAIN, COPY)
    assert found.uuid == old["uuid"] and found.index_floor == 1 and "out of range" in str(found)
