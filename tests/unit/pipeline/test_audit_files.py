from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import PipelineError
from penstock.pipeline import audit_findings, ledger
from penstock.pipeline.audit_files import Progress, check_files, is_visible
from penstock.pipeline.audit_findings import CHANGED, MISSING, STRANGE, Topics
from penstock.pipeline.audit_ledgers import LEDGERS, MERGING, open_ledgers
from penstock.pipeline.audit_ranges import judge_ranges
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.ledger_records import MERGE, DataFile, packed
from tests.unit.pipeline.audited import IDENTITY, FakeCluster, Table, span

DAMAGE_COUNT = 1000
END = 130


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def faults(table: Table) -> list[tuple[str, str]]:
    found = check_files(table.folder, open_ledgers(table.folder))
    return [(fault.kind, fault.path) for fault in found.faults]


def test_a_table_as_it_was_written_is_whole(table: Table) -> None:
    one = table.batch(0, 10)
    two = table.batch(10, 20, files=2)
    table.merge([*one, *two])
    table.carry(20, 30)
    (table.path / "_SUCCESS").touch()
    (table.path / ".hidden.crc").touch()
    found = check_files(table.folder, open_ledgers(table.folder))
    assert (found.faults, found.count, found.unchecked) == ([], 2, 1)


def test_each_kind_of_damage_names_its_file(table: Table) -> None:
    gone, copied, cut, flipped = (table.batch(10 * n, 10 * n + 10)[0].path for n in range(4))
    (table.path / gone).unlink()
    shutil.copy(table.path / copied, table.path / "topic=t/copy.parquet")
    data = (table.path / cut).read_bytes()
    (table.path / cut).write_bytes(data[:-1])
    data = (table.path / flipped).read_bytes()
    (table.path / flipped).write_bytes(bytes([data[0] ^ 1]) + data[1:])
    assert sorted(faults(table)) == sorted(
        [(MISSING, gone), (STRANGE, "topic=t/copy.parquet"), (CHANGED, cut), (CHANGED, flipped)]
    )


def test_a_file_with_other_rows_of_the_same_size_is_found_without_a_checksum(table: Table) -> None:
    file = table.write_file("a.parquet", range(10))
    known = DataFile(file.path, file.size, 11)
    table.ledger.commit(table.ledger.record(MERGE, added=(known,)))
    [fault] = check_files(table.folder, open_ledgers(table.folder)).faults
    assert (fault.kind, fault.detail) == (CHANGED, "10 rows instead of 11 rows")


def test_ledgers_of_two_pipelines_share_a_folder(table: Table) -> None:
    table.batch(0, 10)
    other = Table(table.path, "other")
    other.batch(0, 10, files=2)
    assert faults(table) == []
    (table.path / other.files[1]).unlink()
    [fault] = check_files(table.folder, open_ledgers(table.folder)).faults
    assert (fault.kind, fault.path, fault.pipeline) == (MISSING, other.files[1], "other")


def test_a_head_that_is_gone_is_told_also_if_all_is_rolled_up(
    table: Table, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ledger, "ROLL_COUNT", 2)
    table.batch(0, 10)
    table.batch(10, 20)
    (table.path / LEDGERS / "archive" / "head.json").unlink()
    with pytest.raises(PipelineError, match=r"head\.json is missing"):
        open_ledgers(table.folder)


def test_what_a_merge_has_replaced_may_still_lie_there(table: Table) -> None:
    file = table.batch(0, 10)[0]
    data = (table.path / file.path).read_bytes()
    table.merge([file])
    (table.path / file.path).write_bytes(data)
    assert faults(table) == [(STRANGE, file.path)]
    table.folder.write(f"{LEDGERS}/archive/{MERGING}", packed({"removed": [file.path]}))
    assert faults(table) == []
    (table.path / file.path).unlink()
    assert faults(table) == []
    [opened] = open_ledgers(table.folder)
    assert opened.hidden(table.folder) == {file.path}


