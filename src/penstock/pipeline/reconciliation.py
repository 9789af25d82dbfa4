"""Compares tables and checkpoint before a query starts; the tables take precedence (R44).

    checkpoint missing, or older than a table    it is moved aside, and a new one begins where the
                                                 tables end, at the lowest of several
    a table missing, or older than it            stop; the error says what is missing and what to do
    no ledger                                    see `origins.py`

Rule 1: what was sealed or decided is finished before anything is judged.
Rule 2: nothing is deleted: a checkpoint is renamed.
Rule 3: state of SQL is only in the checkpoint, so such a pipeline never starts over by itself.
"""

from __future__ import annotations

import datetime
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import DataWouldBeLostError, PipelineError
from penstock.pipeline import checkpoints
from penstock.pipeline.coverage import Coverage, Log, Span, spans_between
from penstock.pipeline.folders import Folder, open_folder
from penstock.pipeline.identity import PipelineIdentity, identity_of
from penstock.pipeline.known_targets import read_known, write_known
from penstock.pipeline.ledger import Ledger, now_ms
from penstock.pipeline.ledger_records import (
    BEGUN,
    LOSS,
    Accepted,
)
from penstock.pipeline.lock import ledger_folder
from penstock.pipeline.losses import (
    ACCEPT,
    GONE,
    LACKING,
    READ_AGAIN,
    Answers,
    Questions,
    Waiting,
    listed,
)
from penstock.pipeline.offset_log import ByChannel, OffsetLog
from penstock.pipeline.origins import Origins
from penstock.pipeline.recorded_ends import Done, Place, is_dropped, newest_logs, place_of, places
from penstock.pipeline.spec import Pipeline
from penstock.pipeline.targets import (
    Target,
    TopicTarget,
    targets_of,
)
from penstock.spark.offsets import INDEX_MAX, Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.pipeline")


@dataclass(frozen=True, slots=True)
class Settled:
    """Where a query resumes."""

    identity: PipelineIdentity
    targets: tuple[Target, ...]
    offsets: OffsetLog
    resume: ByChannel  # where a new query begins; empty if a checkpoint or the source says it
    accepted: tuple[Span, ...]  # losses that are accepted
    questions: Questions
    beside: Folder

    def note(self) -> None:
        """Logs were found that the ledgers did not have at the start."""
        write_known(self.beside, self.identity.text, self.targets)


