"""drain.json: two copies, of which one is enough."""

from __future__ import annotations

import dataclasses
import json

import pytest

from penstock.errors import CorruptError, StorageError
from penstock.storage.drain import (
    DrainRecord,
    HandoverIntent,
    decode_drain,
    encode_drain,
    load_drain,
    write_drain,
)
from tests.crash.lossy import LOSE, Crashed, LossyFiles

PATH, COPY = "/data/penstock/drain.json", "/data/penstock.drain.json"
TO = "http://10.0.0.2:4151"
INTENT = HandoverIntent(
    TO, "7c9e6679-7425-40de-944b-e07fc1f90ae7", "drain/q", 3, "0" * 32, 5, ((77, ((0, 3), (7, 2))),)
)
RECORD = DrainRecord(9, True, "1a" * 8, 1_800_000_000_000, TO, 4, 30, INTENT)


def files_with(record: DrainRecord | None) -> LossyFiles:
    files = LossyFiles()
    files.make_folder("/data/penstock")
    for folder in ("", "/data", "/data/penstock"):
        files.sync_folder(folder)
    if record is not None:
        write_drain(files, PATH, COPY, encode_drain(record))
    return files


def test_a_record_is_read_as_it_was_written() -> None:
    for record in (RECORD, DrainRecord(), dataclasses.replace(RECORD, intent=None)):
        assert decode_drain(encode_drain(record), PATH) == record
        loaded = load_drain(files_with(record), PATH, COPY)
        assert (loaded.record, loaded.problems, loaded.stale) == (record, [], False)


def test_without_files_there_is_no_drain() -> None:
    loaded = load_drain(files_with(None), PATH, COPY)
    assert (loaded.record, loaded.problems, loaded.stale) == (DrainRecord(), [], False)


def test_a_flipped_bit_is_never_taken_for_a_record() -> None:
    data = encode_drain(RECORD)
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        try:
            read = decode_drain(bytes(changed), PATH)
        except (CorruptError, StorageError):
            continue
        assert read == RECORD, "a bit that means nothing, as the case of an escape"


@pytest.mark.parametrize("name", [PATH, COPY])
@pytest.mark.parametrize("cut", range(0, 300, 7))
def test_one_copy_is_enough_and_the_damage_is_told(name: str, cut: int) -> None:
    files = files_with(RECORD)
    files.truncate(name, cut)
    loaded = load_drain(files, PATH, COPY)
    assert loaded.record == RECORD and loaded.stale
    assert f"kept as {name.rpartition('/')[2]}.bad" in loaded.problems[0]
    assert files.exists(f"{name}.bad")


def test_a_missing_copy_is_told_while_there_is_a_drain() -> None:
    for name in (PATH, COPY):
        files = files_with(RECORD)
        files.unlink(name)
        loaded = load_drain(files, PATH, COPY)
        assert loaded.record == RECORD and loaded.problems == [f"{name} is missing; rewritten"]
    files = files_with(DrainRecord(4))
    files.unlink(PATH)
    assert load_drain(files, PATH, COPY).problems == []


def test_both_damaged_is_told() -> None:
    files = files_with(RECORD)
    for name in (PATH, COPY):
        files.truncate(name, 20)
    loaded = load_drain(files, PATH, COPY)
    assert loaded.record == DrainRecord()
    assert "may be delivered by both nodes" in loaded.problems[-1]


def test_a_later_format_is_refused() -> None:
    files = files_with(RECORD)
    later = json.dumps(json.loads(encode_drain(RECORD)) | {"format": 2}).encode()
    files.write_new(COPY, later)
    with pytest.raises(StorageError, match="written by a later version"):
        load_drain(files, PATH, COPY)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "no id"},
        {"intent": {}},
        {"intent": []},
        {"number": "x"},
        {"batch": None},
    ],
)
def test_what_is_no_record_is_damage(change: dict[str, object]) -> None:
    from penstock.storage import drain

    entry = drain._entry(RECORD) | change
    whole = {"format": 1, "drain": entry, "checksum": drain._checksum(entry)}
    with pytest.raises(CorruptError):
        decode_drain(json.dumps(whole).encode(), PATH)


def test_a_crash_at_any_step_of_a_write_leaves_the_old_or_the_new() -> None:
    for old in (None, DrainRecord(3, True, "1" * 16)):
        begun = files_with(old).step_count
        for crash_at in range(begun, begun + 40):
            files = files_with(old)
            files.crash_at = crash_at
            try:
                write_drain(files, PATH, COPY, encode_drain(RECORD))
            except Crashed:
                ended = False
            else:
                ended = True
            files.crash(LOSE)
            loaded = load_drain(files, PATH, COPY)
            assert loaded.record in ((RECORD,) if ended else (RECORD, old, DrainRecord()))
            assert loaded.problems == []
