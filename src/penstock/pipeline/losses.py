"""What a run has stopped for, and a person's answer, which is given once and by name.

    <checkpoint>.ledger/waiting.json    what the last run has stopped for

A run that would lose messages ends with status 5 and a name, a few letters derived from the loss.
The next run may be given that name with a flag: to accept the loss, to read again, or to write to a
table that cannot be verified.  Once answered, the name is no longer valid, so a flag left in a unit
file only stops the next start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import DataWouldBeLostError, PipelineError
from penstock.pipeline.coverage import Log, Span, spans_of_rows
from penstock.pipeline.folders import Folder
from penstock.pipeline.ledger_records import packed, unpacked
from penstock.spark.loss import ACCEPTED_COUNT_MAX, Loss

NAME = "waiting.json"
NAMED_MAX = 5  # ranges in a sentence
# The brokers no longer have messages; a table lacks rows; the contents of a table are unknown.
GONE, LACKING, UNKNOWN = "gone", "lacking", "unknown"
ACCEPT, READ_AGAIN, BEGIN_ANEW = "--accept-loss", "--read-again", "--begin-anew"


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers on the command line; each is a name, or ""."""

    accept_loss: str = ""
    read_again: str = ""
    begin_anew: str = ""
    take_over: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a run has stopped for."""

    kind: str
    spans: tuple[Span, ...] = ()
    targets: tuple[str, ...] = ()  # names of the targets that lack it; empty: all
    what: tuple[str, ...] = field(default=(), compare=False)  # what happened to each range

    @property
    def name(self) -> str:
        parts = [self.kind, list(self.targets), [span.row()[:6] for span in self.spans]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]

    def as_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "name": self.name,
            "kind": self.kind,
            "ranges": [span.row() for span in self.spans],
            "targets": list(self.targets),
            "what": list(self.what),
        }

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Waiting:
        kind, targets = str(value["kind"]), tuple(str(name) for name in value["targets"])
        spans = tuple(spans_of_rows(value["ranges"]))
        return cls(kind, spans, targets, tuple(str(what) for what in value["what"]))


class Questions:
    """The file; ``answers`` are those of this run."""

    def __init__(self, folder: Folder, answers: Answers) -> None:
        self._folder = folder
        self._answers = answers
        data = folder.read(NAME)
        try:
            self.waiting = None if data is None else Waiting.of_json(unpacked(data))
        except (ValueError, KeyError, TypeError):
            raise PipelineError(
                f"{folder.uri}/{NAME} is damaged; remove it: the run will stop again"
            ) from None
        self.answer = self._answer()

    def _answer(self) -> str:
        """The flag that answers the question; raises PipelineError if a flag answers none."""
        given = [
            (ACCEPT, self._answers.accept_loss),
            (READ_AGAIN, self._answers.read_again),
            (BEGIN_ANEW, self._answers.begin_anew),
        ]
        found = ""
        for flag, name in given:
            if not name:
                continue
            if self.waiting is None or name != self.waiting.name or found:
                now = "no answer is expected" if self.waiting is None else self.waiting.name
                raise PipelineError(
                    f"{flag}={name} is not expected: it was used before, or the situation has "
                    f"changed ({now}).  Start without it, and see what the pipeline reports"
                )
            found = flag
        return found

    def stop(self, waiting: Waiting, text: str, flags: Sequence[str]) -> DataWouldBeLostError:
        """Store the question; return the error that says how to answer it."""
        self._folder.write(NAME, packed(waiting.as_json()))
        return DataWouldBeLostError(f"{text}.  {ways(waiting.name, flags)}")

    def answered(self) -> None:
        """The question is answered: its name is no longer valid."""
        self._folder.remove(NAME)
        self.waiting, self.answer = None, ""


MEANINGS = {
    ACCEPT: "to continue without them, which is recorded",
    READ_AGAIN: "to read them again from the brokers, as far as those have them",
    BEGIN_ANEW: "to continue anyway; the table can then no longer be proven complete",
}


def ways(name: str, flags: Sequence[str]) -> str:
    return "Run it " + "; or ".join(f"with {flag}={name} {MEANINGS[flag]}" for flag in flags)


def listed(spans: Iterable[Span]) -> str:
    """Ranges, formatted for people."""
    found = [span for span in spans if span.start < span.end]
    named = "; ".join(str(span) for span in found[:NAMED_MAX])
    more = len(found) - NAMED_MAX
    return f"{named}; and {more:,} more" if more > 0 else named


def lost_messages(losses: Iterable[Loss], channel_of_topic: dict[str, str]) -> Waiting:
    """The messages that the source reports as lost."""
    losses = list(losses)
    spans = tuple(
        Span(
            Log(channel_of_topic.get(loss.topic, ""), loss.node, loss.topic, loss.instance),
            *(loss.start, loss.end, loss.count_max),
        )
        for loss in losses
    )
    return Waiting(GONE, spans, (), tuple(loss.what for loss in losses))


def as_losses(spans: Iterable[Span]) -> str:
    """The option acceptLoss.  Of more than it may hold the newest: others are asked for again."""
    found = [span for span in spans if span.start < span.end]
    return json.dumps(
        [
            {
                "node": span.log.node,
                "topic": span.log.topic,
                "instance": span.log.instance,
                "start": span.start,
                "end": span.end,
            }
            for span in found[-ACCEPTED_COUNT_MAX:]
        ]
    )