class Settling:
    """One comparison; ``stateful``: the SQL keeps state in the checkpoint."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, answers: Answers, *, stateful: bool
    ) -> None:
        self._pipeline = pipeline
        self._stateful = stateful
        self._spark = spark
        self._beside = open_folder(spark, ledger_folder(pipeline))
        self._checkpoint = open_folder(spark, pipeline.checkpoint_path)
        self._offsets = OffsetLog(self._checkpoint)
        self._questions = Questions(self._beside, answers)
        self._targets = list(targets_of(spark, pipeline))
        self._known = read_known(self._beside)
        self._identity = PipelineIdentity("")

    def settle(self) -> Settled:
        ledgers = [target.ledger for target in self._targets]
        known = [ledger.identity for ledger in ledgers]
        self._identity = identity_of(self._checkpoint, [*known, self._known.identity])
        self._check_owner()
        Origins(
            self._spark,
            self._pipeline,
            self._identity.text,
            self._targets,
            self._offsets,
            self._known,
            self._questions,
        ).find()
        for target in self._targets:
            target.recover()
        self._accept_losses()
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
        """All ledgers must belong to one pipeline."""
        for target in self._targets:
            if target.ledger.exists and target.ledger.identity != self._identity.text:
                way = "give this one another name, or another output"
                if isinstance(target, TopicTarget):
                    way = (
                        "a table was restored without it, or it without a table.  Remove that "
                        "folder: the pipeline then resumes from what the brokers recorded"
                    )
                raise PipelineError(
                    f"{target.ledger.uri} belongs to another pipeline of the name "
                    f"{self._pipeline.name}: {way}"
                )

    @property
    def _sinks(self) -> list[str]:
        return [target.name for target in self._targets]

    # Losses

    def _accept_losses(self) -> None:
        """Record an accepted loss of messages; what the brokers still have of it is read."""
        waiting = self._questions.waiting
        if self._questions.answer != ACCEPT or waiting is None or waiting.kind != GONE:
            return
        for target in self._targets:
            losses = tuple(_accepted(waiting, waiting.spans))
            target.ledger.commit(target.ledger.record(LOSS, losses=losses))
        self._questions.answered()

    def _judge_tables(self) -> None:
        """A table that lacks what its checkpoint has done: stop, or do what a person answered."""
        done = Done(self._offsets, self._coverages())
        strict = all(source.fail_on_data_loss for source in self._pipeline.sources.values())
        lacking: dict[str, list[Span]] = {}
        for target in self._targets:
            known = self._known.of(target.name)
            found = done.lacking(target.ledger, known, strict=strict)
            if found:
                lacking[target.name] = found
        if not lacking:
            self._note_found(done)
            return
        every = {span for found in lacking.values() for span in found}
        spans = tuple(sorted(every, key=lambda span: span[:3]))
        waiting = Waiting(LACKING, spans, tuple(sorted(lacking)))
        same = self._questions.waiting == waiting
        if same and self._questions.answer == ACCEPT:
            for target in self._targets:
                _lose(waiting, done, target.ledger, lacking.get(target.name, ()))
            self._note_found(done)
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
            "The table was deleted or an older one restored, without the checkpoint.  "
            f"Missing: {listed(spans)}"
        )
        flags = (ACCEPT,) if self._stateful else (READ_AGAIN, ACCEPT)
        raise self._questions.stop(waiting, text, flags)

    def _note_found(self, done: Done) -> None:
        """Record where logs start that ended unread: Spark purges its first batches."""
        for target in self._targets:
            ledger = target.ledger
            spans = [
                Span(found, index, index, 0)
                for found, index in done.reached.items()
                if found not in ledger.coverage.logs
                and (done.is_ended(found) or is_dropped(ledger, found, index))
            ]
            if spans:
                ledger.commit(ledger.record(BEGUN, spans=_in_order(done, ledger, spans)))

    def _coverages(self) -> list[Coverage]:
        """What tables have, and what they had at the last start."""
        now = [target.ledger.coverage for target in self._targets]
        return [*now, *self._known.targets.values()]

    # The checkpoint

    def _judge_checkpoint(self) -> None:
        ledgers = [target.ledger for target in self._targets]
        if not any(self._coverages()):
            return
        planned = self._offsets.planned()
        if not planned:
            if not self._offsets.has_begin:
                self._renew(f"there is no checkpoint in {self._checkpoint.uri}")
            elif self._begins_before_a_newer_log():
                self._renew(f"the checkpoint {self._checkpoint.uri} is older than the table")
            return
        last = places(self._offsets.positions(planned[-1]) or {})
        ahead = [span for ledger in ledgers for span in _ahead(ledger, last)]
        if ahead:
            self._renew(f"the checkpoint {self._checkpoint.uri} is older than the table", ahead)
        elif self._was_put_back(last):
            self._renew("tables and checkpoint are older than the last start")
        elif not self._stateful and any(
            self._has_other_batch(ledger, planned[-1]) for ledger in ledgers
        ):
            self._renew(f"a table has a batch that the checkpoint {self._checkpoint.uri} has not")

    def _was_put_back(self, last: Mapping[Place, Position]) -> bool:
        """Whether a topic was created again and read since: only the last start knew of it."""
        known = {found for target in self._targets for found in target.ledger.coverage.logs}
        return any(
            found not in known and place in last and last[place].instance != found.instance
            for place, found in Done(self._offsets, self._coverages()).newest.items()
        )

    def _begins_before_a_newer_log(self) -> bool:
        """Whether a topic that no batch has read yet was created again and read since."""
        begin = places(self._offsets.begin())
        coverages = self._coverages()
        known = {found for each in coverages for found in each.logs}
        return any(
            place in begin
            and begin[place].instance != found.instance
            and Log(*place, begin[place].instance) in known
            for place, found in newest_logs(*(each.ends() for each in coverages)).items()
        )

    def _has_other_batch(self, ledger: Ledger, planned: int) -> bool:
        """Whether a table has another batch with the number of the query's next one.

        Both were restored, the query ran, and then a table from before that was restored.
        """
        last = ledger.head.last
        if last is None or last.query != self._offsets.query or last.number < planned:
            return False
        if last.number > planned or planned in self._offsets.committed():
            return last.number > planned
        before = self._offsets.positions(planned - 1) if planned else self._offsets.begin()
        after = self._offsets.positions(planned) or {}
        if before is None:
            return False
        spans = [
            span
            for channel, positions in after.items()
            for span in spans_between(channel, before.get(channel, {}), positions)
        ]
        return any(ledger.coverage.lacking(span) for span in spans if span.start < span.end)

    def _renew(self, why: str, ahead: Iterable[Span] = ()) -> None:
        """Move the checkpoint aside and begin one where the tables end."""
        more = listed(ahead)
        why = f"{why}, which also has {more}" if more else why
        if self._stateful:
            raise DataWouldBeLostError(
                f"{why}.  The SQL of this pipeline keeps state (aggregation, join or dedupe), "
                "which is only in the checkpoint: it cannot resume from the table.  Restore the "
                "checkpoint that belongs to the table, or the table that belongs to the "
                "checkpoint, or start with another name and an empty output"
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
        moved = f"  The old checkpoint was moved to {aside}" if aside else ""
        log.warning(
            "pipeline=%s: %s; resuming from the tables.%s",
            *(self._pipeline.name, why, moved),
        )

    def _lowest_ends(self) -> dict[Log, int]:
        """Where the next batch begins: at the end of the target that has least."""
        newest = newest_logs(*(coverage.ends() for coverage in self._coverages()))
        ends: dict[Log, int] = {}
        for found in newest.values():
            coverages = [target.ledger.coverage for target in self._targets]
            began = (each.start(found) for each in self._coverages())
            starts = [start for start in began if start is not None]
            lowest = [end for each in coverages if (end := each.end(found)) is not None]
            behind = len(lowest) < len(coverages)
            end = min([*lowest, *(starts if behind else ())])
            if not self._is_dropped(found, end):
                ends[found] = end
        return ends

    def _is_dropped(self, found: Log, end: int) -> bool:
        """Whether every table that has a part of the log has accepted the remainder as lost."""
        ledgers = [target.ledger for target in self._targets]
        having = [each for each in ledgers if each.coverage.end(found) is not None]
        return bool(having) and all(is_dropped(ledger, found, end) for ledger in having)

    def _note(self) -> None:
        """Store what a later start has to know if a table or the checkpoint is lost."""
        for target in self._targets:
            target.ledger.create(self._identity.text, self._sinks)
        write_known(self._beside, self._identity.text, self._targets)


def accepted_by_all(ledgers: Sequence[Ledger]) -> Iterator[Span]:
    """The losses that the source may skip: every ledger that lacks them has accepted them.

    A ledger may have lost its records with its table, and rows may be missing in one table only.
    """
    explained = [
        Coverage((*ledger.coverage, *(loss.span for loss in ledger.head.losses)))
        for ledger in ledgers
    ]
    for span in Coverage(loss.span for ledger in ledgers for loss in ledger.head.losses):
        lacking = Coverage(part for each in explained for part in each.lacking(span))
        yield from lacking.lacking(span)


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
    """Record where the remainder begins; a topic created again has nothing left to read."""
    _lose(waiting, done, ledger, [span for span in lacking if done.is_replaced(span.log)])
    begun = {
        span.log: Span(span.log, span.start, span.start, 0)
        for span in lacking
        if ledger.coverage.end(span.log) is None
    }
    if begun:
        spans = _in_order(done, ledger, list(begun.values()))
        ledger.commit(ledger.record(BEGUN, spans=spans))


def _lose(waiting: Waiting, done: Done, ledger: Ledger, lacking: Iterable[Span]) -> None:
    """Record that a table will not have some ranges."""
    missing = tuple(span._replace(messages=0) for span in lacking)
    if missing:
        losses = tuple(_accepted(waiting, missing))
        spans = _in_order(done, ledger, [span for span in missing if span.end < INDEX_MAX])
        ledger.commit(ledger.record(LOSS, spans=spans, losses=losses))


def _in_order(done: Done, ledger: Ledger, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Logs that were replaced before the newest ones, also before those that the ledger has."""
    replaced = [span for span in spans if done.is_replaced(span.log)]
    newest = dict.fromkeys(done.newest[place_of(span.log)] for span in replaced)
    known = [
        Span(found, start, start, 0)
        for found in newest
        if (start := ledger.coverage.start(found)) is not None
    ]
    others = (span for span in spans if not done.is_replaced(span.log))
    return (*replaced, *known, *others)


def _accepted(waiting: Waiting, spans: Sequence[Span]) -> Iterable[Accepted]:
    what = waiting.what if spans == waiting.spans else ()
    for number, span in enumerate(spans):
        text = what[number] if number < len(what) else ""
        yield Accepted(waiting.name, now_ms(), span, text or waiting.kind)


def _move_aside(spark: SparkSession, path: str, aside: str) -> None:
    parent, _, name = path.rpartition("/")
    open_folder(spark, parent).move_folder(name, aside.rpartition("/")[2])
