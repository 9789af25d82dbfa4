"""Messages that a query has not read and that may be lost, as ranges.

    Loss     messages with ``start <= index < end`` of one log, some or all of which may be lost
    Losses   decides by failOnDataLoss and acceptLoss: an error, or a warning

Spark passes on only the text of an error of the source's process, so its last line is for programs
(``find`` parses it):

    penstock-loss: [{"node": "...", "address": "127.0.0.1:4151", "topic": "orders", "instance":
        "9f0c61f2a3b4d5e6", "start": 100, "end": 5000, "count_max": 4900}]

Rule 1: all losses that one check finds are reported together, so that they can be accepted
        together.
Rule 2: the loss of a deleted topic or a missing node has no known end: ``end`` is INDEX_MAX and
        ``count_max`` is null.
Rule 3: acceptLoss accepts what is inside its ranges and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import DataLossError
from penstock.spark.offsets import INDEX_MAX, is_instance
from penstock.wire.names import is_valid_name

if TYPE_CHECKING:
    from penstock.spark.options import Options

log = logging.getLogger("penstock.spark")

# Losses in one error; others are reported when these are accepted.  1024 are 250 KB of text.
LOSS_COUNT_MAX = 1024
# Losses named in the line for people.
NAMED_COUNT_MAX = 3
ACCEPTED_COUNT_MAX = 10_000

CAUSES = (
    "Likely causes: an older checkpoint was restored, a second query uses this channel or a copy "
    "of this checkpoint, the channel or the topic was emptied, or the channel lapsed"
)
UNKEPT = "A batch read does not keep messages: they stay until all channels have finished them"
ADVICE = (
    "To continue without them set acceptLoss to these ranges, which accepts only them, or "
    "failOnDataLoss=false, which accepts any loss"
)

_LINE = re.compile(r"penstock-loss: (\[\{.*?\}\])")


@dataclass(frozen=True, slots=True)
class Loss:
    """``count_max`` is how many messages may be missing at most; None if that is unknown."""

    node: str
    address: str
    topic: str
    instance: str
    start: int
    end: int
    count_max: int | None = None
    what: str = dataclasses.field(default="", compare=False)  # what happened, for people

    @property
    def open_ended(self) -> bool:
        return self.end >= INDEX_MAX

    def as_json(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        del fields["what"]
        return fields

    def __str__(self) -> str:
        where = f"nsqd {self.address} (node {self.node})" if self.address else f"node {self.node}"
        text = f"topic {self.topic} on {where}"
        if self.what:
            text += f" {self.what}"
        if self.open_ended:
            return f"{text}: everything that the query had not read, from index {self.start} on"
        count = "" if self.count_max is None else f", at most {self.count_max:,} messages"
        return f"{text}: indexes {self.start} to {self.end - 1}{count}"


class Losses:
    """Raises or logs losses; each is reported once."""

    def __init__(self, options: Options) -> None:
        self._fail = options.fail_on_data_loss
        self._accepted = options.accept_loss
        self._causes = CAUSES if options.channel else UNKEPT
        self._reported: set[tuple[str, str, str, int]] = set()

    def is_reported(self, node: str, topic: str, instance: str, end: int) -> bool:
        """Whether a loss with this end was already logged as a warning."""
        return (node, topic, instance, end) in self._reported

    def accepts(self, loss: Loss) -> bool:
        """Whether acceptLoss covers all of it."""
        return not self._unaccepted(loss)

    def is_dropped(self, node: str, topic: str, instance: str) -> bool:
        """Whether acceptLoss covers a log from some index to its end."""
        return any(
            each.open_ended and (each.node, each.topic, each.instance) == (node, topic, instance)
            for each in self._accepted
        )

    def report(self, losses: Iterable[Loss]) -> None:
        """Raise DataLossError unless all losses are accepted or failOnDataLoss is false."""
        losses = list(losses)
        unaccepted = [part for loss in losses for part in self._unaccepted(loss)]
        if unaccepted and self._fail:
            raise DataLossError(sentence(unaccepted, self._causes), unaccepted[:LOSS_COUNT_MAX])
        for loss in losses:
            key = (loss.node, loss.topic, loss.instance, loss.end)
            if key not in self._reported:
                self._reported.add(key)
                why = "acceptLoss has it" if self.accepts(loss) else "failOnDataLoss=false"
                log.warning("messages may be missing: %s; continuing, because %s", loss, why)

    def _unaccepted(self, loss: Loss) -> list[Loss]:
        """The parts of a loss that acceptLoss does not cover."""
        parts, start = [], loss.start
        for each in self._accepted:
            same = (each.node, each.topic, each.instance) == (loss.node, loss.topic, loss.instance)
            if not same or each.end <= start or each.start >= loss.end:
                continue
            if each.start > start:
                parts.append(_part(loss, start, each.start))
            start = each.end
        if start < loss.end:
            parts.append(_part(loss, start, loss.end))
        return parts


def _part(loss: Loss, start: int, end: int) -> Loss:
    count_max = None if loss.count_max is None else min(loss.count_max, end - start)
    return dataclasses.replace(loss, start=start, end=end, count_max=count_max)


def sentence(losses: Sequence[Loss], causes: str = CAUSES) -> str:
    """Return the text of an error: a line for people and a line for programs."""
    named = "; ".join(str(loss) for loss in losses[:NAMED_COUNT_MAX])
    more = len(losses) - NAMED_COUNT_MAX
    if more > 0:
        named += f"; and {more} more"
    if not all(loss.open_ended for loss in losses):
        named += f".  {causes}"
    line = json.dumps([loss.as_json() for loss in losses[:LOSS_COUNT_MAX]])
    return f"messages may be lost: {named}.  {ADVICE}\npenstock-loss: {line}"


def find(text: str) -> list[Loss]:
    """The losses in the text of an error, also if nested in other texts; without duplicates."""
    found: dict[Loss, None] = {}
    for line in _LINE.findall(text):
        # In a nested text the quotes are escaped.
        for form in (line, line.replace('\\"', '"'), line.replace('\\\\"', '"')):
            try:
                found.update(dict.fromkeys(parse_losses(form)))
                break
            except ValueError:
                continue
    return list(found)


def parse_losses(text: str) -> tuple[Loss, ...]:
    """Parse ranges as in ``acceptLoss`` and errors, sorted; raises ValueError."""
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError("not a JSON list")
    if len(value) > ACCEPTED_COUNT_MAX:
        raise ValueError(f"more than {ACCEPTED_COUNT_MAX} ranges")
    return tuple(sorted(map(_loss, value), key=lambda loss: (loss.start, loss.end)))


def _loss(value: object) -> Loss:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is not a JSON object")
    node, topic, instance = (value.get(key) for key in ("node", "topic", "instance"))
    start, end, count_max = (value.get(key) for key in ("start", "end", "count_max"))
    if not isinstance(node, str) or not node:
        raise ValueError(f"{node!r:.80} is not a node")
    if not isinstance(topic, str) or not is_valid_name(topic):
        raise ValueError(f"{topic!r:.80} is not a valid topic")
    if not is_instance(instance):
        raise ValueError(f"{instance!r:.80} is not an instance of a topic")
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= INDEX_MAX:
        raise ValueError(f"{start!r:.40} to {end!r:.40} is not a range of indexes")
    if type(count_max) is not int:
        count_max = None
    return Loss(node, str(value.get("address", "")), topic, instance, start, end, count_max)