def test_a_step_that_is_under_way_is_no_fault(table: Table) -> None:
    old = table.batch(0, 10)[0]
    new = table.write_file("topic=t/merge.parquet", range(10))
    record = table.ledger.record(MERGE, added=(new,), removed=(old.path,))
    table.ledger.seal({"stage": "s", "moves": [], "record": record.as_json()})
    assert faults(table) == []
    [opened] = open_ledgers(table.folder)
    assert opened.hidden(table.folder) == {old.path}
    (table.path / old.path).unlink()
    assert faults(table) == []
    (table.path / new.path).unlink()
    [opened] = open_ledgers(table.folder)
    assert opened.hidden(table.folder) == {new.path}
    table.ledger.commit(record)
    assert faults(table) == [(MISSING, new.path)]


def test_names_that_readers_pass_over() -> None:
    assert is_visible("a.parquet") and is_visible("_x=1/a.parquet")
    hidden = (".a", "_a", "_penstock/a.parquet", "a/.b/c.parquet", "a/_b.parquet")
    assert not any(is_visible(path) for path in hidden)


def test_faults_beyond_the_most_are_counted(table: Table, monkeypatch: Any) -> None:
    monkeypatch.setattr(audit_findings, "FAULTS_MAX", 2)
    table.batch(0, 10, files=5)
    for path in table.files:
        (table.path / path).unlink()
    found = check_files(table.folder, open_ledgers(table.folder))
    assert (len(found.faults), found.left_out) == (2, 3)


def test_progress_is_told_every_few_seconds(caplog: Any) -> None:
    now_s = 0.0
    progress = Progress("files", lambda: now_s)
    with caplog.at_level("INFO", "penstock.pipeline"):
        for now_s in (1.0, 4.9, 5.0, 6.0, 9.9, 10.1):
            progress.report(f"{now_s}")
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["5.0", "10.1"]


# Delta


def make_delta(path: Path) -> tuple[Table, list[DataFile]]:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    table = Table(path)
    schema = pa.schema(
        [
            ("node", pa.string()),
            ("index", pa.int64()),
            ("body", pa.string()),
            ("topic", pa.string()),
        ]
    )
    delta = DeltaTable.create(str(path), schema, partition_by=["topic"])
    names = ["topic=t/a.parquet", "topic=a%2Fb/b.parquet", "topic=x y/c.parquet"]
    files = [table.write_file(name, range(10 * n, 10 * n + 10)) for n, name in enumerate(names)]
    values = ["t", "a/b", "x y"]
    actions = [
        AddAction(file.path, file.size, {"topic": value}, 0, True, "{}")
        for file, value in zip(files, values, strict=True)
    ]
    delta.create_write_transaction(actions, "append", schema, ["topic"])
    table.ledger.commit(table.ledger.record(MERGE, added=tuple(files)))
    return table, files


