"""Tables with ledgers, as pipelines write them, but without Spark: for tests of the audit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import NodeError
from penstock.pipeline.audit_brokers import BrokerLogs
from penstock.pipeline.audit_ledgers import LEDGERS
from penstock.pipeline.coverage import Log, Span
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.ledger_records import CARRIED, MERGE, Batch, DataFile
from penstock.spark import cluster

NODE, TOPIC, CHANNEL = "n", "t", "archive"
INSTANCE = "0123456789abcdef"
IDENTITY = "0" * 31 + "1"
LOG = Log(CHANNEL, NODE, TOPIC, INSTANCE)


def span(start: int, end: int, count: int | None = None, log: Log = LOG) -> Span:
    return Span(log, start, end, end - start if count is None else count)


class Table:
    """A folder of Parquet files and the ledger of one pipeline."""

    def __init__(self, path: Path, pipeline: str = "archive", *, plain: bool = True) -> None:
        self.folder = LocalFolder(str(path))
        self.path = path
        self.ledger = Ledger(self.folder, f"{LEDGERS}/{pipeline}", pipeline, "parquet 1").load()
        self.ledger.plain = plain
        self.ledger.create(IDENTITY, ["parquet 1"])
        self.files: list[str] = []
        self._pipeline = pipeline
        self._batch = 0

    def write_file(self, name: str, indexes: Iterable[int], log: Log = LOG) -> DataFile:
        """A data file, and what the ledger says of it."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        indexes = list(indexes)
        columns: dict[str, Any] = {
            "node": [log.node] * len(indexes),
            "index": pa.array(indexes, pa.int64()),
            "body": [f"message {index}" for index in indexes],
        }
        if "topic=" not in name:
            columns["topic"] = [log.topic] * len(indexes)
        pq.write_table(pa.table(columns), target)
        size = target.stat().st_size
        return DataFile(name, size, len(indexes), self.folder.checksum(name))

    def batch(self, start: int, end: int, *, files: int = 1, log: Log = LOG) -> list[DataFile]:
        """A batch of a message for each index, in some files; in none it has no row."""
        spans = (span(start, end, log=log),)
        added = [
            self.write_file(
                f"topic={log.topic}/{self.ledger.seq + 1:08d}-{n:05d}-{self._pipeline}.parquet",
                range(start, end)[n::files],
                log,
            )
            for n in range(files)
        ]
        batch = Batch("q", self._batch, spans)
        self._batch += 1
        self.ledger.commit(self.ledger.batch_record(batch, spans, added))
        self.files += [file.path for file in added]
        return added

    def merge(self, files: Sequence[DataFile]) -> DataFile:
        """Put files together, as one step; the old ones go."""
        rows = [pq.ParquetFile(self.path / file.path).read() for file in files]
        name = f"{files[0].path.rpartition('/')[0]}/merge-{self.ledger.seq}.parquet"
        pq.write_table(pa.concat_tables(rows), self.path / name)
        size = (self.path / name).stat().st_size
        count = sum(file.rows or 0 for file in files)
        merged = DataFile(name, size, count, self.folder.checksum(name))
        removed = tuple(file.path for file in files)
        self.ledger.commit(self.ledger.record(MERGE, added=(merged,), removed=removed))
        for path in removed:
            (self.path / path).unlink()
            self.files.remove(path)
        self.files.append(name)
        return merged

    def carry(self, start: int, end: int) -> DataFile:
        """What an earlier version has written: its files are known by size."""
        file = self.write_file(f"topic={TOPIC}/old-{start}.parquet", range(start, end))
        known = DataFile(file.path, file.size)
        spans = (Span(LOG, start, end),)
        self.ledger.commit(self.ledger.record(CARRIED, spans=spans, added=(known,)))
        self.files.append(file.path)
        return known


@dataclass
class FakeCluster:
    """A broker with these messages; of those below ``whole_from`` it has removed some."""

    indexes: tuple[int, ...] = ()
    whole_from: int = 0
    low: int | None = None  # of the channel
    nodes: dict[str, Any] = field(default_factory=lambda: {NODE: object()})
    topic: str = TOPIC
    instance: str = INSTANCE
    away: bool = False
    identity: str = IDENTITY

    def log_of(self, uuid: str, topic: str) -> cluster.LogState | None:
        if self.away:
            raise NodeError("nsqd h:1 does not answer")
        if topic != self.topic:
            return None
        end = max([self.whole_from, self.low or 0, *(index + 1 for index in self.indexes)])
        first = self.indexes[0] if self.indexes else end
        pulls = {} if self.low is None else {CHANNEL: cluster.Pull(self.low, self.identity)}
        marks = (first, self.whole_from, end, end, end)
        return cluster.LogState(uuid, self.instance, *marks, (), pulls)

    def counts(self, uuid: str, ranges: Sequence[tuple[str, str, int, int]]) -> list[int | None]:
        return [
            sum(start <= index < end for index in self.indexes)
            if (topic, instance) == (self.topic, self.instance)
            else None
            for topic, instance, start, end in ranges
        ]

    def brokers(self) -> BrokerLogs:
        return BrokerLogs(self, {node: [self.topic] for node in self.nodes})
