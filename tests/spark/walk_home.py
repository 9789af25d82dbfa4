"""A pipeline of a walk, as it lies on disk: its folder, its sinks, what is left of its memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.pipeline.coverage import Log
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.known_targets import read_known
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.losses import Answers, Questions
from penstock.pipeline.offset_log import OffsetLog
from penstock.pipeline.spec import DeltaSink, ParquetSink, Pipeline, TopicSink
from penstock.pipeline.targets import ledger_path

CHANNEL = "c"
CHECKPOINT, BESIDE = "checkpoints/test", "checkpoints/test.ledger"


class Message(NamedTuple):
    node: str
    instance: str
    index: int
    body: bytes


@dataclass
class Home:
    """A pipeline's folder, and what a person at it says next."""

    pipeline: Pipeline
    folder: Path
    answers: Answers = field(default_factory=Answers)
    told: str = ""  # by the last run, "" if it succeeded
    identities: set[str] = field(default_factory=set)  # that it has had

    @property
    def tables(self) -> list[str]:
        """The folders of its tables."""
        sinks = self.pipeline.sinks
        return [each.path for each in sinks if isinstance(each, ParquetSink | DeltaSink)]

    @property
    def topic(self) -> str:
        """That it writes; "" if it writes tables only."""
        sinks = self.pipeline.sinks
        return next((each.topic for each in sinks if isinstance(each, TopicSink)), "")

    @property
    def topic_ledger_path(self) -> str:
        return f"topic-{self.topic}"

    @property
    def beside(self) -> Path:
        return self.folder / BESIDE

    def is_delta(self, table: str) -> bool:
        sinks = self.pipeline.sinks
        return any(isinstance(each, DeltaSink) and each.path == table for each in sinks)

    def ledger(self, table: str) -> Ledger:
        folder = LocalFolder(str(self.folder / table))
        return Ledger(folder, ledger_path(self.pipeline), "test", table).load()

    def topic_ledger(self) -> Ledger:
        folder = LocalFolder(str(self.beside))
        return Ledger(folder, self.topic_ledger_path, "test", "topic").load()

    def ledgers(self) -> Iterator[Ledger]:
        """Those that are there."""
        for table in self.tables:
            if (self.folder / table).exists():
                yield self.ledger(table)
        if self.topic and (self.beside / self.topic_ledger_path).exists():
            yield self.topic_ledger()

    def identity(self) -> str:
        """Who the pipeline is, by what is left of it."""
        told = [ledger.identity for ledger in self.ledgers()]
        if self.beside.exists():
            told.append(read_known(LocalFolder(str(self.beside))).identity)
        kept = self.folder / CHECKPOINT / "identity.json"
        if kept.exists():
            told.append(json.loads(kept.read_text())["identity"])
        return next((each for each in told if each), "")

    def known_logs(self) -> set[Log]:
        """The logs that anything which is left of the pipeline knows."""
        found = {log for ledger in self.ledgers() for log in ledger.coverage.logs}
        if self.beside.exists():
            for coverage in read_known(LocalFolder(str(self.beside))).targets.values():
                found |= set(coverage.logs)
        if (self.folder / CHECKPOINT).exists():
            offsets = OffsetLog(LocalFolder(str(self.folder / CHECKPOINT)))
            for positions in (offsets.begin(), *map(offsets.positions, offsets.planned())):
                found |= {
                    Log(channel, node, topic, position.instance)
                    for channel, nodes in (positions or {}).items()
                    for node, topics in nodes.items()
                    for topic, position in topics.items()
                }
        return found

    def waiting(self) -> Any:
        return Questions(LocalFolder(str(self.beside)), Answers()).waiting
