"""Small files become large ones while batches go on: what readers see meanwhile."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from penstock.pipeline import runner, table_files
from penstock.pipeline.compaction import Merging
from penstock.pipeline.delta import DeltaSinkTable
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.ledger_records import Batch
from penstock.pipeline.parquet import ParquetTable
from penstock.pipeline.targets import TableWriter
from tests.spark.pipelines import Running, declared, publish, run
from tests.support.cut_folder import Cut, CutFolder
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

SOON = Merging(after_ms=1, count_min=3, file_size=10**6)
BATCH_ROWS = 20
BATCH_COUNT = 12


@pytest.fixture(autouse=True)
def short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAINTENANCE_S", 0.2)


def ledger_of(path: Path, name: str = "test", folder: LocalFolder | None = None) -> Ledger:
    folder = folder or LocalFolder(str(path))
    ledger = Ledger(folder, f"_penstock/ledger/{name}", name, "sink").load()
    ledger.create(name * 8, ["sink"])
    return ledger


def rows(spark: SparkSession, batch: int) -> DataFrame:
    first = batch * BATCH_ROWS
    numbers = spark.range(first, first + BATCH_ROWS, 1, 1)
    return numbers.selectExpr("id", "concat('a:', id % 2) AS part")


def write(spark: SparkSession, table: TableWriter, batch: int) -> None:
    table.write(rows(spark, batch), Batch("query", batch, numbered=True), ())


def ids(path: str) -> list[int]:
    return list(pq.ParquetFile(path).read(columns=["id"])["id"].to_pylist())


def bare_ids(path: Path) -> list[int]:
    return [each for file in path.glob("part=*/*.parquet") for each in ids(str(file))]


def list_ids(path: Path) -> list[int]:
    return [each for file in table_files(str(path)) for each in ids(file)]


def delta_ids(path: Path) -> list[int]:
    from deltalake import DeltaTable

    return list(DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


class Reader(threading.Thread):
    """Reads a table over and over, while ``written`` rows are in it at least."""

    def __init__(self, read: Callable[[], list[int]], *, once: bool) -> None:
        super().__init__(daemon=True)
        self.read, self.once = read, once
        self.written = BATCH_ROWS
        self.over = threading.Event()
        self.faults: list[str] = []
        self.count = self.gone_count = self.twice_count = 0

    def run(self) -> None:
        while not self.over.is_set():
            written = self.written
            try:
                found = self.read()
            except FileNotFoundError:
                self.gone_count += 1  # it is told, and reads again
                continue
            except Exception as error:
                self.faults.append(repr(error))
                return
            self.count += 1
            seen = set(found)
            if not seen >= set(range(written)):
                self.faults.append(f"{len(seen)} rows, {written} were written")
            self.twice_count += len(found) > len(seen)
            if self.once and sorted(found) != list(range(len(found) // BATCH_ROWS * BATCH_ROWS)):
                self.faults.append(f"{len(found)} rows, {len(seen)} different ones")


@contextmanager
def reading(*readers: Reader) -> Iterator[None]:
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        for reader in readers:
            reader.over.set()
            reader.join(20)
    for reader in readers:
        assert reader.faults == [] and reader.count > 3


def go_on(spark: SparkSession, table: TableWriter, *readers: Reader) -> None:
    for batch in range(1, BATCH_COUNT):
        write(spark, table, batch)
        for reader in readers:
            reader.written = (batch + 1) * BATCH_ROWS
        table.maintain()
        time.sleep(0.1)


EXPECTED = list(range(BATCH_COUNT * BATCH_ROWS))


def test_a_parquet_table_is_read_while_it_is_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.compaction.PAUSE_FACTOR", 0)
    table = ParquetTable(spark, LocalFolder(str(tmp_path)), ("part",), ledger_of(tmp_path), SOON)
    write(spark, table, 0)
    exact = Reader(lambda: list_ids(tmp_path), once=True)
    bare = Reader(lambda: bare_ids(tmp_path), once=False)
    with reading(exact, bare):
        go_on(spark, table, exact, bare)
    assert bare.twice_count > 0  # or nothing was merged meanwhile
    merged = [file for file in table_files(str(tmp_path)) if "merge-" in file]
    assert merged
    table.finish(lambda seconds: time.sleep(seconds) or False)
    assert sorted(list_ids(tmp_path)) == sorted(bare_ids(tmp_path)) == EXPECTED
    assert len(table_files(str(tmp_path))) <= 4
    check_documented_readers(spark, str(tmp_path))


def check_documented_readers(spark: SparkSession, path: str) -> None:
    """Those of docs/spark.md."""
    schema = pq.read_schema(f"{path}/_common_metadata")
    read = pyarrow.dataset.dataset(table_files(path), schema=schema, partitioning="hive")
    frame = spark.read.option("basePath", path).option("mergeSchema", "true")
    found = [row.asDict() for row in frame.parquet(*table_files(path)).collect()]
    for rows in (found, read.to_table().to_pylist()):
        assert sorted(row["id"] for row in rows) == EXPECTED
        assert all(row["part"] == f"a:{row['id'] % 2}" for row in rows)


def test_a_delta_table_is_read_while_it_is_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    monkeypatch.setattr("penstock.pipeline.compaction.PAUSE_FACTOR", 0)
    table = DeltaSinkTable(spark, str(tmp_path), ("part",), ledger_of(tmp_path), SOON)
    other = DeltaSinkTable(spark, str(tmp_path), ("part",), ledger_of(tmp_path, "other"))
    write(spark, table, 0)
    exact = Reader(lambda: delta_ids(tmp_path), once=True)
    with reading(exact):
        go_on(spark, table, exact)
    for batch in range(BATCH_COUNT, BATCH_COUNT + 3):
        write(spark, other, batch)
    before = set(table_files(str(tmp_path)))
    table.finish(lambda seconds: False)
    found = DeltaTable(str(tmp_path))
    expected = list(range((BATCH_COUNT + 3) * BATCH_ROWS))
    assert sorted(delta_ids(tmp_path)) == sorted(list_ids(tmp_path)) == expected
    after = table_files(str(tmp_path))
    own = [file for file in after if file.endswith("-testtest.parquet")]
    assert len(own) <= 4 and any("merge-" in file for file in own)
    assert {file for file in after if file not in own} <= before
    assert len([file for file in after if file not in own]) == 6
    ledger = ledger_of(tmp_path)
    assert {f"{tmp_path}/{path}" for path in ledger.live_files()} == set(own)
    # The old files are there for readers of old versions, until the table's retention is over.
    version = DeltaTable(str(tmp_path), version=BATCH_COUNT - 2)
    assert version.to_pyarrow_table().num_rows > 0
    found.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    time.sleep(0.01)
    (tmp_path / "part=a%3A0" / "strange.parquet").write_bytes(b"of nobody")
    table._clear_s = 0.0
    table._clear()
    left = {str(file) for file in tmp_path.glob("part=*/*.parquet")}
    assert left == {*after, f"{tmp_path}/part=a%3A0/strange.parquet"}


def test_a_merge_of_a_delta_table_is_finished_or_undone_wherever_it_is_cut_off(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewrite(self: DeltaSinkTable, paths: Sequence[str], stage: str) -> None:
        root = Path(self._folder.uri)
        read = [pq.ParquetFile(root / path).read() for path in paths]
        (root / stage).mkdir(parents=True)
        pq.write_table(pa.concat_tables(read), root / stage / "part-0.parquet")

    def opened(folder: LocalFolder) -> DeltaSinkTable:
        ledger = ledger_of(Path(folder.uri), folder=folder)
        return DeltaSinkTable(spark, folder.uri, ("part",), ledger, SOON)

    for batch in range(3):
        write(spark, opened(LocalFolder(str(tmp_path / "base"))), batch)
    expected = list(range(3 * BATCH_ROWS))
    monkeypatch.setattr(DeltaSinkTable, "_rewrite", rewrite)  # quicker than Spark
    for count in range(100):
        path, whole = tmp_path / str(count), False
        shutil.copytree(tmp_path / "base", path)
        with suppress(Cut):
            whole = opened(CutFolder(str(path), count)).merge(10**13) == 6
        assert sorted(delta_ids(path)) == expected
        again = opened(LocalFolder(str(path)))
        again.recover()
        assert sorted(delta_ids(path)) == expected
        again.merge(10**13)
        assert sorted(delta_ids(path)) == expected
        live = {f"{path}/{file}" for file in ledger_of(path).live_files()}
        assert live == set(table_files(str(path))) and len(live) == 2
        assert len(list(path.glob("part=*/*.parquet"))) == 6 + 2
        assert ledger_of(path).sealed() is None
        if whole:
            break
    assert count > 6


def test_a_delta_table_that_somebody_else_compacts_keeps_each_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    table = DeltaSinkTable(spark, str(tmp_path), ("part",), ledger_of(tmp_path), SOON)
    for batch in range(3):
        write(spark, table, batch)
    rewrite = DeltaSinkTable._rewrite

    def beaten(self: DeltaSinkTable, *arguments: Any) -> None:
        rewrite(self, *arguments)
        DeltaTable(str(tmp_path)).optimize.compact()

    monkeypatch.setattr(DeltaSinkTable, "_rewrite", beaten)
    assert table.merge(10**13) == 0
    assert sorted(delta_ids(tmp_path)) == list(range(3 * BATCH_ROWS))
    assert table.merge(10**13) == 0


# Whole pipelines


def sink(path: str, **more: str) -> dict[str, Any]:
    return {"type": "parquet", "path": path, "compact_after": "1ms", **more}


def files(path: Path) -> list[Path]:
    return list(path.glob("*.parquet"))


def bodies(path: Path) -> list[bytes]:
    read = (pq.ParquetFile(file).read(columns=["body"])["body"] for file in files(path))
    return sorted(body for column in read for body in column.to_pylist())


def test_a_quiet_table_is_merged(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    path = tmp_path / "table"
    never = {"interval": "0"}
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": "numbers"},
        trigger=never,
        sink=sink(str(path), compact_after="4s"),
    )
    publish(nsqd, "numbers", [b"0"])
    with Running(spark, pipeline, tmp_path) as running:
        running.until(lambda: len(files(path)) == 1)
        for number in (1, 2):
            publish(nsqd, "numbers", [b"%d" % number])
            running.until(lambda number=number: len(files(path)) == number + 1)
        running.until(lambda: ["merge-" in file.name for file in files(path)] == [True])
    assert bodies(path) == [b"0", b"1", b"2"]


def test_two_pipelines_in_one_folder_and_the_end_of_a_run(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    for number in range(3):
        for name, after in (("one", "1ms"), ("other", "0")):
            publish(nsqd, name, [f"{name} {number}".encode()])
            place = sink(str(path), compact_after=after)
            run(
                spark,
                declared(tmp_path, nsqd, name=name, source={"topics": name}, sink=place),
                tmp_path,
            )
    [merged] = [file for file in files(path) if "merge-" in file.name]
    assert pq.ParquetFile(merged).metadata.num_rows == 3
    assert len(files(path)) == 4
    expected = sorted(f"{name} {n}".encode() for name in ("one", "other") for n in range(3))
    assert bodies(path) == expected
    assert sorted(table_files(str(path))) == sorted(map(str, files(path)))
