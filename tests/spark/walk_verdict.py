"""The judgement at the end of a walk: what a pipeline has written, against what was published.

Rule 1: no message is in a table or topic twice, and no row is of no message.
Rule 2: a message that is not in it was told: it lies in a loss that the ledger records, or it is
        excused (see `walk.py`).
Rule 3: what the ledger says of files and counts is what lies in the folder.
Rule 4: the audit says so too: what it finds to be missing is what is excused, and nothing else.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.pipeline.audit import Examination
from penstock.pipeline.audit_findings import Files, Report
from penstock.pipeline.coverage import Log
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.replaced_files import Replaced
from tests.spark.ledger import read_log
from tests.spark.topics import address
from tests.spark.walk_home import CHANNEL, Home, Message
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Key = tuple[int, bytes]
Auditor = Callable[[LocalFolder, dict[str, str]], Report]


class RangesAudit(Examination):
    """The audit without Spark: all but the rows, which are judged here."""

    def _rows(self, files: Files) -> DataFrame | None:
        return None


def audit_here(folder: LocalFolder, parameters: dict[str, str]) -> Report:
    return RangesAudit(None, folder, parameters).run()  # type: ignore[arg-type]


class Judgement:
    """Of one pipeline; ``published`` is all that there was, ``excused`` what nobody could know."""

    def __init__(
        self,
        home: Home,
        nsqds: Sequence[Nsqd],
        topic: str,
        published: Sequence[Message],
        excused: Collection[Message],
        auditor: Auditor = audit_here,
    ) -> None:
        self._home = home
        self._nsqds = nsqds
        self._topic = topic
        self._published = {(each.index, each.body): each for each in published}
        self._excused = excused
        self._auditor = auditor

    def judge(self) -> None:
        for table in self._home.tables:
            self._judge_table(table)
        # A pipeline that was begun anew under another identity publishes what the one before had.
        if self._home.topic and len(self._home.identities) == 1:
            self._judge_topic()

    def _judge_table(self, table: str) -> None:
        ledger = self._home.ledger(table)
        rows = list(self._rows(table, ledger))
        lacking = self._judge_rows(table, ledger, rows)
        self._judge_counts(table, ledger, [self._published[row] for row in rows])
        self._audit(table, ledger, lacking)

    def _judge_topic(self) -> None:
        """Its messages have new indexes: bodies are compared."""
        bodies = {body: index for index, body in self._published}
        found = [body for nsqd in self._nsqds for body in _bodies(nsqd, self._home.topic)]
        assert set(found) <= bodies.keys(), "the topic has messages of no message"
        rows = [(bodies[body], body) for body in found]
        self._judge_rows("topic", self._home.topic_ledger(), rows)

    def _judge_rows(self, name: str, ledger: Ledger, rows: Sequence[Key]) -> list[Message]:
        """Rules 1 and 2; returns what is not there."""
        counts = Counter(rows)
        assert counts.keys() <= self._published.keys(), f"{name}: rows of no message"
        twice = [key for key, count in counts.items() if count > 1]
        assert not twice, f"{name}: twice: {[(index, body[:6]) for index, body in twice]}"
        lacking = [each for key, each in self._published.items() if key not in counts]
        silent = [
            each
            for each in lacking
            if each not in self._excused and not _is_told(each, self._topic, ledger)
        ]
        assert not silent, (
            f"{name}: missing and not told: "
            f"{[(each.instance, each.index, each.body[:6]) for each in silent]}"
        )
        return lacking

    def _rows(self, table: str, ledger: Ledger) -> Iterator[Key]:
        folder = self._home.folder / table
        live = ledger.live_files()
        lying = {
            str(path.relative_to(folder))
            for path in folder.rglob("*.parquet")
            if not path.relative_to(folder).parts[0].startswith("_")
        }
        if self._home.is_delta(table):
            # Older versions need what was merged, and a kill leaves files of no version.
            assert live.keys() == _delta_paths(str(folder)) <= lying, table
        else:
            replaced = {path for swap in Replaced(ledger)._swaps for path in swap.paths}
            assert live.keys() <= lying <= live.keys() | replaced, f"{table}: {live.keys() ^ lying}"
        for path, file in live.items():
            assert file.size == (folder / path).stat().st_size
            assert file.checksum == ledger.folder.checksum(path)
            found = pq.read_table(folder / path).to_pylist()
            assert len(found) == file.rows
            for row in found:
                message = self._published.get((row["index"], row["body"]))
                assert message is not None, f"{table}: a row of no message"
                assert (row["node"], row["topic"]) == (message.node, self._topic)
                yield row["index"], row["body"]

    def _judge_counts(self, table: str, ledger: Ledger, rows: Sequence[Message]) -> None:
        for span in ledger.coverage:
            if span.messages is None:
                continue
            inside = [
                row
                for row in rows
                if row.instance == span.log.instance and span.start <= row.index < span.end
            ]
            assert len(inside) == span.messages, f"{table}: {span}, and {len(inside)} rows"
        outside = [
            row
            for row in rows
            if not any(
                span.log.instance == row.instance and span.start <= row.index < span.end
                for span in ledger.coverage
            )
        ]
        assert not outside, f"{table}: rows that the ledger does not have: {outside}"

    def _audit(self, table: str, ledger: Ledger, lacking: Sequence[Message]) -> None:
        """Rule 4."""
        folder = LocalFolder(str(self._home.folder / table))
        parameters = {"topics": self._topic, "nsqd": ",".join(map(address, self._nsqds))}
        report = self._auditor(folder, parameters)
        told = json.dumps(report.as_json(), indent=1)
        assert list(report.losses) == list(ledger.head.losses), told
        assert not report.files.faults and not report.doubts, told
        untold = [each for each in lacking if not _is_told(each, self._topic, ledger)]
        for topic in report.topics:
            assert not topic.unproven, told
            for fault in topic.faults:
                inside = [
                    each
                    for each in untold
                    if each.instance == fault.log.instance and fault.start <= each.index < fault.end
                ]
                assert inside and fault.count in (None, len(inside)), f"{table}: {fault}\n{told}"


def _is_told(message: Message, topic: str, ledger: Ledger) -> bool:
    log = Log(CHANNEL, message.node, topic, message.instance)
    return any(
        loss.span.log == log and loss.span.start <= message.index < loss.span.end
        for loss in ledger.head.losses
    )


def _bodies(nsqd: Nsqd, topic: str) -> list[bytes]:
    if nsqd.get(f"/log?topic={topic}").status == 404:
        return []
    return [body for _, body in read_log(nsqd, topic)]


def _delta_paths(path: str) -> set[str]:
    """The files of the newest version."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(path):
        return set()
    actions = pa.table(DeltaTable(path).get_add_actions())
    return {unquote(each) for each in actions["path"].to_pylist()}
