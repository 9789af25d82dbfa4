"""Tables where Hadoop reaches, by a real file system in Spark's JVM.

What such a one answers is not believed: a rename that answered false would lose the rows of a batch
that was told to be written.
"""

from __future__ import annotations

import dataclasses
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

from penstock.errors import AlreadyRunningError, PipelineError
from penstock.pipeline.folders import HadoopFolder, LocalFolder, open_folder
from penstock.pipeline.lock import LEASE_S, Lock, Owner
from tests.spark.hadoop import Strict
from tests.spark.pipelines import declared, publish, run
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def file_system(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Strict:
    return Strict(spark, tmp_path_factory.getbasetemp())


@pytest.fixture
def strict(file_system: Strict) -> Iterator[Strict]:
    yield file_system
    file_system.go_wrong("")


@pytest.fixture
def folder(spark: SparkSession, strict: Strict, tmp_path: Path) -> HadoopFolder:
    found = open_folder(spark, strict.uri(tmp_path / "table"))
    assert isinstance(found, HadoopFolder)
    return found


def names(folder: HadoopFolder) -> list[str]:
    return sorted(file.path for file in folder.files())


def test_a_folder_elsewhere_does_what_one_of_this_machine_does(
    folder: HadoopFolder, tmp_path: Path
) -> None:
    local = LocalFolder(str(tmp_path / "table"))
    assert folder.read("a/b.json") is None and names(folder) == []
    for data in (b"1", b"22"):
        folder.write("a/b.json", data)
        assert folder.read("a/b.json") == local.read("a/b.json") == data
    assert [(file.path, file.size) for file in folder.files()] == [("a/b.json", 2)]
    for _ in range(2):
        folder.move("a/b.json", "c/d/e.json")
    assert names(folder) == ["c/d/e.json"]
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2, 3]}), tmp_path / "table" / "x.parquet")
    data = (tmp_path / "table" / "x.parquet").read_bytes()
    for each in (folder, local):
        assert (each.row_count("x.parquet"), each.checksum("x.parquet")) == (3, zlib.crc32(data))
        with pytest.raises(PipelineError, match=r"x/gone\.parquet was written and is missing"):
            each.move("x/gone.parquet", "y.parquet")
    for _ in range(2):
        folder.remove("c")
    assert names(folder) == ["x.parquet"]


@pytest.mark.parametrize("wrong", ["refuse-rename", "lie-rename", "cut-rename", "refuse-mkdirs"])
def test_a_move_that_did_not_happen_is_an_error(
    folder: HadoopFolder, strict: Strict, wrong: str
) -> None:
    folder.write("stage/x", b"rows")
    strict.go_wrong(wrong)
    with pytest.raises(PipelineError, match="could not be"):
        folder.move("stage/x", "k=1/x")
    strict.go_wrong("")
    if wrong != "cut-rename":
        folder.move("stage/x", "k=1/x")
        assert (names(folder), folder.read("k=1/x")) == (["k=1/x"], b"rows")


def test_a_move_that_happened_is_none_whatever_was_answered(
    folder: HadoopFolder, strict: Strict
) -> None:
    folder.write("stage/x", b"rows")
    strict.go_wrong("deny-rename")
    folder.move("stage/x", "k=1/x")
    strict.go_wrong("deny-delete")
    folder.remove("stage")
    assert names(folder) == ["k=1/x"]


def test_a_target_that_a_cut_move_left_is_replaced(folder: HadoopFolder) -> None:
    folder.write("stage/x", b"rows")
    folder.write("k=1/x", b"ro")
    folder.move("stage/x", "k=1/x")
    assert (names(folder), folder.read("k=1/x")) == (["k=1/x"], b"rows")


def test_what_cannot_be_removed_is_an_error(folder: HadoopFolder, strict: Strict) -> None:
    folder.write("a", b"1")
    strict.go_wrong("refuse-delete")
    for call in (lambda: folder.remove("a"), lambda: folder.write("a", b"2")):
        with pytest.raises(PipelineError, match="could not be removed"):
            call()
    assert folder.read("a") == b"1"


