"""The audit with real Spark and a real nsqd: what it proves, what it finds, its statuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import AlreadyRunningError, NotProvableError, PipelineError
from penstock.pipeline.audit_acceptance import locked
from penstock.pipeline.audit_ledgers import LEDGERS, MERGING, open_ledgers
from penstock.pipeline.audit_rows import Group, count_rows, message_rows, repeats_in
from penstock.pipeline.coverage import Log
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger_records import packed
from penstock.pipeline.spec_file import read_pipeline
from tests.spark.pipelines import NOW, Running, channel, declared, publish, run, shipped
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)


class Audited:
    """An archive and its audits."""

    def __init__(self, spark: SparkSession, nsqd: Nsqd, folder: Path) -> None:
        self.spark = spark
        self.nsqd = nsqd
        self.folder = folder
        self.path = folder / "archive"

    def archive(self, *overrides: str) -> None:
        pipeline = shipped("archive", self.nsqd, f"parameters.path={self.path}", *NOW, *overrides)
        run(self.spark, pipeline, self.folder)

    def audit(self, *parameters: str) -> dict[str, Any]:
        """The report; the error of a run is in it as ``error``."""
        report = self.folder / "audit.json"
        given = [f"parameters.{each}" for each in (f"path={self.path}", f"report={report}")]
        pipeline = shipped("audit", self.nsqd, *given, *(f"parameters.{p}" for p in parameters))
        report.unlink(missing_ok=True)
        error: PipelineError | None = None
        try:
            run(self.spark, pipeline, self.folder)
        except PipelineError as raised:
            error = raised
        told = json.loads(report.read_text()) if report.exists() else {}
        return {**told, "error": error, "status": 0 if error is None else error.status}

    def files(self) -> list[Path]:
        return sorted(self.path.glob("topic=*/*/*/*.parquet"))


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "nsqd", "--max-bytes-per-file=4096") as daemon:
        yield daemon


@pytest.fixture
def audited(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> Audited:
    assert nsqd.post("/topic/create?topic=events").status == 200
    # It keeps all messages, as long as it is there.
    assert nsqd.post("/channel/create?topic=events&channel=kept").status == 200
    publish(nsqd, "events", [body(n) for n in range(100)])
    publish(nsqd, "007", [b"bond"])
    audited = Audited(spark, nsqd, tmp_path)
    audited.archive()
    publish(nsqd, "events", [body(n) for n in range(100, 150)])
    audited.archive()
    return audited


def body(n: int) -> bytes:
    return b"%d " % n + b"." * 100


def let_go(nsqd: Nsqd, topic: str) -> None:
    """Wait until the broker has removed what was read: its files are small."""
    assert channel(nsqd, topic, "archive")["depth"] == 0
    first = nsqd.get(f"/log?topic={topic}").json["first"]
    wait_until(lambda: nsqd.get(f"/log?topic={topic}").json["whole_from"] > first)


def test_an_archive_is_whole_also_when_the_brokers_have_removed_the_messages(
    audited: Audited, nsqd: Nsqd
) -> None:
    told = audited.audit()
    assert (told["status"], told["verdict"]) == (0, "whole"), told
    assert {each["topic"]: each["count"] for each in told["topics"]} == {"events": 150, "007": 1}
    assert told["pipelines"][0]["plain"]
    nsqd.post("/channel/delete?topic=events&channel=kept")
    let_go(nsqd, "events")
    told = audited.audit()
    assert (told["status"], told["files"]["count"]) == (0, 3), told
    # Rows that are gone are missed all the same, by the ledger alone.
    gone = next(file for file in audited.files() if "topic=events" in str(file))
    count = audited.spark.read.parquet(str(gone)).count()
    gone.unlink()
    told = audited.audit()
    assert told["status"] == 1
    assert f"{count} messages are missing, 1 files are missing, changed or unknown" in str(
        told["error"]
    )
    [fault] = told["files"]["faults"]
    assert fault["path"] == str(gone.relative_to(audited.path))
    [fault] = next(each for each in told["topics"] if each["topic"] == "events")["faults"]
    assert fault["count"] == count

    # On purpose: that is accepted once, and the rest is proven again.
    name = told["accept_all"]
    folder = LocalFolder(str(audited.path))
    with locked(folder, open_ledgers(folder)):
        assert isinstance(audited.audit(f"accept={name}")["error"], AlreadyRunningError)
    told = audited.audit(f"accept={name}")
    assert (told["status"], told["verdict"]) == (0, "whole"), told
    assert [loss["range"][-1] for loss in told["losses"]] == [count]
    assert audited.audit()["status"] == 0
    told = audited.audit(f"accept={name}")
    assert told["status"] == 1 and "no fault has this name" in str(told["error"])
    # And the pipeline goes on.
    publish(nsqd, "events", [b"more"])
    audited.archive()
    assert audited.audit()["status"] == 0


def test_files_that_were_copied_or_changed_are_found(audited: Audited) -> None:
    one, two = (file for file in audited.files() if "topic=events" in str(file))
    copied = one.with_name("copy.parquet")
    shutil.copy(one, copied)
    told = audited.audit()
    assert told["status"] == 1
    assert [fault["kind"] for fault in told["files"]["faults"]] == [
        "is in no ledger of this folder"
    ]
    events = next(each for each in told["topics"] if each["topic"] == "events")
    assert {fault["kind"] for fault in events["faults"]} == {"more than once"}
    # A merge that has replaced it says so, for as long as it stays.
    merging = audited.path / LEDGERS / "archive" / MERGING
    merging.write_bytes(packed({"removed": [str(copied.relative_to(audited.path))]}))
    assert audited.audit()["status"] == 0
    merging.unlink()
    copied.unlink()
    assert audited.audit()["status"] == 0
    data = two.read_bytes()
    two.write_bytes(data[: len(data) // 2])
    told = audited.audit()
    assert told["status"] == 1
    assert [fault["kind"] for fault in told["files"]["faults"]] == ["is not what was written"]
    assert next(each for each in told["topics"] if each["topic"] == "events")["faults"]


def test_a_node_that_does_not_answer_and_a_table_without_a_ledger_are_not_provable(
    audited: Audited, nsqd: Nsqd
) -> None:
    ledger = audited.path / LEDGERS
    shutil.move(ledger, audited.folder / "ledger")
    assert audited.audit()["status"] == 0  # the brokers have all of it
    shutil.move(audited.folder / "ledger", ledger)
    nsqd.terminate()
    told = audited.audit()
    assert isinstance(told["error"], NotProvableError) and told["status"] == 3
    assert {each["verdict"] for each in told["topics"]} == {"not provable"}
    assert "topic events on node" in str(told["error"])
    shutil.rmtree(ledger)
    assert audited.audit()["status"] == 3


def test_messages_that_the_channel_passed_are_found(audited: Audited, nsqd: Nsqd) -> None:
    publish(nsqd, "events", [b"lost"] * 7)
    publish(nsqd, "new", [b"lost"] * 5)
    # A channel that keeps them, and one that somebody emptied.
    nsqd.post("/channel/create?topic=new&channel=kept")
    nsqd.post("/channel/pull?topic=new&channel=archive&start=earliest")
    told = audited.audit()
    assert told["status"] == 0
    events = next(each for each in told["topics"] if each["topic"] == "events")
    assert events["not_read"] == 7
    for topic in ("events", "new"):
        url = f"/channel/empty?topic={topic}&channel=archive&force=true"
        assert nsqd.post(url).status == 200
    told = audited.audit()
    assert told["status"] == 1
    faults = {each["topic"]: each["faults"] for each in told["topics"]}
    assert [fault["count"] for fault in faults["events"]] == [7]
    assert [fault["count"] for fault in faults["new"]] == [5]


def test_tables_without_the_columns_and_delta_tables(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "events", [b"%d" % n for n in range(20)])
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": ["events"]},
        sink=[
            {"type": "delta", "path": "delta", "partition_by": ["topic"]},
            {"type": "parquet", "path": "bodies", "sql": "SELECT body FROM input"},
        ],
    )
    run(spark, pipeline, tmp_path)
    audited = Audited(spark, nsqd, tmp_path)
    audited.path = tmp_path / "delta"
    told = audited.audit()
    assert (told["status"], told["topics"][0]["count"]) == (0, 20), told
    next(audited.path.glob("topic=*/*.parquet")).unlink()
    assert audited.audit()["status"] == 1
    audited.path = tmp_path / "bodies"
    told = audited.audit()
    assert told["status"] == 0 and "proven by files and ranges only" in told["notes"][0]
    next(audited.path.glob("*.parquet")).unlink()
    assert audited.audit()["status"] == 1


def test_a_table_is_audited_while_its_pipeline_writes_it(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    audited = Audited(spark, nsqd, tmp_path)
    compact = ("sink.compact_after=1ms", "sink.compact_files=3")
    overrides = (f"parameters.path={audited.path}", "parameters.every=1s", *compact)
    with Running(spark, shipped("archive", nsqd, *overrides), tmp_path) as running:
        publish(nsqd, "events", [body(n) for n in range(100)])
        running.until(audited.files)
        for round in range(4):
            publish(nsqd, "events", [body(n) for n in range(100)])
            told = audited.audit()
            assert told["status"] == 0, (round, told)
    audited.archive()
    told = audited.audit()
    assert (told["status"], told["topics"][0]["count"]) == (0, 500), told


def test_rows_are_counted_by_range(spark: SparkSession) -> None:
    rows = [("t", "n", index) for index in (0, 1, 1, 2, 10, 11, 20, 99)]
    rows += [("u", "n", 5), ("t", "m", 5), (None, "n", 7)]
    table = spark.createDataFrame(rows, "nsq_topic string, nsq_node string, nsq_index bigint")
    found = message_rows(table)
    assert found is not None and message_rows(table.select("nsq_index")) is None
    log = Log("c", "n", "t", "0" * 16)
    ranges = [(log, 0, 3), (log, 3, 10), (log, 10, 20), (log._replace(node="m"), 0, 6)]
    groups = [Group(*each, None, plain=True) for each in ranges]
    times, outside = count_rows(found, groups)
    assert [(each.rows, each.different) for each in groups] == [(4, 3), (0, 0), (2, 2), (1, 1)]
    told = {(row["topic"], row["node"]): (row["first"], row["last"]) for row in outside}
    assert told == {("t", "n"): (20, 99), ("u", "n"): (5, 5), (None, "n"): (7, 7)}
    assert list(repeats_in(times, 1)) == [("t", "n", 1, 2)]


def test_the_nodes_of_an_audit_are_found_by_nsqlookupd(spark: SparkSession, tmp_path: Path) -> None:
    """A node that is down is not known to it: what the table has of it cannot be proven."""
    with Nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        given = ["parameters.nsqd=", f"parameters.lookupd={lookupd.http_address}"]
        given.append(f"parameters.path={tmp_path / 'archive'}")

        def registered() -> int:
            return len(lookupd.get("/nodes").json["producers"])

        with Nsqd(tmp_path / "1", *flags) as one, Nsqd(tmp_path / "2", *flags) as two:
            wait_until(lambda: registered() == 2)
            for nsqd, count in ((one, 30), (two, 20)):
                publish(nsqd, "events", [body(n) for n in range(count)])
            run(spark, read_pipeline("archive", [*given, *NOW]), tmp_path)
            report = tmp_path / "audit.json"
            audit = read_pipeline("audit", [*given, f"parameters.report={report}"])
            run(spark, audit, tmp_path)
            told = json.loads(report.read_text())
            assert told["verdict"] == "whole", told
            assert sorted(each["count"] for each in told["topics"]) == [20, 30]
            # The brokers are asked: what they have and the table does not is found.
            publish(two, "events", [body(20)])
            run(spark, audit, tmp_path)
            told = json.loads(report.read_text())
            assert sorted(each["not_read"] for each in told["topics"]) == [0, 1]
            two.terminate()
            wait_until(lambda: registered() == 1)
            with pytest.raises(NotProvableError):
                run(spark, audit, tmp_path)
