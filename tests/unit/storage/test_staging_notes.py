"""Notes of what was promised of staged rows."""

from __future__ import annotations

import errno

import pytest

from penstock.storage import staging_notes
from penstock.storage.ledger import Published, encode_published
from penstock.storage.staging import Key, Seal
from penstock.storage.staging_notes import Noted, NotedJournal, StagingNotes
from tests.crash.lossy import LossyFiles

PATH = "/data/staging.notes"


def noted(number: int) -> Noted:
    return Noted(number, Key("q", number, 0, f"{number:032x}"), Seal(2, 7), 300)


@pytest.fixture
def files() -> LossyFiles:
    files = LossyFiles()
    files.make_folder("/data")
    return files


def opened(files: LossyFiles) -> StagingNotes:
    notes = StagingNotes(files, PATH)  # type: ignore[arg-type]
    notes.open()
    return notes


def test_notes_say_what_was_noted(files: LossyFiles) -> None:
    notes = opened(files)
    assert not notes.whole, "there were none"
    for number in (1, 2, 3):
        notes.seal(noted(number), 5)
    notes.forget([2, 9], 5, sync=True)
    notes.lose(3, "it is gone", 5)
    notes.ledger(100)
    notes.ledger(250)
    again = opened(files)
    assert again.whole and not again.damaged
    assert set(again.sealed) == {1, 3} and again.ledger_size == 250
    assert again.sealed[1] == noted(1) and again.sealed[3].lost == "it is gone"


def test_notes_that_have_grown_are_written_anew(
    files: LossyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_notes, "SIZE_MAX", 2000)
    notes = opened(files)
    notes.seal(noted(1), 0)
    notes.lose(1, "it is gone", 0)
    for size in range(100):
        notes.ledger(size)
        assert files.size(PATH) < 2200
    again = opened(files)
    assert again.ledger_size == 99 and again.sealed[1].lost == "it is gone"


def test_a_note_that_cannot_be_written_takes_the_others_with_it(files: LossyFiles) -> None:
    """Half of the truth would be taken for all of it."""
    notes = opened(files)
    notes.seal(noted(1), 0)
    files.fail("append", errno.ENOSPC)
    notes.forget([1], 0, sync=True)
    assert not files.exists(PATH)
    notes.seal(noted(2), 0)
    assert set(opened(files).sealed) == {2}


def test_every_flipped_byte_and_every_cut_leaves_the_rest(files: LossyFiles) -> None:
    notes = opened(files)
    for number in (1, 2):
        notes.seal(noted(number), 0)
    notes.ledger(7)
    data = files.read(PATH)
    last = data.rindex(b"PL")
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        files.put(PATH, bytes(flipped))
        found = opened(files)
        assert not found.whole and found.damaged == (at < last)
        assert len(found.sealed) + (found.ledger_size == 7) == 2
        assert opened(files).whole, "they are rewritten"
        files.put(PATH, data[:at])
        assert not opened(files).damaged, "a power cut leaves a short end"
        files.put(PATH, data[:at] + bytes(len(data) - at))
        assert not opened(files).damaged, "or zeros"


def test_what_is_synced_of_the_ledger_is_noted_and_never_more(files: LossyFiles) -> None:
    notes = opened(files)
    journal = NotedJournal(files, "/data/ledger", notes)  # type: ignore[arg-type]
    journal.sync()
    assert notes.ledger_size == 0
    record = encode_published("q", 0, Published(1, 1, "d"))
    journal.write(record)
    assert notes.ledger_size == 0
    journal.sync()
    assert notes.ledger_size == files.size("/data/ledger") > 0
    files.fail("rename", errno.EIO)
    with pytest.raises(OSError):
        journal.compact([record])
    assert opened(files).ledger_size == 0, "which of the two it is, nobody knows"
    journal.compact([record])
    assert opened(files).ledger_size == files.size("/data/ledger")