def test_the_live_files_of_a_delta_table_are_compared(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table, files = make_delta(tmp_path / "delta")
    # One that no version of the table has is nothing to its readers.
    shutil.copy(table.path / files[0].path, table.path / "topic=t/killed.parquet")
    assert faults(table) == []
    (table.path / files[1].path).unlink()
    assert faults(table) == [(MISSING, files[1].path)]
    DeltaTable(str(table.path)).delete("topic = 't'")
    assert sorted(faults(table)) == sorted([(MISSING, files[0].path), (MISSING, files[1].path)])


# A thousand damages


def build(path: Path) -> Table:
    """Records, rolls, merges, files of before, and a batch without rows."""
    table = Table(path)
    table.carry(0, 10)
    small = [file for n in range(1, 6) for file in table.batch(10 * n, 10 * n + 10, files=2)]
    table.merge(small[:4])
    table.merge(small[4:6])
    for n in range(6, 13):
        table.batch(10 * n, 10 * n + 10)
    return table


Undo = Callable[[], None]


class Damages:
    """Ways to damage a table; each returns how to mend it."""

    def __init__(self, table: Table, chance: random.Random) -> None:
        self.table = table
        self.chance = chance
        self.all = (
            self.remove, self.copy, self.cut, self.grow, self.flip, self.replace, self.swap,
            self.remove_state, self.flip_state, self.cut_state,
        )  # fmt: skip

    def _file(self) -> Path:
        return self.table.path / self.chance.choice(self.table.files)

    def _recent(self) -> Path:
        """One whose checksum is known."""
        return self.table.path / self.chance.choice(self.table.files[1:])

    def _state(self) -> Path:
        return self.chance.choice(sorted((self.table.path / LEDGERS / "archive").glob("*.json")))

    @staticmethod
    def _kept(file: Path) -> tuple[bytes, Undo]:
        data = file.read_bytes()
        return data, lambda: (file.write_bytes(data), None)[1]

    def remove(self) -> Undo:
        file = self._file()
        _, undo = self._kept(file)
        file.unlink()
        return undo

    def copy(self) -> Undo:
        file = self._file()
        copied = file.with_name(f"{self.chance.randrange(10**6)}-{file.name}")
        if self.chance.random() < 0.3:
            copied = self.table.path / f"topic=other/{file.name}"
            copied.parent.mkdir(exist_ok=True)
        shutil.copy(file, copied)
        return copied.unlink

    def cut(self) -> Undo:
        file = self._file()
        data, undo = self._kept(file)
        file.write_bytes(data[: self.chance.randrange(len(data))])
        return undo

    def grow(self) -> Undo:
        file = self._file()
        data, undo = self._kept(file)
        file.write_bytes(data + bytes(self.chance.randrange(1, 100)))
        return undo

    def _flip(self, file: Path) -> Undo:
        data, undo = self._kept(file)
        changed = bytearray(data)
        changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        file.write_bytes(changed)
        return undo

    def flip(self) -> Undo:
        return self._flip(self._recent())

    def replace(self) -> Undo:
        """Another file of the table in its place."""
        file, other = self.chance.sample(self.table.files[1:], 2)
        _, undo = self._kept(self.table.path / file)
        shutil.copy(self.table.path / other, self.table.path / file)
        return undo

    def swap(self) -> Undo:
        """The same number of rows, other messages."""
        file = self._recent()
        _, undo = self._kept(file)
        rows = self.chance.randrange(1000)
        self.table.write_file(str(file.relative_to(self.table.path)), range(rows, rows + 10))
        return undo

    def remove_state(self) -> Undo:
        """A record, a roll or the head of the ledger."""
        file = self._state()
        _, undo = self._kept(file)
        file.unlink()
        return undo

    def flip_state(self) -> Undo:
        return self._flip(self._state())

    def cut_state(self) -> Undo:
        file = self._state()
        data, undo = self._kept(file)
        file.write_bytes(data[: self.chance.randrange(len(data))])
        return undo


def is_whole(table: Table, brokers: Any) -> bool:
    """Files and ledger, as the audit proves them; a damaged ledger is an error of its own."""
    folder = LocalFolder(str(table.path))
    try:
        ledgers = open_ledgers(folder)
        found = check_files(folder, ledgers)
    except PipelineError:
        return False
    topics = Topics()
    judge_ranges(ledgers, brokers, ["*"], topics, from_first=True)
    return not found.faults and not any(topic.faults for topic in topics.all())


def test_a_thousand_random_damages_are_found(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger, "ROLL_COUNT", 5)
    table = build(tmp_path / "table")
    brokers = FakeCluster(whole_from=END, low=END).brokers()
    assert is_whole(table, brokers)
    seed = 15
    for number in range(DAMAGE_COUNT):
        chance = random.Random(f"{seed}-{number}")
        damage = chance.choice(Damages(table, chance).all)
        undo = damage()
        assert not is_whole(table, brokers), (seed, number, damage.__name__)
        undo()
        if number % 50 == 0:
            assert is_whole(table, brokers), (seed, number, damage.__name__)
    assert is_whole(table, brokers)


def test_ranges_that_a_ledger_lacks_are_found(tmp_path: Path) -> None:
    """With their rows: whatever set of batches is left out, but for the first ones."""
    chance = random.Random(15)
    brokers = FakeCluster(whole_from=END, low=END).brokers()
    for number in range(40):
        path = tmp_path / str(number)
        table = Table(path)
        lacking = set(chance.sample(range(1, 13), chance.randrange(4)))
        for batch in set(range(13)) - lacking:
            table.batch(10 * batch, 10 * batch + 10)
        assert is_whole(table, brokers) == (not lacking), (number, lacking)


def test_a_ledger_written_in_between_is_read_again(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    [before] = open_ledgers(table.folder)
    table.batch(0, 10)
    [after] = open_ledgers(table.folder)
    assert before.state != after.state
    again = Ledger(table.folder, table.ledger.path, "archive", "").load()
    assert again.identity == IDENTITY and again.head.plain
    assert list(again.coverage) == [span(0, 10)]
