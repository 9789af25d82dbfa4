"""Before a query starts: tables and checkpoint are compared, and the tables are right (R44).

    checkpoint missing, or older than a table    it is moved aside, and a new one begins where the
                                                 tables end, at the lowest of several
    a table missing, or older than it            stop, with what is missing and what to run
    no ledger yet                                it begins with what the checkpoint says of the
                                                 last batch that the table has (`legacy.py`)
    a sink that was not there before             begins now

Rule 1: what was sealed or decided is finished before anything is judged.
Rule 2: nothing is deleted: a checkpoint is renamed.
Rule 3: state of SQL lives in the checkpoint only, so such a pipeline is never begun anew by itself.
"""

from __future__ import annotations

import datetime
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import DataWouldBeLostError, PipelineError
from penstock.pipeline import checkpoints, legacy
from penstock.pipeline.coverage import Coverage, Log, Span
from penstock.pipeline.delta import DeltaSinkTable
from penstock.pipeline.done import Done, Place, is_dropped, newest_logs, places
from penstock.pipeline.folders import Folder, LocalFolder, open_folder
from penstock.pipeline.identity import PipelineIdentity, identity_of
from penstock.pipeline.ledger import Ledger, now_ms
from penstock.pipeline.ledger_records import (
    BEGUN,
    CARRIED,
    LOSS,
    Accepted,
    DataFile,
    packed,
    unpacked,
)
from penstock.pipeline.lock import ledger_folder
from penstock.pipeline.losses import (
    ACCEPT,
    BEGIN_ANEW,
    GONE,
    LACKING,
    READ_AGAIN,
    UNKNOWN,
    Answers,
    Questions,
    Waiting,
    listed,
)
from penstock.pipeline.offset_log import ByChannel, OffsetLog
from penstock.pipeline.parquet import STATE
from penstock.pipeline.spec import DeltaSink, Pipeline
from penstock.pipeline.staged import is_data
from penstock.pipeline.targets import (
    INVALID,
    TableTarget,
    Target,
    TopicTarget,
    coverage_in,
    targets_of,
)
from penstock.spark.offsets import INDEX_MAX, Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.pipeline")

KNOWN = "known.json"
STEP = re.compile(r"(?:^|/)(\d{8,})-\d{5}-[0-9a-f]{8}\.parquet$")  # of a data file's name


@dataclass(frozen=True, slots=True)
class Settled:
    """Where a query goes on."""

    identity: PipelineIdentity
    targets: tuple[Target, ...]
    offsets: OffsetLog
    resume: ByChannel  # where a new query begins; empty if a checkpoint or the source says it
    accepted: tuple[Span, ...]  # losses that are accepted
    questions: Questions
    beside: Folder

    def note(self) -> None:
        """Logs were found that the ledgers did not have at the start."""
        note_known(self.beside, self.identity.text, self.targets)


