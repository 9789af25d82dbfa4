"""Where a target without a ledger gets one from (R43, R44).

a pipeline that never ran            an empty one
a table of a version without them    from what its checkpoint has of the last batch in the table
a sink that is new                   from the position of the checkpoint
a ledger that was lost               from the sink's own log: the brokers', or Delta's.  A Parquet
                                     table has none: stop, or do what a person answers
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.pipeline import legacy
from penstock.pipeline.coverage import Coverage, Span
from penstock.pipeline.delta import DeltaSinkTable
from penstock.pipeline.files import delta_files, is_delta
from penstock.pipeline.folders import LocalFolder, spark_path
from penstock.pipeline.known_targets import Known
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.ledger_records import CARRIED, DataFile
from penstock.pipeline.losses import BEGIN_ANEW, UNKNOWN, Questions, Waiting
from penstock.pipeline.offset_log import OffsetLog
from penstock.pipeline.parquet import STATE
from penstock.pipeline.recorded_ends import Done
from penstock.pipeline.spec import DeltaSink, Pipeline
from penstock.pipeline.staged_files import is_data
from penstock.pipeline.targets import (
    INVALID,
    TableTarget,
    Target,
    TopicTarget,
    coverage_in,
    losses_in,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.pipeline")

STEP = re.compile(r"(?:^|/)(\d{8,})-\d{5}-[0-9a-f]{8}\.parquet$")  # of a data file's name


class Origins:
    """Creates the missing ledgers of a pipeline's targets."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        identity: str,
        targets: Sequence[Target],
        offsets: OffsetLog,
        known: Known,
        questions: Questions,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._identity = identity
        self._targets = targets
        self._sinks = [target.name for target in targets]
        self._offsets = offsets
        self._known = known
        self._questions = questions
        self._adopted = False  # a table without its ledger, as a person answered

    def find(self) -> None:
        """Give every target a ledger."""
        without = [target for target in self._targets if not target.ledger.exists]
        if not without:
            return
        first = len(without) == len(self._targets) and not self._known.targets
        for target in list(without):
            # In any case a topic resumes after the last step that was published.
            if isinstance(target, TopicTarget) and self._known_to_sink(target) is not None:
                self._restore(target)
                without.remove(target)
        if first and self._offsets.planned():
            for target in without:
                self._carry_over(target)
        elif first:
            self._begin(without)
        else:
            known = set(self._known.targets)
            for target in self._targets:
                known |= set(target.ledger.head.sinks)
            for target in without:
                if target.name in known:
                    self._restore(target)
                else:
                    self._add(target)
            if self._adopted:
                self._questions.answered()

    def _begin(self, targets: Iterable[Target]) -> None:
        """For a pipeline that never ran, unless its tables show that it did."""
        for target in targets:
            found = self._unclaimed(target)
            if found and self._questions.answer != BEGIN_ANEW:
                checkpoint = self._offsets.folder.uri
                text = (
                    f"{target.path} was written by a pipeline, and neither a ledger nor a "
                    f"checkpoint shows which messages it has: {checkpoint} has no batch.  "
                    "Restore the checkpoint if there is a backup, or write to another folder"
                )
                raise self._questions.stop(Waiting(UNKNOWN), text, (BEGIN_ANEW,))
        adopting = self._questions.answer == BEGIN_ANEW
        for target in targets:
            claimed = sorted(self._unclaimed(target)) if adopting else []
            target.ledger.create(self._identity, self._sinks)
            for query in claimed:
                files = tuple(_files_of(target)) if query == claimed[0] else ()
                target.ledger.commit(target.ledger.record(CARRIED, added=files, claimed=query))
        if adopting:
            self._questions.answered()

    def _unclaimed(self, target: Target) -> set[str]:
        """Streams of a version without ledgers that nobody has taken over."""
        if not isinstance(target, TableTarget) or isinstance(target.sink, DeltaSink):
            return set()
        folder = target.ledger.folder
        claimed: set[str] = set()
        for path in sorted({_ledger_of(file.path) for file in folder.files(f"{STATE}/ledger")}):
            if path:
                claimed |= set(Ledger(folder, path, "", "").load().head.claimed)
        return legacy.queries_in(folder) - claimed

    def _carry_over(self, target: Target) -> None:
        """The ledger of a table begins with what its own records and the checkpoint say."""
        query = self._offsets.query
        batch = _finished(target, query)
        committed = self._offsets.committed()
        if committed and _may_lag(target, batch):
            batch = max(committed[-1], -1 if batch is None else batch)
        reached = {} if batch is None else Done(self._offsets).reached_by(batch)
        target.ledger.create(self._identity, self._sinks)
        began = _beginnings(self._spark, target) if reached else {}
        spans = [
            Span(found, min(began.get((found.topic, found.node), 0), index), index)
            for found, index in reached.items()
        ]
        files = tuple(_files_of(target))
        fields: dict[str, Any] = {"spans": tuple(spans), "added": files, "claimed": query}
        target.ledger.commit(target.ledger.record(CARRIED, **fields))
        log.info(
            "pipeline=%s: %s has a ledger now, from batch %s of its checkpoint on",
            *(self._pipeline.name, target.name, "none" if batch is None else batch),
        )

    def _restore(self, target: Target) -> None:
        """Restore a lost ledger from its sink's own log; without one, rows may be missing."""
        if (found := self._known_to_sink(target)) is not None:
            seq, summary = found
            target.ledger.head.coverage, target.ledger.head.before = coverage_in(summary)
            target.ledger.head.losses = losses_in(summary)
            target.ledger.create(self._identity, self._sinks, seq)
            if files := tuple(_files_of(target)):
                target.ledger.commit(target.ledger.record(CARRIED, added=files))
            log.warning(
                "pipeline=%s: the ledger of %s was lost; restored from its own log up to step %d",
                *(self._pipeline.name, target.name, seq),
            )
        elif any(True for _ in _files_of(target)):
            self._adopt(target)
        else:
            known = self._known.of(target.name)
            target.ledger.head.coverage = Coverage(
                Span(found, start, start, 0)
                for found in known.logs
                if (start := known.start(found)) is not None
            )
            target.ledger.create(self._identity, self._sinks)

    def _known_to_sink(self, target: Target) -> tuple[int, dict[str, Any]] | None:
        """What brokers or a Delta table's log know of a ledger: its last step, and the summary."""
        if isinstance(target, TopicTarget):
            return target.lost(self._identity)
        return target.table.lost() if isinstance(target.table, DeltaSinkTable) else None

    def _adopt(self, target: Target) -> None:
        """A table with files and without its ledger: which messages they have is unknown."""
        if self._questions.waiting is None or self._questions.answer != BEGIN_ANEW:
            text = (
                f"{target.path} has files, and its ledger {target.ledger.uri} is missing: which "
                "messages they have is unknown.  Restore the folder _penstock from a backup, or "
                "remove the files: the rows are then read again, as far as brokers have them"
            )
            raise self._questions.stop(Waiting(UNKNOWN), text, (BEGIN_ANEW,))
        spans = tuple(Span(found, 0, end) for found, end in Done(self._offsets).reached.items())
        files = tuple(_files_of(target))
        # Files are named by step: existing names must not be used again.
        steps = [int(match[1]) for file in files if (match := STEP.search(file.path))]
        target.ledger.create(self._identity, self._sinks, max(steps, default=0))
        target.ledger.commit(target.ledger.record(CARRIED, spans=spans, added=files))
        self._adopted = True

    def _add(self, target: Target) -> None:
        """A new sink: it starts at the position of the checkpoint."""
        reached = Done(self._offsets).reached
        spans = tuple(Span(found, index, index, 0) for found, index in reached.items())
        target.ledger.create(self._identity, self._sinks)
        if spans:
            target.ledger.commit(target.ledger.record(CARRIED, spans=spans))


