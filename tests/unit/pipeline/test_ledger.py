"""The ledger of a sink: steps, crashes between them, rolls, damage (R43)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.errors import PipelineError
from penstock.pipeline import ledger as ledgers
from penstock.pipeline.coverage import Log, Span
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger, of_sum, summed
from penstock.pipeline.ledger_records import (
    CARRIED,
    LOSS,
    MERGE,
    Accepted,
    Batch,
    DataFile,
    packed,
    unpacked,
)
from penstock.pipeline.targets import losses_in

LOG = Log("c", "n", "t", "0" * 16)
PATH = "_penstock/ledger/orders"


def opened(folder: Path) -> Ledger:
    return Ledger(LocalFolder(str(folder)), PATH, "orders", "parquet t").load()


def new(folder: Path) -> Ledger:
    ledger = opened(folder)
    ledger.create("ab" * 16, ["parquet t"])
    return ledger


def batch(number: int, start: int, end: int, query: str = "q") -> Batch:
    return Batch(query, number, (Span(LOG, start, end, end - start),))


def write(ledger: Ledger, each: Batch, *files: DataFile) -> None:
    spans = ledger.to_write(each)
    assert spans is not None
    ledger.commit(ledger.batch_record(each, spans, files))


def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    assert not opened(tmp_path).exists
    ledger = new(tmp_path)
    write(ledger, batch(0, 0, 10), DataFile("a", 5, 10, 77))
    write(ledger, batch(1, 10, 15))
    found = opened(tmp_path)
    assert found.exists and found.identity == "ab" * 16 and found.seq == 2
    assert list(found.coverage) == [Span(LOG, 0, 15, 15)]
    assert found.live_files() == {"a": DataFile("a", 5, 10, 77)}
    assert found.head.last == batch(1, 10, 15)


def test_a_batch_is_its_ranges(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    write(ledger, batch(0, 0, 10))
    write(ledger, batch(1, 10, 20))
    assert ledger.to_write(batch(1, 10, 20)) is None
    # Of another query the number says nothing.
    assert ledger.to_write(batch(1, 5, 20, "other")) is None
    assert ledger.to_write(batch(0, 15, 25, "other")) == (Span(LOG, 20, 25),)
    assert ledger.to_write(batch(2, 20, 22)) == (Span(LOG, 20, 22, 2),)
    with pytest.raises(PipelineError, match="is repeated with different messages"):
        ledger.to_write(batch(1, 10, 25))
    with pytest.raises(PipelineError, match="is repeated with different messages"):
        ledger.to_write(batch(0, 20, 25))
    assert ledger.to_write(batch(0, 0, 10)) is None


def test_a_batch_of_which_a_sink_had_a_part_may_come_again(tmp_path: Path) -> None:
    """A kill after it was written, of the first batch of a query that goes on from the tables."""
    ledger = new(tmp_path)
    write(ledger, batch(0, 0, 10))
    again = batch(0, 5, 15, "other")
    write(ledger, again)
    assert ledger.head.last == Batch("other", 0, (Span(LOG, 10, 15),))
    assert ledger.to_write(again) is None
    for start, end in ((5, 16), (5, 14), (11, 15)):
        with pytest.raises(PipelineError, match="is repeated with different messages"):
            ledger.to_write(batch(0, start, end, "other"))


def test_a_batch_behind_state_is_known_by_its_number_too(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    empty = Batch("q", 0, (), numbered=True)
    assert ledger.to_write(empty) == ()
    ledger.commit(ledger.batch_record(empty, ()))
    assert ledger.to_write(empty) is None
    assert ledger.to_write(Batch("q", 1, (), numbered=True)) == ()
    # Of messages alone there is nothing to write.
    assert ledger.to_write(Batch("q", 1, ())) is None


def test_below_what_is_from_before_the_ledger_nothing_is_lacking(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    ledger.commit(ledger.record(CARRIED, spans=(Span(LOG, 50, 60),), claimed="old"))
    assert ledger.to_write(batch(7, 40, 60)) is None
    assert ledger.to_write(batch(7, 40, 65)) == (Span(LOG, 60, 65),)
    found = opened(tmp_path)
    assert list(found.head.before) == [Span(LOG, 50, 60)] and found.head.claimed == ["old"]


def test_records_are_rolled_up_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "ROLL_COUNT", 4)
    ledger, naive = new(tmp_path), {}
    chance = random.Random(5)
    for number in range(150):
        removed = tuple(chance.sample(sorted(naive), min(len(naive), 3)))
        if number % 5 == 4:
            file = DataFile(f"m{number}", number, number, number)
            ledger.commit(
                ledger.record(MERGE, added=(file,), removed=removed, merge=f"merge-{number}")
            )
            for path in removed:
                del naive[path]
        else:
            file = DataFile(f"f{number}", number, number, number)
            write(ledger, batch(number, number, number + 1), file)
        naive[file.path] = file
        if number % 7 == 0:
            ledger = opened(tmp_path)
        assert ledger.live_files() == naive
    loss = Accepted("abc", 1, Span(LOG, 3, 9), "gone")
    ledger.commit(ledger.record(LOSS, losses=(loss,)))
    found = opened(tmp_path)
    assert found.head.losses == [loss] and found.head.merge == "merge-149"
    assert found.seq == 151 and found.live_files() == naive
    # However many records there were.
    assert len(list((tmp_path / PATH).iterdir())) < 30


class Killed(Exception):
    pass


class KilledFolder(LocalFolder):
    """Every change may be the last: ``left`` changes are made, then none."""

    def __init__(self, path: str, left: int) -> None:
        super().__init__(path)
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def write(self, path: str, data: bytes) -> None:
        self._count()
        super().write(path, data)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


@pytest.mark.parametrize("left", range(40))
def test_a_kill_at_any_change_leaves_a_ledger_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    monkeypatch.setattr(ledgers, "ROLL_COUNT", 3)
    new(tmp_path)
    ledger = Ledger(KilledFolder(str(tmp_path), left), PATH, "orders", "parquet t").load()
    done = 0
    try:
        for number in range(12):
            file = DataFile(f"f{number}", 1, 1, 1)
            write(ledger, batch(number, number, number + 1), file)
            done = number + 1
    except Killed:
        pass
    found = opened(tmp_path)
    assert found.seq in (done, done + 1)
    assert list(found.coverage) == ([Span(LOG, 0, found.seq, found.seq)] if found.seq else [])
    assert len(found.live_files()) == found.seq
    write(found, batch(found.seq, found.seq, found.seq + 1), DataFile("next", 1, 1, 1))
    assert len(opened(tmp_path).live_files()) == found.seq


def test_damage_is_an_error_and_never_an_empty_ledger(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    for number in range(3):
        write(ledger, batch(number, number, number + 1))
    folder = tmp_path / PATH
    for path in sorted(folder.glob("*.json")):
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(PipelineError, match=r"is damaged|has version"):
                opened(tmp_path)
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(PipelineError, match="is damaged"):
            opened(tmp_path)
        if path.name != f"{3:012d}.json":  # the last one is missed when it is compared (R44)
            path.unlink()
            with pytest.raises(PipelineError, match="is missing"):
                opened(tmp_path)
        path.write_bytes(whole)
    assert opened(tmp_path).seq == 3


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    new(tmp_path)
    head = tmp_path / PATH / "head.json"
    head.write_bytes(packed({**unpacked(head.read_bytes()), "version": 2}))
    with pytest.raises(PipelineError, match="written by a later Penstock"):
        opened(tmp_path)


def test_a_sealed_step_is_found_until_its_record_is_there(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    assert ledger.sealed() is None
    ledger.seal({"what": 1})
    assert opened(tmp_path).sealed() == {"seq": 1, "what": 1}
    write(ledger, batch(0, 0, 1))
    assert opened(tmp_path).sealed() is None
    ledger.seal({"what": 2})
    (tmp_path / PATH / f"{1:012d}.json").unlink()
    with pytest.raises(PipelineError, match="records are missing"):
        opened(tmp_path).sealed()


def test_the_sum_says_all_that_a_lost_ledger_had(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    write(ledger, batch(0, 0, 10))
    loss = Accepted("x", 5, Span(LOG, 3, 4), "was deleted")
    ledger.commit(ledger.record(LOSS, losses=(loss,)))
    record = ledger.batch_record(batch(1, 10, 12), (Span(LOG, 10, 12, 2),))
    told = of_sum(summed(ledger, record))
    assert told["identity"] == "ab" * 16 and told["ranges"] == [Span(LOG, 0, 12, 12).row()]
    assert told["record"]["seq"] == 3
    assert losses_in(told) == [loss]
    assert losses_in({}) == [], "of an earlier version"
    with pytest.raises(ValueError, match=r"\w"):
        of_sum("AAAA" + summed(ledger, record)[4:])