class Settling:
    """One comparison; ``stateful``: the SQL keeps state in the checkpoint."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, answers: Answers, *, stateful: bool
    ) -> None:
        self._pipeline = pipeline
        self._stateful = stateful
        self._answers = answers
        self._spark = spark
        self._beside = open_folder(spark, ledger_folder(pipeline))
        self._checkpoint = open_folder(spark, pipeline.checkpoint_path)
        self._offsets = OffsetLog(self._checkpoint)
        self._questions = Questions(self._beside, answers)
        self._targets = list(targets_of(spark, pipeline))
        self._known = _read_known(self._beside)
        self._identity = PipelineIdentity("")
        self._adopted = False  # a table without its ledger, because a person says so

    def settle(self) -> Settled:
        ledgers = [target.ledger for target in self._targets]
        told = [ledger.identity for ledger in ledgers]
        self._identity = identity_of(self._checkpoint, [*told, str(self._known["identity"])])
        self._check_owner()
        self._find_ledgers()
        for target in self._targets:
            target.recover()
        self._accept_gone()
        self._judge_tables()
        self._judge_checkpoint()
        self._note()
        begin = {} if self._offsets.committed() else self._offsets.begin()
        return Settled(
            *(self._identity, tuple(self._targets), self._offsets, begin),
            *(tuple(accepted_by_all(ledgers)), self._questions, self._beside),
        )

    # Ledgers

    def _check_owner(self) -> None:
        """All ledgers are of one pipeline."""
        for target in self._targets:
            if target.ledger.exists and target.ledger.identity != self._identity.text:
                raise PipelineError(
                    f"{target.ledger.uri} belongs to another pipeline of the name "
                    f"{self._pipeline.name}: give this one another name, or another output"
                )

    @property
    def _sinks(self) -> list[str]:
        return [target.name for target in self._targets]

    def _find_ledgers(self) -> None:
        """Every target has a ledger then."""
        without = [target for target in self._targets if not target.ledger.exists]
        if not without:
            return
        first = len(without) == len(self._targets) and not self._known["targets"]
        if first and self._offsets.planned():
            for target in without:
                self._carry_over(target)
        elif first:
            self._begin(without)
        else:
            known = set(self._known["targets"])
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
        """A pipeline that never ran, unless its tables say otherwise."""
        for target in targets:
            found = self._unclaimed(target)
            if found and self._questions.answer != BEGIN_ANEW:
                text = (
                    f"{target.path} was written by a pipeline, and neither a ledger nor a "
                    f"checkpoint says which messages it has: {self._checkpoint.uri} has no batch.  "
                    "Put the checkpoint back if there is a backup, or write to another folder"
                )
                raise self._questions.stop(Waiting(UNKNOWN), text, (BEGIN_ANEW,))
        begin_anew = self._questions.answer == BEGIN_ANEW
        for target in targets:
            claimed = sorted(self._unclaimed(target)) if begin_anew else []
            target.ledger.create(self._identity.text, self._sinks)
            for query in claimed:
                files = tuple(_files_of(target)) if query == claimed[0] else ()
                target.ledger.commit(target.ledger.record(CARRIED, added=files, claimed=query))
        if begin_anew:
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
        target.ledger.create(self._identity.text, self._sinks)
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
        """A ledger that was there and is gone: its sink may know it, or rows are missing."""
        if (found := self._known_to_sink(target)) is not None:
            seq, told = found
            target.ledger.head.coverage, target.ledger.head.before = coverage_in(told)
            target.ledger.create(self._identity.text, self._sinks, seq)
            if files := tuple(_files_of(target)):
                target.ledger.commit(target.ledger.record(CARRIED, added=files))
            log.warning(
                "pipeline=%s: the ledger of %s was gone; its own log knows it up to step %d",
                *(self._pipeline.name, target.name, seq),
            )
        elif any(True for _ in _files_of(target)):
            self._adopt(target)
        else:
            known = self._known["targets"].get(target.name, Coverage())
            target.ledger.head.coverage = Coverage(
                Span(found, start, start, 0)
                for found in known.logs
                if (start := known.start(found)) is not None
            )
            target.ledger.create(self._identity.text, self._sinks)

    def _known_to_sink(self, target: Target) -> tuple[int, dict[str, Any]] | None:
        """What brokers or a Delta table's log say of a ledger: its last step, and the sum."""
        if isinstance(target, TopicTarget):
            return target.lost(self._identity.text)
        return target.table.lost() if isinstance(target.table, DeltaSinkTable) else None

    def _adopt(self, target: Target) -> None:
        """A table with files and without its ledger: nobody knows which messages they hold."""
        if self._questions.waiting is None or self._questions.answer != BEGIN_ANEW:
            text = (
                f"{target.path} has files, and its ledger {target.ledger.uri} is gone: which "
                "messages they hold is not known.  Put the folder _penstock back from a backup, or "
                "remove the files: the rows are then read again, as far as brokers have them"
            )
            raise self._questions.stop(Waiting(UNKNOWN), text, (BEGIN_ANEW,))
        spans = tuple(Span(found, 0, end) for found, end in Done(self._offsets).reached.items())
        files = tuple(_files_of(target))
        # Files are named by step: the names that are there stay theirs.
        steps = [int(match[1]) for file in files if (match := STEP.search(file.path))]
        target.ledger.create(self._identity.text, self._sinks, max(steps, default=0))
        target.ledger.commit(target.ledger.record(CARRIED, spans=spans, added=files))
        self._adopted = True

    def _add(self, target: Target) -> None:
        """A sink that was not there before: it begins where the checkpoint stands."""
        reached = Done(self._offsets).reached
        spans = tuple(Span(found, index, index, 0) for found, index in reached.items())
        target.ledger.create(self._identity.text, self._sinks)
        if spans:
            target.ledger.commit(target.ledger.record(CARRIED, spans=spans))

    # Losses

    def _accept_gone(self) -> None:
        """What the brokers have no more and a person accepts; what is there of it is read."""
        waiting = self._questions.waiting
        if self._questions.answer != ACCEPT or waiting is None or waiting.kind != GONE:
            return
        for target in self._targets:
            losses = tuple(_accepted(waiting, waiting.spans))
            target.ledger.commit(target.ledger.record(LOSS, losses=losses))
        self._questions.answered()

    def _judge_tables(self) -> None:
        """A table that lacks what its checkpoint has done: stop, or do what a person says."""
        done = Done(self._offsets, self._coverages())
        strict = all(source.fail_on_data_loss for source in self._pipeline.sources.values())
        lacking: dict[str, list[Span]] = {}
        for target in self._targets:
            known = self._known["targets"].get(target.name, Coverage())
            found = done.lacking(target.ledger, known, strict=strict)
            if found:
                lacking[target.name] = found
        if not lacking:
            return
        every = {span for found in lacking.values() for span in found}
        spans = tuple(sorted(every, key=lambda span: span[:3]))
        waiting = Waiting(LACKING, spans, tuple(sorted(lacking)))
        same = self._questions.waiting == waiting
        if same and self._questions.answer == ACCEPT:
            for target in self._targets:
                _lose(waiting, target.ledger, lacking.get(target.name, ()))
            self._questions.answered()
            return
        if same and self._questions.answer == READ_AGAIN:
            for target in self._targets:
                _read_again(waiting, done, target.ledger, lacking.get(target.name, ()))
            self._renew("rows are read again")
            self._questions.answered()
            return
        names = " and ".join(sorted(lacking))
        text = (
            f"{names}: rows are missing that the checkpoint {self._checkpoint.uri} has as done.  "
            "The table was deleted or an older one was put back, and the checkpoint was kept.  "
            f"Missing are {listed(spans)}"
        )
        flags = (ACCEPT,) if self._stateful else (READ_AGAIN, ACCEPT)
        raise self._questions.stop(waiting, text, flags)

    def _coverages(self) -> list[Coverage]:
        """What tables have, and what they had at the last start."""
        now = [target.ledger.coverage for target in self._targets]
        return [*now, *self._known["targets"].values()]

    # The checkpoint

    def _judge_checkpoint(self) -> None:
        ledgers = [target.ledger for target in self._targets]
        if not any(ledger.coverage for ledger in ledgers):
            return
        planned = self._offsets.planned()
        if not planned:
            if not self._offsets.has_begin:
                self._renew(f"there is no checkpoint in {self._checkpoint.uri}")
            return
        last = places(self._offsets.positions(planned[-1]) or {})
        ahead = [span for ledger in ledgers for span in _ahead(ledger, last)]
        if ahead:
            self._renew(f"the checkpoint {self._checkpoint.uri} is older than the table", ahead)
        elif self._was_put_back(last):
            self._renew("tables and checkpoint are older than the last start")

    def _was_put_back(self, last: Mapping[Place, Position]) -> bool:
        """Whether a topic was made again and read since: only the last start knew of it."""
        known = {found for target in self._targets for found in target.ledger.coverage.logs}
        return any(
            found not in known and place in last and last[place].instance != found.instance
            for place, found in Done(self._offsets, self._coverages()).newest.items()
        )

    def _renew(self, why: str, ahead: Iterable[Span] = ()) -> None:
        """Move the checkpoint aside and begin one where the tables end."""
        told = listed(ahead)
        why = f"{why}, which has also {told}" if told else why
        if self._stateful:
            raise DataWouldBeLostError(
                f"{why}.  The SQL of this pipeline keeps state (aggregation, join or dedupe), "
                "which is in the checkpoint alone: it cannot go on from the table.  Put back the "
                "checkpoint that belongs to the table, or the table that belongs to the "
                "checkpoint, or begin with another name and an empty output"
            )
        aside, described = "", self._checkpoint.read(checkpoints.NAME)
        if self._checkpoint.read("metadata") is not None or self._offsets.planned():
            now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
            # Two of one second have different names.
            aside = f"{self._checkpoint.uri}.aside-{now}-{uuid.uuid4().hex[:4]}"
            _move_aside(self._spark, self._checkpoint.uri, aside)
        self._checkpoint = open_folder(self._spark, self._pipeline.checkpoint_path)
        self._offsets = OffsetLog(self._checkpoint)
        identity_of(self._checkpoint, [self._identity.text])
        if described is not None:
            # Schemas that were inferred stay what they are.
            self._checkpoint.write(checkpoints.NAME, described)
        begin: ByChannel = {}
        for found, index in self._lowest_ends().items():
            place = begin.setdefault(found.channel, {}).setdefault(found.node, {})
            place[found.topic] = Position(found.instance, index)
        self._offsets.write_begin(begin)
        kept = f"  The old one is kept as {aside}" if aside else ""
        log.warning(
            "pipeline=%s: %s; going on from what the tables have.%s",
            *(self._pipeline.name, why, kept),
        )

    def _lowest_ends(self) -> dict[Log, int]:
        """Where the next batch begins: what the target that has least lacks."""
        newest = newest_logs(*(coverage.ends() for coverage in self._coverages()))
        ends: dict[Log, int] = {}
        for found in newest.values():
            coverages = [target.ledger.coverage for target in self._targets]
            began = (each.start(found) for each in self._coverages())
            starts = [start for start in began if start is not None]
            lowest = [end for each in coverages if (end := each.end(found)) is not None]
            behind = len(lowest) < len(coverages)
            end = min([*lowest, *(starts if behind else ())])
            if not any(is_dropped(target.ledger, found, end) for target in self._targets):
                ends[found] = end
        return ends

    def _note(self) -> None:
        """Keep what a later start has to know if a table or the checkpoint is lost."""
        for target in self._targets:
            target.ledger.create(self._identity.text, self._sinks)
        note_known(self._beside, self._identity.text, self._targets)


