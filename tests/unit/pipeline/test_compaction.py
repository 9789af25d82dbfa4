"""Small files become large ones: each row once, wherever it is cut off, at a bounded cost."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli.pipeline import main
from penstock.errors import PipelineError
from penstock.pipeline import compaction, files, replaced_files, table_files
from penstock.pipeline.audit_files import check_files
from penstock.pipeline.audit_ledgers import open_ledgers
from penstock.pipeline.compaction import Merging, groups
from penstock.pipeline.folders import Folder, LocalFolder
from penstock.pipeline.ledger import Ledger, now_ms
from penstock.pipeline.ledger_records import CARRIED, Batch, DataFile
from penstock.pipeline.parquet import ParquetTable
from penstock.pipeline.replaced_files import GRACE_MS
from penstock.pipeline.spec import DeltaSink, Invalid, ParquetSink
from penstock.pipeline.targets import merging_of
from tests.support.cut_folder import Cut, CutFolder

IDENTITY = "1f0c9a4e" * 4
NOW = Merging(after_ms=0, count_min=3, file_size=10**6)
LATER_MS = 10**13
AFTER_GRACE_MS = LATER_MS + 10**6


class ArrowTable(ParquetTable):
    """Written by pyarrow, so that no Spark is needed."""

    def __init__(self, folder: Folder, ledger: Ledger, merging: Merging | None = NOW) -> None:
        super().__init__(None, folder, ("k",), ledger, merging)  # type: ignore[arg-type]

    def put(self, number: int, **parts: Iterable[int]) -> None:
        stage = self.begin_stage()
        for part, values in parts.items():
            write_rows(Path(self._folder.uri) / stage / f"k={part}" / "part-0.parquet", values)
        self.commit_stage(Batch("query", number, numbered=True), ())

    def _rewrite(self, paths: Sequence[str], stage: str, count: int = 1) -> None:
        root = Path(self._folder.uri)
        found = [value for path in paths for value in read_rows(root / path)]
        write_rows(root / stage / "part-0.parquet", found)

    def sweep(self, at_ms: int) -> None:
        self.replaced.sweep(at_ms)


def write_rows(path: Path, values: Iterable[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(list(values), pa.int64())}), path)


def read_rows(path: Path) -> list[int]:
    return [int(value) for value in pq.ParquetFile(path).read()["id"].to_pylist()]


def open_table(
    path: Path, name: str = "test", merging: Merging | None = NOW, folder: Folder | None = None
) -> ArrowTable:
    folder = folder or LocalFolder(str(path))
    ledger = Ledger(folder, f"_penstock/ledger/{name}", name, "parquet t").load()
    ledger.create(IDENTITY if name == "test" else name * 4, ["parquet t"])
    return ArrowTable(folder, ledger, merging)


def listed(path: Path) -> list[int]:
    return sorted(value for file in table_files(str(path)) for value in read_rows(Path(file)))


def data_files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("k=*/*.parquet") if "_penstock" not in str(file))


def bare(path: Path) -> list[int]:
    return sorted(value for file in data_files(path) for value in read_rows(file))


def faults(path: Path) -> list[object]:
    """What the audit says of the files."""
    folder = LocalFolder(str(path))
    return list(check_files(folder, open_ledgers(folder)).faults)


def small_counts(path: Path, size: int = NOW.file_size) -> dict[str, int]:
    counts: dict[str, int] = {}
    for file in files.read_files(str(path)):
        folder = file.path.rpartition("/")[0]
        counts[folder] = counts.get(folder, 0) + (file.size < size)
    return counts


def filled(path: Path, count: int = 4) -> ArrowTable:
    table = open_table(path)
    for number in range(count):
        table.put(number, a=range(10 * number, 10 * number + 5), b=[10 * number + 5])
    return table


EXPECTED = sorted(10 * number + n for number in range(4) for n in range(6))


def test_every_table_is_merged_by_default() -> None:
    default = Merging(after_ms=600_000, count_min=3, file_size=128 * 10**6)
    for kind in (ParquetSink, DeltaSink, Invalid):
        assert merging_of(kind(path="x")) == default
        assert merging_of(kind(path="x", compact_after_ns=0)) is None


# Wherever it is cut off


def test_a_merge_is_finished_or_undone_wherever_it_is_cut_off(tmp_path: Path) -> None:
    filled(tmp_path / "base")
    for count in range(100):
        path = tmp_path / str(count)
        shutil.copytree(tmp_path / "base", path)
        whole = False
        try:
            table = open_table(path, folder=CutFolder(str(path), count))
            assert table.merge(LATER_MS) == 8
            table.sweep(AFTER_GRACE_MS)
            whole = True
        except Cut:
            pass
        # Before anything is mended, and after.
        assert faults(path) == []
        assert listed(path) == EXPECTED
        assert set(bare(path)) == set(EXPECTED)
        again = open_table(path)
        again.recover()
        assert faults(path) == []
        assert listed(path) == EXPECTED
        assert set(bare(path)) == set(EXPECTED)
        again.merge(LATER_MS)
        assert faults(path) == []
        again.sweep(AFTER_GRACE_MS)
        assert listed(path) == bare(path) == EXPECTED
        assert not (path / "_penstock/ledger/test/merging.json").exists()
        assert not (path / "_penstock/ledger/test/merge").exists()
        assert small_counts(path) == {"k=a": 1, "k=b": 1}
        if whole:
            break
    assert count > 10


def test_a_merge_that_is_cut_off_again_and_again_comes_to_its_end(tmp_path: Path) -> None:
    filled(tmp_path)
    for count in range(100):
        try:
            table = open_table(tmp_path, folder=CutFolder(str(tmp_path), count))
            table.recover()
            table.merge(LATER_MS)
            table.sweep(AFTER_GRACE_MS)
            break
        except Cut:
            assert listed(tmp_path) == EXPECTED
            assert set(bare(tmp_path)) == set(EXPECTED)
    assert listed(tmp_path) == bare(tmp_path) == EXPECTED


def test_batches_go_on_while_replaced_files_stay(tmp_path: Path) -> None:
    table = filled(tmp_path)
    assert table.merge(LATER_MS) == 8
    for number in range(4, 9):
        table.put(number, a=[10 * number])
    assert table.merge(LATER_MS) == 6
    assert listed(tmp_path) == sorted([*EXPECTED, *range(40, 90, 10)])
    noted = json.loads((tmp_path / "_penstock/ledger/test/merging.json").read_text()[9:])
    assert len(noted["removed"]) == 14
    assert [count for _, _, count in noted["swaps"]] == [8, 6]
    live = set(table_files(str(tmp_path)))
    assert {f"{tmp_path}/{path}" for path in noted["removed"]} == {
        str(file) for file in data_files(tmp_path) if str(file) not in live
    }
    table.sweep(now_ms() + GRACE_MS // 2)  # too early
    assert len(bare(tmp_path)) > len(listed(tmp_path))
    table.sweep(now_ms() + GRACE_MS + 1)
    assert bare(tmp_path) == listed(tmp_path)


# What is merged


def test_only_quiet_folders_are_merged(tmp_path: Path) -> None:
    table = open_table(tmp_path, merging=Merging(60_000, 3, 10**6))
    now = now_ms()
    for number in range(3):
        table.put(number, a=[number], b=[number])
    assert table.merge(now + 30_000) == 0
    table.put(3, a=[3])
    table._merger._touched_ms["k=a"] += 50_000  # type: ignore[index]
    assert table.merge(now + 90_000) == 3
    assert small_counts(tmp_path) == {"k=a": 4, "k=b": 1}
    assert table.merge(now + 190_000) == 4
    # The same from files alone, as after a start.
    again = open_table(tmp_path, merging=Merging(60_000, 3, 10**6))
    again.put(4, a=[4])
    again.put(5, a=[5])
    assert again.merge(now + 30_000) == 0
    assert again.merge(now + 190_000) == 3


def test_nothing_is_read_while_nothing_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.ledger.ROLL_COUNT", 2)
    table = filled(tmp_path)
    table.merge(LATER_MS)
    # Whatever the test takes, the folder got a file at this moment.
    time_ms = now_ms()
    table.put(9, a=[99])
    calls: list[str] = []
    monkeypatch.setattr(LocalFolder, "read", lambda self, path: calls.append(path))
    monkeypatch.setattr(LocalFolder, "files", lambda self, path="": calls.append(path))
    for _ in range(3):
        assert table.merge(time_ms - 1) == 0
    assert calls == []


def test_files_of_another_pipeline_are_left_alone(tmp_path: Path) -> None:
    one, other = open_table(tmp_path, "one"), open_table(tmp_path, "other", None)
    for number in range(4):
        one.put(number, a=[number])
        other.put(number, a=[100 + number])
    before = {str(file) for file in data_files(tmp_path)}
    assert one.merge(LATER_MS) == 4
    one.sweep(AFTER_GRACE_MS)
    assert other.merge(LATER_MS) == 0
    kept = before & {str(file) for file in data_files(tmp_path)}
    assert len(kept) == 4 and {read_rows(Path(file))[0] for file in kept} == {100, 101, 102, 103}
    assert listed(tmp_path) == bare(tmp_path) == [0, 1, 2, 3, 100, 101, 102, 103]


def test_files_from_before_the_ledger_are_merged_too(tmp_path: Path) -> None:
    table, found = open_table(tmp_path), []
    for number in range(3):
        path = f"k=a/old-{number}.parquet"
        write_rows(tmp_path / path, [number])
        found.append(DataFile(path, (tmp_path / path).stat().st_size))
    table.ledger.commit(table.ledger.record(CARRIED, added=tuple(found)))
    assert table.merge(LATER_MS) == 3
    [merged] = files.read_files(str(tmp_path))
    assert (merged.rows, merged.checksum is None) == (3, False)


@pytest.mark.parametrize("damage", ["gone", "changed", "cut"])
def test_a_folder_with_a_damaged_file_is_left_for_the_audit(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = filled(tmp_path)
    file = sorted((tmp_path / "k=a").iterdir())[1]
    match damage:
        case "gone":
            file.unlink()
        case "changed":
            write_rows(file, [1, 2, 3, 4, 5])
        case "cut":
            file.write_bytes(file.read_bytes()[:-9])
    assert table.merge(LATER_MS) == 4
    assert small_counts(tmp_path) == {"k=a": 4, "k=b": 1}
    assert "k=a: 4 files not merged" in caplog.text
    assert table.merge(LATER_MS) == 0


def test_a_merged_file_without_all_rows_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path)
    monkeypatch.setattr(
        ArrowTable,
        "_rewrite",
        lambda self, paths, stage: write_rows(tmp_path / stage / "part-0.parquet", [1]),
    )
    assert table.merge(LATER_MS) == 0
    assert listed(tmp_path) == bare(tmp_path) == EXPECTED


# How much at once


def test_a_step_is_bounded_and_pauses_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "STEP_SIZE_MAX", 1)
    table = open_table(tmp_path)
    for number in range(3):
        table.put(number, a=[number], b=[number], c=[number])
    table.maintain()
    assert sorted(small_counts(tmp_path).values()) == [1, 3, 3]
    monkeypatch.setattr(compaction.time, "monotonic", lambda: 0.0)  # in the pause
    table.maintain()
    assert sorted(small_counts(tmp_path).values()) == [1, 3, 3]
    assert [table.merge(LATER_MS) for _ in range(3)] == [3, 3, 0]
    assert listed(tmp_path) == sorted([0, 1, 2] * 3)


def test_the_end_of_a_run_merges_all_and_waits_for_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "STEP_FILES_MAX", 1)
    filled(tmp_path)
    table, waits = open_table(tmp_path), []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if seconds:
            monkeypatch.setattr(replaced_files, "GRACE_MS", -1)
        return False

    table.finish(wait)
    assert listed(tmp_path) == bare(tmp_path) == EXPECTED
    assert small_counts(tmp_path) == {"k=a": 1, "k=b": 1}
    assert waits[:-1] == [0.0] * 3 and GRACE_MS / 1000 - 30 < waits[-1] <= GRACE_MS / 1000


def test_a_stop_ends_the_waiting(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.finish(lambda seconds: True)
    assert small_counts(tmp_path) == {"k=a": 4, "k=b": 4}
    table.merge(LATER_MS)
    table.finish(lambda seconds: seconds > 0)
    assert set(bare(tmp_path)) == set(EXPECTED) and len(bare(tmp_path)) > len(EXPECTED)


def grown(sizes: Iterable[int], plan: Merging) -> tuple[list[int], int]:
    """A folder that gets files one by one: what it has at the end, and the bytes written."""
    found: list[DataFile] = []
    written = 0
    for number, size in enumerate(sizes):
        found.append(DataFile(f"{number}", size))
        rounds = 0
        while due := groups([file for file in found if file.size < plan.file_size], plan):
            rounds += 1
            assert rounds <= 20
            for group in due:
                assert len(group) > 1
                total = sum(file.size for file in group)
                written += total
                # Merged files are often smaller than their parts.
                new = DataFile(f"{number}+{rounds}", max(1, total * 9 // 10))
                found = [*(file for file in found if file not in group), new]
        assert sum(file.size < plan.file_size for file in found) < plan.count_min
    return [file.size for file in found], written


@pytest.mark.parametrize("count_min", [2, 3, 5])
def test_any_sizes_end_in_few_small_files(count_min: int) -> None:
    chance = random.Random(7)
    for _ in range(30):
        sizes = [int(10 ** chance.uniform(0, 6.5)) for _ in range(100)]
        grown(sizes, Merging(0, count_min, 10**6))


def test_a_byte_is_not_written_over_and_over() -> None:
    count, size = 2000, 10
    found, written = grown([size] * count, Merging(0, 3, 10**9))
    assert len(found) <= 2
    # All of them each time would be count / 4 times on average.
    assert written < 40 * size * count


def test_many_files_at_once_become_files_of_the_size() -> None:
    many = [DataFile(f"{n}", 30) for n in range(1001)]
    due = groups(many, Merging(0, 3, 1000))
    assert {sum(file.size for file in group) for group in due[:-1]} == {1020}
    assert [file for group in due for file in group] == many
    assert len(groups([DataFile(f"{n}", 1) for n in range(2500)], Merging(0, 3, 10**6))) == 3


# The files that stay


def test_a_file_that_the_ledger_has_is_never_removed(tmp_path: Path) -> None:
    table = filled(tmp_path)
    live = [file.path for file in files.read_files(str(tmp_path))]
    found = replaced_files.Replaced(table.ledger)
    found.add("merge-1", [live[0], "k=a/none.parquet"], 0)
    again = replaced_files.Replaced(table.ledger)
    again.sweep(AFTER_GRACE_MS)
    assert listed(tmp_path) == EXPECTED
    assert again.wait_ms(0) is None


def test_a_list_of_replaced_files_that_is_damaged_is_told(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.merge(LATER_MS)
    path = tmp_path / "_penstock/ledger/test/merging.json"
    path.write_bytes(path.read_bytes().replace(b"k=a", b"k=b"))
    with pytest.raises(PipelineError, match=r"merging\.json is damaged \(its checksum is wrong\)"):
        open_table(tmp_path).maintain()


def test_replaced_files_are_removed_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced_files, "SWEEP_MAX", 3)
    table = filled(tmp_path)
    table.merge(LATER_MS)
    counts = []
    for _ in range(3):
        open_table(tmp_path).sweep(AFTER_GRACE_MS)
        counts.append(sum(1 for _ in data_files(tmp_path)))
    assert counts == [7, 4, 2]
    assert bare(tmp_path) == EXPECTED


# The list


def test_the_list_is_read_again_if_records_are_rolled_up_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.ledger.ROLL_COUNT", 4)
    table = open_table(tmp_path)
    for number in range(3):
        table.put(number, a=[number])
    read = LocalFolder.read
    left = [table]

    def rolling(self: LocalFolder, path: str) -> Any:
        found = read(self, path)
        if path.endswith("head.json") and left:
            left.pop().put(3, a=[3])  # rolls up all four
        return found

    monkeypatch.setattr(LocalFolder, "read", rolling)
    assert listed(tmp_path) == [0, 1, 2, 3]


def test_files_lists_the_table_as_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path, 1)
    assert main(["files", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == table_files(str(tmp_path)) and len(lines) == 2
    assert main(["files", "--json", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["path"] for each in found] == lines
    assert [each["rows"] for each in found] == [5, 1]
    assert found[0]["size"] == Path(lines[0]).stat().st_size


@pytest.mark.parametrize(
    ("place", "said"),
    [("none", "is not a folder"), ("", "has no ledger"), ("hdfs://x/y", "needs a Spark session")],
)
def test_what_has_no_list_is_told(
    tmp_path: Path, place: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place if "://" in place else str(tmp_path / place)
    assert main(["files", path]) == 1
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
