"""What a checkpoint and known.json say was done, and what a table lacks of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.pipeline.coverage import Coverage, Log, Span
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.ledger_records import CARRIED, LOSS, Accepted
from penstock.pipeline.offset_log import OffsetLog
from penstock.pipeline.recorded_ends import Done, newest_logs
from penstock.spark.offsets import INDEX_MAX, Position, encode

OLD = Log("c", "n", "t", "00000000000000aa")
NEW = Log("c", "n", "t", "00000000000000bb")


class Checkpoint:
    """A checkpoint with batches that are done."""

    def __init__(self, path: Path) -> None:
        self.folder = LocalFolder(str(path / "checkpoint"))
        self.offsets = OffsetLog(self.folder)

    def batch(self, number: int, log: Log, index: int, begin: int | None = None) -> None:
        offset = encode("c", {"n": {"t": Position(log.instance, index)}})
        if begin is not None:
            offset["begin"] = encode("c", {"n": {"t": Position(log.instance, begin)}})["nodes"]
        self.folder.write(f"offsets/{number}", f"v1\n{{}}\n{json.dumps(offset)}".encode())
        self.folder.write(f"commits/{number}", b"v1\n{}")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(LocalFolder(str(tmp_path / "table")), "ledger", "p", "s").load()
    made.create("0" * 32, ["s"])
    return made


def lacking(
    checkpoint: Checkpoint, ledger: Ledger, *known: Span, strict: bool = True
) -> list[Span]:
    covered = Coverage(known)
    done = Done(checkpoint.offsets, [ledger.coverage, covered])
    return done.lacking(ledger, covered, strict=strict)


def lose(ledger: Ledger, *spans: Span) -> None:
    losses = tuple(Accepted("x", 0, span) for span in spans)
    ledger.commit(ledger.record(LOSS, losses=losses))


def test_a_first_batch_says_itself_where_it_begins(checkpoint: Checkpoint, ledger: Ledger) -> None:
    checkpoint.batch(0, OLD, 50, begin=10)
    assert checkpoint.offsets.begin() == {"c": {"n": {"t": Position(OLD.instance, 10)}}}
    assert lacking(checkpoint, ledger) == [Span(OLD, 10, 50)]


def test_a_checkpoint_without_a_batch_has_done_what_is_before_its_beginning(
    checkpoint: Checkpoint, ledger: Ledger
) -> None:
    """It was begun where a table ended that was deleted afterwards."""
    checkpoint.offsets.write_begin({"c": {"n": {"t": Position(OLD.instance, 50)}}})
    assert lacking(checkpoint, ledger, Span(OLD, 10, 40)) == [Span(OLD, 10, 50)]


def test_what_spark_has_forgotten_may_have_been_there_from_the_beginning(
    checkpoint: Checkpoint, ledger: Ledger
) -> None:
    checkpoint.batch(7, OLD, 50)
    checkpoint.batch(8, OLD, 60)
    assert lacking(checkpoint, ledger) == [Span(OLD, 0, 60)]


def test_a_table_lacks_also_topics_that_were_made_again(
    checkpoint: Checkpoint, ledger: Ledger
) -> None:
    checkpoint.batch(0, OLD, 50, begin=10)
    checkpoint.batch(1, NEW, 100)
    checkpoint.batch(2, NEW, 120)
    found = [Span(OLD, 10, 50), Span(NEW, 100, 120)]
    assert lacking(checkpoint, ledger, strict=False) == found
    assert lacking(checkpoint, ledger) == [*found, Span(OLD, 50, INDEX_MAX)]


def test_a_topic_that_only_known_json_names_is_lacking_if_it_was_made_again(
    checkpoint: Checkpoint, ledger: Ledger
) -> None:
    checkpoint.batch(0, NEW, 120, begin=100)
    ledger.head.coverage.add(Span(NEW, 100, 120))
    ledger.head.coverage.add(Span(OLD, 10, 30))
    known = (Span(OLD, 10, 50), Span(NEW, 100, 110))
    assert lacking(checkpoint, ledger, *known, strict=False) == [Span(OLD, 30, 50)]


def test_an_older_checkpoint_does_not_hide_what_was_read_of_a_topic_that_was_made_again(
    checkpoint: Checkpoint, ledger: Ledger
) -> None:
    """The rest was asked for after a run that had ended well."""
    checkpoint.batch(0, OLD, 50, begin=10)
    known = (Span(OLD, 10, 80), Span(NEW, 100, 130))
    found = lacking(checkpoint, ledger, *known)
    assert found == [Span(OLD, 10, 80), Span(OLD, 80, INDEX_MAX)]


def test_a_deleted_topic_ends_with_a_recorded_loss(checkpoint: Checkpoint, ledger: Ledger) -> None:
    checkpoint.batch(0, OLD, 50, begin=10)
    checkpoint.batch(1, OLD, INDEX_MAX)
    ledger.head.coverage.add(Span(OLD, 10, 50))
    assert lacking(checkpoint, ledger) == [Span(OLD, 50, INDEX_MAX)]
    lose(ledger, Span(OLD, 60, INDEX_MAX))
    assert lacking(checkpoint, ledger) == [Span(OLD, 50, 60)]
    lose(ledger, Span(OLD, 40, 60))
    assert lacking(checkpoint, ledger) == []


@pytest.mark.parametrize(("log", "index"), [(OLD, INDEX_MAX), (NEW, 100)])
def test_a_planned_batch_that_says_that_a_topic_was_deleted_is_not_judged_again(
    checkpoint: Checkpoint, ledger: Ledger, log: Log, index: int
) -> None:
    """The loss was recorded before it was planned, and the table with the record is gone."""
    checkpoint.batch(0, OLD, 50, begin=10)
    checkpoint.batch(1, log, index)
    checkpoint.folder.remove("commits/1")
    assert lacking(checkpoint, ledger) == [Span(OLD, 10, 50), Span(OLD, 50, INDEX_MAX)]


def test_before_there_was_a_ledger_no_loss_was_recorded(
    checkpoint: Checkpoint, ledger: Ledger
) -> None:
    checkpoint.batch(0, OLD, 50, begin=10)
    checkpoint.batch(1, NEW, 100)
    spans = (Span(OLD, 0, 50), Span(NEW, 100, 100))
    ledger.commit(ledger.record(CARRIED, spans=spans))
    assert lacking(checkpoint, ledger) == []


def test_the_newest_instance_is_the_one_that_none_has_another_behind() -> None:
    place = ("c", "n", "t")
    assert newest_logs({OLD: 5, NEW: 3}, {OLD: 9}) == {place: NEW}
    assert newest_logs({OLD: 9}, {OLD: 5, NEW: 3}) == {place: NEW}
    assert newest_logs({NEW: 9}, {OLD: 5}) == {place: NEW}
