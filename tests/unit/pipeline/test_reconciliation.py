"""Tables and checkpoint compared before a query starts: days that random walks have found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock.errors import DataWouldBeLostError, PipelineError
from penstock.pipeline.coverage import Coverage, Span
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.ledger_records import LOSS, Accepted, Batch
from penstock.pipeline.losses import Answers, Questions
from penstock.pipeline.offset_log import OffsetLog
from penstock.pipeline.reconciliation import Settled, Settling, accepted_by_all
from penstock.pipeline.spec import Pipeline
from penstock.pipeline.spec_file import from_table
from penstock.pipeline.targets import targets_of
from penstock.spark.offsets import INDEX_MAX, Position
from tests.unit.pipeline.test_recorded_ends import NEW, OLD, Checkpoint

TABLES = ("one", "two")


def pipeline_of(folder: Path, count: int = 1) -> Pipeline:
    source = {"topics": ["t"], "channel": "c", "nsqd_http_addresses": "127.0.0.1:1"}
    sinks = [{"type": "parquet", "path": path} for path in TABLES[:count]]
    table = {"name": "p", "checkpoint": "checkpoint", "source": source, "sink": sinks}
    return from_table(table, (), folder)


def settle(pipeline: Pipeline, **answers: str) -> Settled:
    settling = Settling(None, pipeline, Answers(**answers), stateful=False)  # type: ignore[arg-type]
    return settling.settle()


def stopped(pipeline: Pipeline, **answers: str) -> str:
    """Why it stops, as a name to answer it by."""
    with pytest.raises(DataWouldBeLostError):
        settle(pipeline, **answers)
    beside = LocalFolder(f"{pipeline.checkpoint_path}.ledger")
    waiting = Questions(beside, Answers()).waiting
    assert waiting is not None
    return waiting.name


def write(settled: Settled, *spans: Span, tables: tuple[int, ...] = (0,)) -> None:
    for number in tables:
        ledger = settled.targets[number].ledger
        ledger.commit(ledger.batch_record(Batch("q", ledger.seq), spans))


def begins(settled: Settled) -> dict[str, Position]:
    return settled.resume.get("c", {}).get("n", {})


def test_a_table_deleted_after_its_first_run_is_read_again_from_its_beginning(
    tmp_path: Path,
) -> None:
    pipeline = pipeline_of(tmp_path)
    write(settle(pipeline), Span(OLD, 10, 50))
    Checkpoint(tmp_path).batch(0, OLD, 50, begin=10)
    shutil.rmtree(tmp_path / "one")
    settled = settle(pipeline, read_again=stopped(pipeline))
    assert begins(settled) == {"t": Position(OLD.instance, 10)}


def test_a_table_deleted_after_the_checkpoint_was_begun_anew_is_told(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    write(settle(pipeline), Span(OLD, 10, 50))
    assert begins(settle(pipeline)) == {"t": Position(OLD.instance, 50)}
    shutil.rmtree(tmp_path / "one")
    settled = settle(pipeline, read_again=stopped(pipeline))
    assert begins(settled) == {"t": Position(OLD.instance, 10)}


def test_a_table_of_before_its_first_batch_without_a_checkpoint_is_read_again(
    tmp_path: Path,
) -> None:
    """It has a ledger that covers nothing; only the last start knows what it had."""
    pipeline = pipeline_of(tmp_path)
    settled = settle(pipeline)
    shutil.copytree(tmp_path / "one", tmp_path / "backup")
    write(settled, Span(OLD, 10, 50))
    settled.note()
    shutil.rmtree(tmp_path / "one")
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "backup").rename(tmp_path / "one")
    assert begins(settle(pipeline)) == {"t": Position(OLD.instance, 10)}


def test_a_log_is_dropped_only_if_every_table_has_accepted_its_loss(tmp_path: Path) -> None:
    """A kill after one of two ledgers had recorded it: the other never did."""
    pipeline = pipeline_of(tmp_path, 2)
    settled = settle(pipeline)
    write(settled, Span(OLD, 10, 50), tables=(0, 1))
    rest = Accepted("x", 0, Span(OLD, 50, INDEX_MAX))
    for target in settled.targets:
        target.ledger.commit(target.ledger.record(LOSS, losses=(rest,)))
        resumed = begins(settle(pipeline))
        shutil.rmtree(tmp_path / "checkpoint")
        is_last = target is settled.targets[-1]
        assert resumed == ({} if is_last else {"t": Position(OLD.instance, 50)})


def test_an_accepted_loss_without_an_end_hides_no_rows_before_it(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    settled = settle(pipeline)
    write(settled, Span(OLD, 10, 50))
    Checkpoint(tmp_path).batch(0, OLD, 50, begin=10)
    shutil.rmtree(tmp_path / "one")
    name = stopped(pipeline)
    ledger = Ledger(LocalFolder(str(tmp_path / "one")), "_penstock/ledger/p", "p", "").load()
    loss = Accepted("x", 0, Span(OLD, 50, INDEX_MAX))
    ledger.commit(ledger.record(LOSS, losses=(loss,)))
    settled = settle(pipeline, read_again=name)
    assert begins(settled) == {"t": Position(OLD.instance, 10)}


def test_what_cannot_be_read_again_is_recorded_as_lost(tmp_path: Path) -> None:
    pipeline, checkpoint = pipeline_of(tmp_path), Checkpoint(tmp_path)
    write(settle(pipeline), Span(OLD, 10, 50))
    checkpoint.batch(0, OLD, 50, begin=10)
    checkpoint.batch(1, NEW, 100)
    checkpoint.batch(2, NEW, 120)
    shutil.rmtree(tmp_path / "one")
    settled = settle(pipeline, read_again=stopped(pipeline))
    assert begins(settled) == {"t": Position(NEW.instance, 100)}
    [target] = settled.targets
    lost = Coverage(loss.span for loss in target.ledger.head.losses)
    assert lost.lacking(Span(OLD, 10, INDEX_MAX)) == []
    assert lost.lacking(Span(NEW, 100, 120)) != []


@pytest.mark.parametrize("answer", ["read_again", "accept_loss"])
def test_the_newest_log_is_still_the_newest_when_an_older_one_is_recorded_as_lost(
    tmp_path: Path, answer: str
) -> None:
    """All was deleted, the topic made again and read, and the first checkpoint put back."""
    pipeline = pipeline_of(tmp_path)
    write(settle(pipeline), Span(OLD, 10, 50))
    Checkpoint(tmp_path).batch(0, OLD, 50, begin=10)
    settle(pipeline)
    for name in ("checkpoint", "checkpoint.ledger"):
        shutil.copytree(tmp_path / name, tmp_path / "backup" / name)
        shutil.rmtree(tmp_path / name)
    shutil.rmtree(tmp_path / "one")
    settled = settle(pipeline)
    identity = json.loads((tmp_path / "backup/checkpoint/identity.json").read_text())["identity"]
    assert settled.identity.text != identity
    write(settled, Span(NEW, 100, 150))
    for name in ("checkpoint", "checkpoint.ledger"):
        shutil.rmtree(tmp_path / name)
        (tmp_path / "backup" / name).rename(tmp_path / name)
    settled = settle(pipeline, **{answer: stopped(pipeline)})
    coverage = settled.targets[0].ledger.coverage
    assert list(coverage.logs) == [OLD, NEW]
    assert begins(settled) == {"t": Position(NEW.instance, 150)}
    again = settle(pipeline)
    assert list(again.targets[0].ledger.load().coverage.logs) == [OLD, NEW]
    assert begins(again) == {"t": Position(NEW.instance, 150)}


def test_a_topic_ledger_that_is_of_another_backup_is_told_with_what_to_remove(
    tmp_path: Path,
) -> None:
    """Another name or output, as for a table, would not help."""
    source = {"topics": ["t"], "channel": "c", "nsqd_http_addresses": "127.0.0.1:1"}
    sinks = [{"type": "parquet", "path": "one"}, {"type": "topic", "topic": "out"}]
    table = {"name": "p", "checkpoint": "checkpoint", "source": source, "sink": sinks}
    pipeline = from_table(table, (), tmp_path)
    for number, target in enumerate(targets_of(None, pipeline)):  # type: ignore[arg-type]
        target.ledger.create(f"{number}" * 32, [])
    wanted = r"checkpoint\.ledger/topic-out belongs to another .* Remove that folder"
    with pytest.raises(PipelineError, match=wanted):
        settle(pipeline)


def test_a_checkpoint_without_a_batch_that_begins_in_an_older_log_is_begun_anew(
    tmp_path: Path,
) -> None:
    """It passed over the newer one, whose end was told by the next run only."""
    pipeline = pipeline_of(tmp_path)
    settled = settle(pipeline)
    write(settled, Span(OLD, 10, 50))
    assert begins(settle(pipeline)) == {"t": Position(OLD.instance, 50)}
    rest = Accepted("x", 0, Span(OLD, 50, INDEX_MAX))
    ledger = settled.targets[0].ledger
    ledger.commit(ledger.record(LOSS, losses=(rest,)))
    write(settled, Span(NEW, 100, 150))
    for _ in range(2):
        assert begins(settle(pipeline)) == {"t": Position(NEW.instance, 150)}


@pytest.mark.parametrize("told_before", [True, False])
def test_a_log_of_which_nothing_was_read_is_known_when_spark_has_forgotten_its_beginning(
    tmp_path: Path, told_before: bool
) -> None:
    """A table of before it was found was put back; nobody knew later that it lacks nothing."""
    pipeline = pipeline_of(tmp_path)
    settled = settle(pipeline)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.batch(0, OLD, 50, begin=50)
    if told_before:
        ledger = settled.targets[0].ledger
        rest = Accepted("x", 0, Span(OLD, 50, INDEX_MAX))
        ledger.commit(ledger.record(LOSS, losses=(rest,)))
        settle(pipeline)
        checkpoint.batch(1, OLD, INDEX_MAX)
    else:
        checkpoint.batch(1, OLD, INDEX_MAX)
        settle(pipeline, accept_loss=stopped(pipeline))
    for name in ("offsets/0", "commits/0"):
        checkpoint.folder.remove(name)
    checkpoint.batch(2, OLD, INDEX_MAX)
    settled = settle(pipeline)
    assert list(settled.targets[0].ledger.coverage) == [Span(OLD, 50, 50, 0)]


@pytest.mark.parametrize("done", [True, False])
def test_a_table_that_has_another_batch_of_the_next_number_is_gone_on_from(
    tmp_path: Path, done: bool
) -> None:
    """All was put back, it ran on, and a table of before was put back: it was refused for ever."""
    pipeline = pipeline_of(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    settled = settle(pipeline)
    checkpoint.folder.write("metadata", b'{"id": "q"}')
    ledger = settled.targets[0].ledger
    for number, start, end in ((0, 10, 20), (1, 20, 30), (2, 30, 30 if done else 40)):
        spans = (Span(OLD, start, end),)
        ledger.commit(ledger.batch_record(Batch("q", number, spans), spans))
    checkpoint.batch(0, OLD, 20, begin=10)
    checkpoint.batch(1, OLD, 30)
    if not done:
        checkpoint.batch(2, OLD, 45)
        checkpoint.folder.remove("commits/2")
    assert begins(settle(pipeline)) == {"t": Position(OLD.instance, 30 if done else 40)}
    assert list(tmp_path.glob("checkpoint.aside-*"))


def test_a_batch_that_a_table_has_and_its_checkpoint_has_not_done_comes_again(
    tmp_path: Path,
) -> None:
    pipeline = pipeline_of(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    settled = settle(pipeline)
    checkpoint.folder.write("metadata", b'{"id": "q"}')
    ledger = settled.targets[0].ledger
    for number, start, end in ((0, 10, 20), (1, 20, 30)):
        spans = (Span(OLD, start, end),)
        ledger.commit(ledger.batch_record(Batch("q", number, spans), spans))
    checkpoint.batch(0, OLD, 20, begin=10)
    checkpoint.batch(1, OLD, 30)
    checkpoint.folder.remove("commits/1")
    settle(pipeline)
    assert not list(tmp_path.glob("checkpoint.aside-*"))


@pytest.mark.parametrize("later", [False, True])
def test_a_table_of_before_a_topic_was_made_again_twice_lacks_what_another_has_of_it(
    tmp_path: Path, later: bool
) -> None:
    """Unless it begins later.  The rest of what was put back knows nothing of it."""
    pipeline = pipeline_of(tmp_path, 2)
    settled = settle(pipeline)
    newest = NEW._replace(instance="00000000000000cc")
    if not later:
        write(settled, Span(OLD, 10, 50))
    write(settled, Span(newest, 200, 250))
    write(settled, Span(OLD, 10, 50), Span(NEW, 100, 150), Span(newest, 200, 250), tables=(1,))
    for number, logs in enumerate(((OLD,), (OLD, NEW))):
        rest = tuple(Accepted("x", 0, Span(each, 0, INDEX_MAX)) for each in logs)
        ledger = settled.targets[number].ledger
        ledger.commit(ledger.record(LOSS, losses=rest))
    if later:
        settle(pipeline)
        return
    settled = settle(pipeline, accept_loss=stopped(pipeline))
    ledger = settled.targets[0].ledger
    told = [loss.span for loss in ledger.head.losses if loss.span.log == NEW]
    assert told == [Span(NEW, 100, 150, 0), Span(NEW, 150, INDEX_MAX, 0)]
    assert list(ledger.coverage.logs) == [OLD, NEW, newest]
    settle(pipeline)


def test_of_two_tables_the_one_that_knows_a_topic_made_again_says_where_to_go_on(
    tmp_path: Path,
) -> None:
    pipeline = pipeline_of(tmp_path, 2)
    settled = settle(pipeline)
    write(settled, Span(OLD, 10, 50), tables=(0, 1))
    lost = Accepted("x", 0, Span(OLD, 50, INDEX_MAX))
    for target in settled.targets:
        target.ledger.commit(target.ledger.record(LOSS, losses=(lost,)))
    write(settled, Span(NEW, 100, 120))
    assert begins(settle(pipeline)) == {"t": Position(NEW.instance, 100)}


def test_a_checkpoint_that_begins_nowhere_is_not_begun_anew_at_each_start(tmp_path: Path) -> None:
    """The only topic was deleted, which was accepted."""
    pipeline = pipeline_of(tmp_path)
    settled = settle(pipeline)
    write(settled, Span(OLD, 10, 50))
    ledger = settled.targets[0].ledger
    ledger.commit(ledger.record(LOSS, losses=(Accepted("x", 0, Span(OLD, 50, INDEX_MAX)),)))
    for _ in range(3):
        assert begins(settle(pipeline)) == {}
        LocalFolder(str(tmp_path / "checkpoint")).write("metadata", b'{"id": "q"}')
    assert [path.name for path in tmp_path.glob("checkpoint.aside-*")] == []


def test_two_checkpoints_of_one_second_are_moved_aside_under_two_names(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    write(settle(pipeline), Span(OLD, 10, 50))
    for _ in range(3):
        shutil.rmtree(tmp_path / "checkpoint")
        Checkpoint(tmp_path).batch(0, OLD, 20, begin=10)
        LocalFolder(str(tmp_path / "checkpoint")).write("metadata", b'{"id": "q"}')
        settle(pipeline)
    assert len(list(tmp_path.glob("checkpoint.aside-*"))) == 3
    assert OffsetLog(LocalFolder(str(tmp_path / "checkpoint"))).has_begin


def test_the_source_passes_over_a_loss_only_if_every_table_has_it_or_has_accepted_it(
    tmp_path: Path,
) -> None:
    settled = settle(pipeline_of(tmp_path, 2))
    write(settled, Span(OLD, 0, 10), tables=(0, 1))
    write(settled, Span(OLD, 10, 20), tables=(1,))
    one, two = (target.ledger for target in settled.targets)
    one.commit(one.record(LOSS, losses=(Accepted("x", 0, Span(OLD, 10, 30)),)))
    assert list(accepted_by_all([one, two])) == [Span(OLD, 10, 20)]
    two.commit(two.record(LOSS, losses=(Accepted("x", 0, Span(OLD, 20, 30)),)))
    assert [span[:3] for span in accepted_by_all([one, two])] == [(OLD, 10, 30)]


def test_tables_and_checkpoint_of_before_a_topic_was_made_again_go_on_where_it_began(
    tmp_path: Path,
) -> None:
    """The channel of the new topic has moved; only known.json knows where it was begun."""
    pipeline, checkpoint = pipeline_of(tmp_path), Checkpoint(tmp_path)
    write(settle(pipeline), Span(OLD, 10, 50))
    checkpoint.batch(0, OLD, 50, begin=10)
    for name in ("one", "checkpoint"):
        shutil.copytree(tmp_path / name, tmp_path / "backup" / name)
    settled = settle(pipeline)
    ledger = settled.targets[0].ledger
    ledger.commit(ledger.record(LOSS, losses=(Accepted("x", 0, Span(OLD, 50, INDEX_MAX)),)))
    write(settled, Span(NEW, 100, 120))
    settled.note()
    for name in ("one", "checkpoint"):
        shutil.rmtree(tmp_path / name)
        shutil.copytree(tmp_path / "backup" / name, tmp_path / name)
    settled = settle(pipeline, accept_loss=stopped(pipeline))
    assert begins(settled) == {"t": Position(NEW.instance, 100)}