def test_a_write_that_is_cut_anywhere_leaves_the_old_or_the_new(
    folder: HadoopFolder, strict: Strict, tmp_path: Path
) -> None:
    """After any of its steps, and after the same step of the next write."""
    table = tmp_path / "table"
    states = [
        ({"a": b"1", "a.tmp": b"2x"}, b"1"),
        ({"a": b"1", "a.new": b"22"}, b"1"),
        ({"a.new": b"22"}, b"22"),
        ({"a.new": b"22", "a.tmp": b"3x"}, b"22"),
        ({"a.tmp": b"1x"}, None),
    ]
    for files, known in states:
        folder.remove("")
        table.mkdir()
        for name, data in files.items():
            (table / name).write_bytes(data)
        assert folder.read("a") == known
        strict.go_wrong("raise-rename")
        with pytest.raises(Exception, match="connection reset"):
            folder.write("a", b"333")
        assert folder.read("a") == known, files
        folder.write("a", b"4444")
        assert (names(folder), folder.read("a")) == (["a"], b"4444")


def test_a_batch_whose_files_cannot_be_renamed_is_not_told_to_be_written(
    spark: SparkSession, strict: Strict, nsqd: Nsqd, tmp_path: Path
) -> None:
    """And nothing of it is lost: the next run puts the files in place."""
    publish(nsqd, "orders", [{"n": n} for n in range(1000)])
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": "orders", "body": "json", "schema": "n bigint"},
        sink={"type": "parquet", "path": strict.uri(tmp_path / "table")},
    )
    strict.go_wrong("refuse-rename")
    with pytest.raises(PipelineError, match="could not be renamed"):
        run(spark, pipeline, tmp_path)
    strict.go_wrong("")
    run(spark, pipeline, tmp_path)
    found = sorted((tmp_path / "table").glob("*.parquet"))
    rows = [n for path in found for n in pyarrow.parquet.read_table(path)["n"].to_pylist()]
    assert sorted(rows) == list(range(1000))


def test_an_empty_batch_makes_no_file_elsewhere_either(
    spark: SparkSession, strict: Strict, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", [{"n": 1}])
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": "orders", "body": "json", "schema": "n bigint"},
        transform=[{"sql": "SELECT * FROM input WHERE n > 5"}],
        sink={"type": "parquet", "path": strict.uri(tmp_path / "table")},
    )
    run(spark, pipeline, tmp_path)
    assert list((tmp_path / "table").glob("*.parquet")) == []


def test_a_plain_path_is_of_this_machine_whatever_sparks_default_is(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    """Spark would write to its default file system, and nothing be found here to move."""
    publish(nsqd, "orders", [{"n": n} for n in range(20)])
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": "orders", "body": "json", "schema": "n bigint"},
        sink=[{"type": "parquet", "path": "table"}, {"type": "delta", "path": "delta"}],
    )
    (tmp_path / "elsewhere").mkdir()
    mount = f"fs.viewfs.mounttable.{tmp_path.name.replace('_', '-')}.linkFallback"
    spark.conf.set(mount, f"file://{tmp_path}/elsewhere")
    spark.conf.set("fs.defaultFS", f"viewfs://{tmp_path.name.replace('_', '-')}/")
    try:
        run(spark, pipeline, tmp_path)
    finally:
        spark.conf.unset("fs.defaultFS")
        spark.conf.unset(mount)
    for name in ("table", "delta"):
        found = pyarrow.dataset.dataset(sorted(map(str, (tmp_path / name).glob("*.parquet"))))
        assert sorted(found.to_table()["n"].to_pylist()) == list(range(20))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_lock_elsewhere_has_one_owner_and_a_lease(folder: HadoopFolder, tmp_path: Path) -> None:
    here = Owner.of_this_process("orders")
    path = "_penstock/ledger/orders/lock.json"
    first = Lock(folder, path, dataclasses.replace(here, host="elsewhere"))
    first.take()
    first.check()
    with pytest.raises(AlreadyRunningError, match=r"process \d+ on elsewhere, since 2"):
        Lock(folder, path, here).take()
    assert len(names(folder)) == 2, "the lock and its heartbeat"
    then = time.time() - LEASE_S - 1
    for name in names(folder):
        os.utime(tmp_path / "table" / name, (then, then))
    second = Lock(folder, path, here)
    second.take()
    with pytest.raises(AlreadyRunningError, match="was taken over by process"):
        first.check()
    first.release()
    second.check()
    # One that was killed, here.
    gone = dataclasses.replace(second.owner, boot_id="before")
    folder.write(path, gone.to_json())
    third = Lock(folder, path, here)
    third.take()
    second.release()
    third.check()
    third.release()
    assert names(folder) == []