def accepted_by_all(ledgers: Sequence[Ledger]) -> Iterator[Span]:
    """The losses that the source may pass over: no ledger lacks them and has them not accepted.

    One may have lost its records with its table, and a table's rows may be lost to it alone.
    """
    explained = [
        Coverage((*ledger.coverage, *(loss.span for loss in ledger.head.losses)))
        for ledger in ledgers
    ]
    for span in Coverage(loss.span for ledger in ledgers for loss in ledger.head.losses):
        lacking = Coverage(part for each in explained for part in each.lacking(span))
        yield from lacking.lacking(span)


def note_known(folder: Folder, identity: str, targets: Iterable[Target]) -> None:
    """Write down which targets there are and what each covers."""
    covered = {target.name: target.ledger.coverage.rows() for target in targets}
    data = packed({"version": 1, "identity": identity, "targets": covered})
    if folder.read(KNOWN) != data:
        folder.write(KNOWN, data)


def _read_known(folder: Folder) -> dict[str, Any]:
    """The targets of earlier runs and what each covered."""
    data = folder.read(KNOWN)
    if data is None:
        return {"identity": "", "targets": {}}
    try:
        told = unpacked(data)
        rows = {str(name): told["targets"][name] for name in told["targets"]}
        targets = {name: Coverage(map(Span.of_row, rows[name])) for name in rows}
        return {"identity": str(told["identity"]), "targets": targets}
    except (ValueError, KeyError, TypeError):
        raise PipelineError(
            f"{folder.uri}/{KNOWN} is damaged; put it back from a backup, or remove it"
        ) from None