def _finished(target: Target, query: str) -> int | None:
    """The last batch that a target of a version without ledgers has."""
    if isinstance(target, TopicTarget):
        return target.decided(query)
    folder = target.ledger.folder
    if isinstance(target.sink, DeltaSink):
        assert isinstance(folder, LocalFolder)
        return legacy.finished_delta_batch(folder, query)
    return legacy.finished_batch(folder, query)


def _may_lag(target: Target, batch: int | None) -> bool:
    """Whether its own records omit batches without a row for it."""
    if isinstance(target.sink, DeltaSink):
        return batch is not None
    return target.role == INVALID or isinstance(target, TopicTarget)


def _files_of(target: Target) -> Iterable[DataFile]:
    """The data files that a table has from before its ledger.

    The folder of a Delta table also has files that no version, or only an older one, has: its own
    log says which are the table's.
    """
    if not isinstance(target, TableTarget):
        return
    folder = target.ledger.folder
    if isinstance(target.sink, DeltaSink):
        yield from delta_files(folder) if is_delta(folder) else ()
        return
    for file in folder.files():
        if is_data(file.path) and not file.path.startswith(f"{STATE}/"):
            yield DataFile(file.path, file.size)


def _beginnings(spark: SparkSession, target: Target) -> dict[tuple[str, str], int]:
    """The first index of each (topic, node) of a table, if its rows have these columns."""
    if not isinstance(target, TableTarget) or not any(True for _ in _files_of(target)):
        return {}
    rows = _rows_of(spark, target)
    if not {"topic", "node", "index"} <= set(rows.columns):
        return {}
    from pyspark.sql import functions as F

    found = rows.groupBy("topic", "node").agg(F.min("index").alias("first"))
    return {(row["topic"], row["node"]): int(row["first"]) for row in found.collect()}


def _rows_of(spark: SparkSession, target: TableTarget) -> Any:
    paths = [spark_path(f"{target.path}/{file.path}") for file in _files_of(target)]
    reader = spark.read.option("basePath", spark_path(target.path)).option("mergeSchema", "true")
    return reader.parquet(*paths)


def _ledger_of(path: str) -> str:
    """The ledger that a file below ``_penstock/ledger`` belongs to."""
    words = path.split("/")
    return "/".join(words[:3]) if len(words) == 4 and words[3] == "head.json" else ""
