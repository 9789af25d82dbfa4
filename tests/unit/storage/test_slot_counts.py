"""deferred.counts: entries, the last of which counts, and what is left of a damaged file."""

from __future__ import annotations

import google_crc32c
import pytest

from penstock.errors import CorruptError, StorageError
from penstock.storage.slot_counts import (
    ENTRY_SIZE,
    KIND_GONE,
    CountsFile,
    SlotCount,
    pack_counts_header,
    pack_entry,
    unpack_counts,
)
from penstock.storage.slots import SlotName
from tests.crash.lossy import LOSE, LossyFiles

PATH = "/data/deferred.counts"
FIRST = SlotCount(SlotName(1_800_000_000_000, 60_000, 7), 900, 900, 12, 13, 0, 48, 3)
SECOND = SlotCount(SlotName(1_800_003_600_000, 3_600_000, 8), 1 << 40, 5, 1 << 31, 1, 2, 3, 4)


@pytest.fixture
def file() -> CountsFile:
    files = LossyFiles()
    files.make_folder("/data")
    files.sync_folder("")
    return CountsFile(files, PATH)


def test_what_is_written_is_read() -> None:
    data = pack_counts_header(2) + pack_entry(FIRST, 2) + pack_entry(SECOND, 2)
    loaded = unpack_counts(data, PATH)
    assert loaded.counts == {FIRST.name.number: FIRST, SECOND.name.number: SECOND}
    assert loaded.neat and loaded.entry_count == 2 and loaded.damage == ""


def test_the_last_entry_of_a_slot_counts_and_a_gone_slot_is_forgotten() -> None:
    later = FIRST._replace(size=1000, record_count=13)
    data = pack_counts_header(0) + b"".join(
        (pack_entry(FIRST, 0), pack_entry(SECOND, 0), pack_entry(later, 0))
    )
    assert unpack_counts(data, PATH).counts[FIRST.name.number] == later
    loaded = unpack_counts(data + pack_entry(SlotCount(FIRST.name), 0, KIND_GONE), PATH)
    assert list(loaded.counts) == [SECOND.name.number]
    assert not loaded.neat and loaded.damage == ""


def test_what_is_missing_of_the_entries_it_was_made_with_is_damage() -> None:
    data = pack_counts_header(2) + pack_entry(FIRST, 2) + pack_entry(SECOND, 2)
    for cut in range(len(data)):
        assert unpack_counts(data[:cut], PATH).damage, cut
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        assert unpack_counts(bytes(broken), PATH).damage, at


def test_entries_that_were_added_may_be_torn_at_the_end_and_nowhere_else() -> None:
    """A power cut takes what was not synced; a later entry says what was."""
    whole = pack_counts_header(0) + pack_entry(FIRST, 0) + pack_entry(SECOND, 1)
    for cut in range(ENTRY_SIZE, len(whole)):
        loaded = unpack_counts(whole[:cut], PATH)
        assert loaded.damage == "" and loaded.neat == (cut % ENTRY_SIZE == 0)
    for at in range(ENTRY_SIZE, 2 * ENTRY_SIZE):
        broken = bytearray(whole)
        broken[at] ^= 1
        assert unpack_counts(bytes(broken), PATH).damage == (
            "1 of 1 entries are damaged or missing"
        )


def test_a_later_version_is_refused() -> None:
    data = bytearray(pack_counts_header(0))
    data[13] = 2
    assert "header" in unpack_counts(bytes(data), PATH).damage
    data[8:12] = google_crc32c.value(bytes(data[12:])).to_bytes(4, "big")
    with pytest.raises(StorageError, match=r"later version \(format 2\)"):
        unpack_counts(bytes(data), PATH)


def test_the_file_is_durable_when_a_call_returns(file: CountsFile) -> None:
    assert file.load() is None
    file.write_whole([FIRST])
    file.append([pack_entry(SECOND, 1)], 2)
    file.files.crash(LOSE)  # type: ignore[attr-defined]
    loaded = file.load()
    assert loaded is not None and set(loaded.counts) == {FIRST.name.number, SECOND.name.number}


def test_an_append_to_a_file_that_was_cut_or_removed_is_noticed(file: CountsFile) -> None:
    file.write_whole([FIRST])
    file.files.unlink(PATH)
    with pytest.raises(CorruptError):
        file.append([pack_entry(SECOND, 1)], 2)


def test_a_damaged_file_is_copied_before_it_is_replaced(file: CountsFile) -> None:
    file.write_whole([FIRST])
    file.files.truncate(PATH, 100)
    loaded = file.load()
    assert loaded is not None and loaded.damage.endswith(f"copied to {PATH}.0.corrupt")
    assert file.files.size(f"{PATH}.0.corrupt") == 100