def _ahead(ledger: Ledger, planned: Mapping[Place, Position]) -> list[Span]:
    """What a ledger has beyond the last batch that a checkpoint has planned."""
    ahead = []
    for place, found in newest_logs(ledger.ends()).items():
        start, end = ledger.coverage.start(found), ledger.coverage.end(found)
        assert start is not None and end is not None
        position = planned.get(place)
        if position is None:
            if not is_dropped(ledger, found, end) and end > start:
                ahead.append(Span(found, start, end))
        elif position.instance == found.instance:
            if end > position.index:
                ahead.append(Span(found, max(start, position.index), end))
        elif ledger.coverage.end(Log(*place, position.instance)) is not None and end > start:
            ahead.append(Span(found, start, end))
    return ahead


def _read_again(waiting: Waiting, done: Done, ledger: Ledger, lacking: Iterable[Span]) -> None:
    """Note where the rest begins; of a topic that was made again there is nothing to read."""
    _lose(waiting, ledger, [span for span in lacking if done.is_replaced(span.log)])
    begun = {
        span.log: Span(span.log, span.start, span.start, 0)
        for span in lacking
        if ledger.coverage.end(span.log) is None
    }
    if begun:
        ledger.commit(ledger.record(BEGUN, spans=tuple(begun.values())))


