"""Ordinary bad days of a pipeline on real Spark (R43 to R48).

At the end every message is in the table once, or the run has ended with an error and told.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.dataset
import pytest

from penstock.errors import DataWouldBeLostError, PipelineError
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.spec import Pipeline
from tests.spark.pipelines import bodies, declared, run
from tests.spark.topics import SMALL, log_of, new_topic, numbered, publish, wait_until
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

PARQUET = {"type": "parquet", "path": "table"}
DELTA = {"type": "delta", "path": "delta"}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("broker"), SMALL) as daemon:
        yield daemon


class Days:
    """A pipeline and the messages that it should have written."""

    def __init__(self, spark: SparkSession, nsqd: Nsqd, folder: Path) -> None:
        self.spark = spark
        self.nsqd = nsqd
        self.folder = folder
        self.topic = new_topic()
        self.sent: list[bytes] = []

    def declare(self, *sinks: dict[str, Any], **more: Any) -> Pipeline:
        source = {"topics": self.topic, **more.pop("source", {})}
        name = more.pop("name", f"p{self.topic}")
        found: Pipeline = declared(
            self.folder, self.nsqd, name=name, source=source, sink=list(sinks), **more
        )
        return found

    def publish(self, count: int) -> None:
        """Not at once: what is published together stays together, in one segment."""
        new = numbered(count, len(self.sent))
        for at in range(0, count, 50):
            publish(self.nsqd, self.topic, *new[at : at + 50])
        self.sent += new

    def run(self, pipeline: Pipeline, **answers: str) -> None:
        run(self.spark, pipeline, self.folder, **answers)

    def refused(self, pipeline: Pipeline, **answers: str) -> str:
        """The text with which it would lose data."""
        with pytest.raises(DataWouldBeLostError) as caught:
            self.run(pipeline, **answers)
        assert caught.value.status == 5
        return str(caught.value)

    def table(self, name: str = "table") -> list[bytes]:
        found = pyarrow.dataset.dataset(self.folder / name).to_table(["body"])
        return sorted(bytes(body) for body in found["body"].to_pylist())

    def delta(self) -> list[bytes]:
        from deltalake import DeltaTable

        found = pyarrow.table(DeltaTable(self.folder / "delta").to_pyarrow_table())
        return sorted(bytes(body) for body in found["body"].to_pylist())

    def out(self, topic: str) -> list[bytes]:
        return sorted(bodies(self.spark, self.nsqd, topic))

    def wait_removed(self, before: int) -> None:
        wait_until(lambda: log_of(self.nsqd, self.topic)["whole_from"] > before)

    def end(self) -> int:
        return int(log_of(self.nsqd, self.topic)["end"])

    def ledger(self, pipeline: Pipeline, table: str = "table") -> Ledger:
        path = f"_penstock/ledger/{pipeline.name}"
        return Ledger(LocalFolder(str(self.folder / table)), path, "", "").load()

    def keep(self, *names: str) -> None:
        for name in names:
            shutil.copytree(self.folder / name, self.folder / "backup" / name)

    def put_back(self, *names: str) -> None:
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(self.folder / "backup" / name, self.folder / name)


@pytest.fixture
def days(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> Days:
    return Days(spark, nsqd, tmp_path)


def name_in(text: str, flag: str) -> str:
    match = re.search(f"{flag}=([0-9a-f]+)", text)
    assert match is not None, text
    return match[1]


def test_an_older_checkpoint_is_moved_aside_and_the_tables_go_on(days: Days) -> None:
    """It was 4,000 of 5,500 rows in Parquet, of 6,000 in Delta, and the audit said whole."""
    out = f"{days.topic}.out"
    pipeline = days.declare(PARQUET, DELTA, {"type": "topic", "topic": out})
    days.publish(100)
    days.run(pipeline)
    days.keep("checkpoints")
    days.publish(100)
    days.run(pipeline)
    days.publish(100)
    aside = days.folder / "checkpoints" / pipeline.name
    shutil.rmtree(aside)
    shutil.copytree(days.folder / "backup" / "checkpoints" / pipeline.name, aside)
    days.run(pipeline)
    wanted = sorted(days.sent)
    assert days.table() == wanted and days.delta() == wanted and days.out(out) == wanted
    assert len(list((days.folder / "checkpoints").glob(f"{pipeline.name}.aside-*"))) == 1
    days.publish(50)
    days.run(pipeline)
    assert days.table() == sorted(days.sent) == days.out(out)


def test_a_missing_checkpoint_is_begun_where_the_tables_end(days: Days) -> None:
    pipeline = days.declare(PARQUET)
    days.publish(100)
    days.run(pipeline)
    identity = days.ledger(pipeline).identity
    shutil.rmtree(days.folder / "checkpoints")
    days.publish(100)
    days.run(pipeline)
    assert days.table() == sorted(days.sent)
    assert days.ledger(pipeline).identity == identity


def test_a_table_that_is_gone_stops_and_is_read_again_or_accepted(days: Days) -> None:
    """It was 500 of 1,500 rows, without a warning."""
    pipeline = days.declare(PARQUET)
    days.nsqd.post(f"/topic/create?topic={days.topic}")
    days.nsqd.post(f"/channel/create?topic={days.topic}&channel=keeper")
    days.publish(200)
    days.run(pipeline)
    shutil.rmtree(days.folder / "table")
    days.publish(50)
    text = days.refused(pipeline)
    assert "rows are missing that the checkpoint" in text and days.topic in text
    name = name_in(text, "--read-again")
    # Another start says the same; what answers nothing is refused.
    assert name_in(days.refused(pipeline), "--accept-loss") == name
    with pytest.raises(PipelineError, match="is not expected"):
        days.run(pipeline, read_again="00000000")
    days.run(pipeline, read_again=name)
    assert days.table() == sorted(days.sent)
    with pytest.raises(PipelineError, match="is not expected"):
        days.run(pipeline, read_again=name)
    # Once more, and now it is accepted: the table begins with what comes.
    shutil.rmtree(days.folder / "table")
    days.publish(30)
    name = name_in(days.refused(pipeline), "--accept-loss")
    days.run(pipeline, accept_loss=name)
    assert days.table() == sorted(days.sent[-30:])
    [loss] = days.ledger(pipeline).head.losses
    assert (loss.name, loss.what) == (name, "lacking") and loss.span.end - loss.span.start >= 250
    days.run(pipeline)
    with pytest.raises(PipelineError, match="is not expected"):
        days.run(pipeline, accept_loss=name)


def test_a_table_and_its_checkpoint_are_gone_and_the_channel_has_passed_its_rows(
    days: Days,
) -> None:
    pipeline = days.declare(PARQUET)
    days.publish(100)
    days.run(pipeline)
    first = days.end() - 100
    days.publish(500)
    days.run(pipeline)
    days.wait_removed(first)
    days.publish(50)
    shutil.rmtree(days.folder / "table")
    shutil.rmtree(days.folder / "checkpoints" / pipeline.name)
    text = days.refused(pipeline)
    assert "messages may be lost" in text
    days.run(pipeline, accept_loss=name_in(text, "--accept-loss"))
    found = days.table()
    [loss] = days.ledger(pipeline).head.losses
    assert set(days.sent[-50:]) <= set(found) and loss.span.start == first
    assert len(found) == len(set(found)) >= len(days.sent) - (loss.span.messages or 0)


def test_an_older_table_stops_with_what_it_lacks(days: Days) -> None:
    pipeline = days.declare(PARQUET)
    days.publish(100)
    days.run(pipeline)
    days.keep("table")
    before = days.end()
    days.publish(100)
    days.run(pipeline)
    days.put_back("table")
    text = days.refused(pipeline)
    assert f"indexes {before} to {days.end() - 1}" in text
    # The channel has passed them, so they may be gone; then that is told, with a name again.
    days.publish(500)
    days.wait_removed(before)
    text = days.refused(pipeline, read_again=name_in(text, "--read-again"))
    assert "messages may be lost" in text
    days.run(pipeline, accept_loss=name_in(text, "--accept-loss"))
    [loss] = days.ledger(pipeline).head.losses
    assert loss.span.start == before
    found = days.table()
    assert len(found) == len(set(found)) and set(days.sent[:100]) <= set(found)
    assert set(days.sent[200:]) <= set(found)
    days.run(pipeline)
    assert days.table() == found


def test_all_put_back_tells_what_the_brokers_have_no_more(days: Days) -> None:
    """An older checkpoint with its output: it was 5,000 of 101,500 rows, in silence."""
    pipeline = days.declare(PARQUET)
    days.publish(100)
    days.run(pipeline)
    days.keep("table", "checkpoints")
    before = days.end()
    days.publish(300)
    days.run(pipeline)
    days.publish(300)
    days.wait_removed(before)
    days.put_back("table", "checkpoints")
    text = days.refused(pipeline)
    assert "an older checkpoint was restored" in text
    days.run(pipeline, accept_loss=name_in(text, "--accept-loss"))
    found = days.table()
    [loss] = days.ledger(pipeline).head.losses
    assert loss.span.start == before and loss.span.messages is not None
    assert len(set(found)) == len(found) >= len(days.sent) - loss.span.messages
    days.run(pipeline)
    assert days.table() == found


@pytest.mark.parametrize("kept", [False, True])
def test_all_put_back_from_before_a_topic_was_made_again_tells_what_was_read_of_it(
    days: Days, kept: bool
) -> None:
    """Only the channel knows that the new topic was read: it was read on from there, in silence."""
    pipeline = days.declare(PARQUET)
    days.publish(20)
    days.run(pipeline)
    days.keep("table", "checkpoints")
    old = list(days.sent)
    days.nsqd.post(f"/topic/delete?topic={days.topic}&force=true")
    days.nsqd.post(f"/topic/create?topic={days.topic}")
    if kept:
        days.nsqd.post(f"/channel/create?topic={days.topic}&channel=keeper")
    days.publish(300)
    days.run(pipeline, accept_loss=name_in(days.refused(pipeline), "--accept-loss"))
    assert days.table() == sorted(days.sent)
    days.publish(50)
    if not kept:
        days.wait_removed(0)
    days.put_back("table", "checkpoints")
    text, found = days.refused(pipeline), []
    assert "was deleted and created again" in text
    assert ("was read before, by channel" in text) is not kept
    for _ in range(4):  # segments go one after the other
        try:
            days.run(pipeline, accept_loss=name_in(text, "--accept-loss"))
            found = days.table()
            break
        except DataWouldBeLostError as error:
            text = str(error)
    assert set(old + days.sent[-50:]) <= set(found) and len(found) == len(set(found))
    told = [loss.span for loss in days.ledger(pipeline).head.losses]
    assert any(span.start == 0 for span in told) is not kept
    assert (len(found) == len(days.sent)) is kept
    days.run(pipeline)
    assert days.table() == found


def test_a_channel_that_was_emptied_by_force_is_told(days: Days) -> None:
    """It was 7,500 of 41,500 rows; now the rows and the loss are all of them."""
    pipeline = days.declare(PARQUET)
    days.publish(100)
    days.run(pipeline)
    before = days.end()
    days.publish(300)
    empty = f"/channel/empty?topic={days.topic}&channel={pipeline.name}"
    assert days.nsqd.post(empty).status == 409
    assert days.nsqd.post(f"{empty}&force=true").status == 200
    days.publish(300)
    days.wait_removed(before)
    text, found = "", []
    for _ in range(4):  # segments go one after the other
        try:
            days.run(pipeline, **({"accept_loss": name_in(text, "--accept-loss")} if text else {}))
            found = days.table()
            break
        except DataWouldBeLostError as error:
            text = str(error)
    assert set(days.sent[400:]) <= set(found) and len(found) == len(set(found))
    lost = sum(loss.span.messages or 0 for loss in days.ledger(pipeline).head.losses)
    assert lost and len(days.sent) - len(found) <= lost


def test_two_pipelines_of_one_name_do_not_share_a_channel(days: Days) -> None:
    """It was 7,500 of 41,500 rows."""
    one = days.declare(PARQUET)
    days.publish(100)
    days.run(one)
    other_folder = days.folder / "other"
    other_folder.mkdir()
    other = Days(days.spark, days.nsqd, other_folder)
    other.topic = days.topic
    twin = other.declare(PARQUET, name=one.name)
    days.publish(100)
    with pytest.raises(PipelineError, match=f"pipeline {one.name} on .*--take-over=") as caught:
        other.run(twin)
    identity = name_in(str(caught.value), "--take-over")
    assert identity == days.ledger(one).identity
    other.run(twin, take_over=identity)
    assert sorted(days.table() + other.table()) == sorted(days.sent)
    with pytest.raises(PipelineError, match="CHANNEL_HAS_READER"):
        days.run(one)
    assert sorted(days.table() + other.table()) == sorted(days.sent)


def test_sinks_with_other_ends_each_get_what_they_lack(days: Days) -> None:
    out = f"{days.topic}.out"
    topic_sink = {"type": "topic", "topic": out}
    pipeline = days.declare(PARQUET, DELTA, topic_sink)
    days.nsqd.post(f"/topic/create?topic={days.topic}")
    days.nsqd.post(f"/channel/create?topic={days.topic}&channel=keeper")
    days.publish(60)
    days.run(pipeline)
    days.keep("table")
    days.publish(60)
    days.run(pipeline)
    days.keep("delta")
    days.publish(60)
    days.run(pipeline)
    days.publish(60)
    # Three tables, each of another day, and no checkpoint.
    days.put_back("table", "delta")
    shutil.rmtree(days.folder / "checkpoints" / pipeline.name)
    days.run(pipeline)
    wanted = sorted(days.sent)
    assert days.table() == wanted and days.delta() == wanted and days.out(out) == wanted
    for table in ("table", "delta"):
        [span] = days.ledger(pipeline, table).coverage
        assert span.messages in (None, 240)


def test_a_new_sink_begins_now_and_a_lost_topic_ledger_is_known_to_the_brokers(days: Days) -> None:
    out = f"{days.topic}.out"
    days.publish(50)
    days.run(days.declare(PARQUET))
    days.publish(50)
    both = days.declare(PARQUET, {"type": "topic", "topic": out})
    days.run(both)
    assert days.table() == sorted(days.sent)
    assert days.out(out) == sorted(days.sent[50:])
    # Everything beside the table is gone: the table knows its sinks, the brokers the topic's end.
    shutil.rmtree(days.folder / "checkpoints")
    days.publish(50)
    days.run(both)
    assert days.table() == sorted(days.sent)
    assert days.out(out) == sorted(days.sent[50:])


def test_state_cannot_be_begun_anew(days: Days) -> None:
    pipeline = days.declare(
        PARQUET,
        source={"watermark": "10 minutes", "dedupe": ["id"]},
    )
    days.publish(50)
    days.run(pipeline)
    days.keep("checkpoints")
    days.publish(50)
    days.run(pipeline)
    days.put_back("checkpoints")
    text = days.refused(pipeline)
    assert "keeps state" in text and "older than the table" in text
    shutil.rmtree(days.folder / "checkpoints" / pipeline.name)
    assert "keeps state" in days.refused(pipeline)


def test_neither_ledger_nor_checkpoint_stops(days: Days) -> None:
    """A table of the version before, whose checkpoint is gone."""
    state = days.folder / "table" / "_penstock" / "4c40e972-c5f3-4dc3-a3ba-a60df17679fd"
    state.mkdir(parents=True)
    (state / "done.json").write_text('{"batch": 3}')
    pipeline = days.declare(PARQUET)
    days.publish(20)
    text = days.refused(pipeline)
    assert "neither a ledger nor a checkpoint" in text
    days.run(pipeline, begin_anew=name_in(text, "--begin-anew"))
    assert days.table() == sorted(days.sent)
    days.publish(20)
    days.run(pipeline)
    assert days.table() == sorted(days.sent)


def test_a_first_batch_that_dies_is_done_again(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.pipeline import parquet

    pipeline = days.declare(PARQUET)
    days.publish(50)
    for step in ("_take_step", "_finish"):
        with monkeypatch.context() as patch:

            def die(*_: object) -> None:
                raise OSError("the first batch dies")

            patch.setattr(parquet.ParquetTable, step, die)
            with pytest.raises(PipelineError, match="the first batch dies"):
                days.run(pipeline)
        days.publish(50)
    days.run(pipeline)
    assert days.table() == sorted(days.sent)
    [span] = days.ledger(pipeline).coverage
    assert span.messages == 150


def test_a_node_that_was_removed_for_good_is_forgotten_once_that_is_accepted(
    days: Days, tmp_path: Path
) -> None:
    with Nsqd(tmp_path / "2") as other:
        ours = f"127.0.0.1:{days.nsqd.http_port}"
        both = {"nsqd_http_addresses": f"{ours},127.0.0.1:{other.http_port}"}
        days.publish(20)
        publish(other, days.topic, b"elsewhere")
        days.run(days.declare(PARQUET, source=both))
        assert days.table() == sorted([*days.sent, b"elsewhere"])
    alone = days.declare(PARQUET, source={"nsqd_http_addresses": ours})
    days.publish(20)
    text = days.refused(alone)
    assert "is missing: the node is not one of" in text
    days.run(alone, accept_loss=name_in(text, "--accept-loss"))
    assert days.table() == sorted([*days.sent, b"elsewhere"])
    days.publish(20)
    days.run(alone)
    assert days.table() == sorted([*days.sent, b"elsewhere"])
    # Also if the checkpoint is lost: the ledger knows that it was accepted.
    shutil.rmtree(days.folder / "checkpoints" / alone.name)
    days.publish(20)
    days.run(alone)
    assert days.table() == sorted([*days.sent, b"elsewhere"])


def test_a_ledger_that_is_gone_is_known_to_delta_and_to_nobody_else(days: Days) -> None:
    pipeline = days.declare(PARQUET, DELTA)
    days.publish(40)
    days.run(pipeline)
    days.publish(40)
    shutil.rmtree(days.folder / "delta" / "_penstock")
    # As a merge or a batch that was cut off leaves one: it is in no version of the table.
    (file,) = (days.folder / "delta").glob("*.parquet")
    shutil.copyfile(file, days.folder / "delta" / "left-over.parquet")
    days.run(pipeline)
    assert days.delta() == sorted(days.sent) == days.table()
    assert "left-over.parquet" not in days.ledger(pipeline, "delta").live_files()
    # Of a Parquet table only a person can say that it is whole.
    days.publish(40)
    shutil.rmtree(days.folder / "table" / "_penstock")
    text = days.refused(pipeline)
    assert "its ledger" in text and "is missing" in text
    days.run(pipeline, begin_anew=name_in(text, "--begin-anew"))
    assert days.delta() == sorted(days.sent) == days.table()
    assert list(days.ledger(pipeline).head.before)
    days.publish(40)
    days.run(pipeline)
    assert days.delta() == sorted(days.sent) == days.table()