def _lose(waiting: Waiting, ledger: Ledger, lacking: Iterable[Span]) -> None:
    """Record that a table will not have some ranges."""
    missing = tuple(span._replace(messages=0) for span in lacking)
    if missing:
        losses = tuple(_accepted(waiting, missing))
        spans = tuple(span for span in missing if span.end < INDEX_MAX)
        ledger.commit(ledger.record(LOSS, spans=spans, losses=losses))


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
    """Whether its own records say nothing of batches that gave it no row."""
    if isinstance(target.sink, DeltaSink):
        return batch is not None
    return target.role == INVALID or isinstance(target, TopicTarget)


def _files_of(target: Target) -> Iterable[DataFile]:
    """The data files that a table has from before its ledger."""
    if not isinstance(target, TableTarget):
        return
    for file in target.ledger.folder.files():
        if is_data(file.path) and not file.path.startswith(f"{STATE}/"):
            yield DataFile(file.path, file.size)


def _beginnings(spark: SparkSession, target: Target) -> dict[tuple[str, str], int]:
    """The first index of each (topic, node) of a table, if its rows tell."""
    if not isinstance(target, TableTarget) or not any(True for _ in _files_of(target)):
        return {}
    rows = _rows_of(spark, target)
    if not {"topic", "node", "index"} <= set(rows.columns):
        return {}
    from pyspark.sql import functions as F

    found = rows.groupBy("topic", "node").agg(F.min("index").alias("first"))
    return {(row["topic"], row["node"]): int(row["first"]) for row in found.collect()}


def _rows_of(spark: SparkSession, target: TableTarget) -> Any:
    from penstock.pipeline.folders import spark_path

    paths = [spark_path(f"{target.path}/{file.path}") for file in _files_of(target)]
    reader = spark.read.option("basePath", spark_path(target.path)).option("mergeSchema", "true")
    return reader.parquet(*paths)


def _accepted(waiting: Waiting, spans: Sequence[Span]) -> Iterable[Accepted]:
    what = waiting.what if spans == waiting.spans else ()
    for number, span in enumerate(spans):
        text = what[number] if number < len(what) else ""
        yield Accepted(waiting.name, now_ms(), span, text or waiting.kind)


def _ledger_of(path: str) -> str:
    """The ledger that a file below ``_penstock/ledger`` belongs to."""
    words = path.split("/")
    return "/".join(words[:3]) if len(words) == 4 and words[3] == "head.json" else ""


def _move_aside(spark: SparkSession, path: str, aside: str) -> None:
    parent, _, name = path.rpartition("/")
    open_folder(spark, parent).move_folder(name, aside.rpartition("/")[2])
