"""How far a pipeline has read, from what is recorded outside its tables (R44).

    the checkpoint    the batches that Spark still has, and where its first batch begins
    known.json        what each table covered at the last start

A table that has less was deleted, or replaced by an older one.

Rule 1: a log that was deleted, or created again, ends with a recorded loss.  No position names such
        a log any more, so a table without that record lacks the log from its end on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.pipeline.coverage import Coverage, Log, Span
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.offset_log import ByChannel, OffsetLog
from penstock.spark.offsets import INDEX_MAX, Position, flat

Place = tuple[str, str, str]  # channel, node, topic

BEGIN = -1  # the batch before the first one


class Done:
    """What a checkpoint has as done; ``coverages`` show which instances are the newest."""

    def __init__(self, offsets: OffsetLog, coverages: Iterable[Coverage] = ()) -> None:
        self._offsets = offsets
        self._coverages = list(coverages)
        committed = offsets.committed()
        self._batches = self._with_begin(committed)
        self.last = self._at(self._batches[-1]) if self._batches else {}
        numbers = offsets.planned()
        self._planned = self._at(numbers[-1]) if numbers else {}
        self.reached = self.reached_by(self._batches[-1]) if self._batches else {}
        self.newest = newest_logs(self.reached, *(each.ends() for each in self._coverages))

    def _with_begin(self, batches: list[int]) -> list[int]:
        begins = self._offsets.has_begin and (not batches or batches[0] == 0)
        return [BEGIN, *batches] if begins else batches

    def reached_by(self, batch: int) -> dict[Log, int]:
        """How far each log was read up to a batch, in the order in which logs were found."""
        planned = [number for number in self._offsets.planned() if number <= batch]
        numbers = self._with_begin(planned)
        if not numbers:
            return {}
        first, last = self._at(numbers[0]), self._at(numbers[-1])
        # A topic never reuses an instance, so if first and last are equal, all in between are.
        same = all(at in last and last[at].instance == first[at].instance for at in first)
        if same and not any(position.is_deleted for position in last.values()):
            numbers = numbers[-1:]
        found: dict[Log, int] = {}
        for number in numbers:
            for place, position in self._at(number).items():
                if not position.is_deleted:
                    found[Log(*place, position.instance)] = position.index
        return found

    def is_replaced(self, log: Log) -> bool:
        """Whether the topic was created again since: then its old messages no longer exist."""
        return self.newest.get(place_of(log), log) != log

    def is_ended(self, log: Log) -> bool:
        """Whether it was deleted; a planned batch that records this is repeated, and not judged."""
        place = place_of(log)
        last, planned = self.last.get(place), self._planned.get(place)
        if self.is_replaced(log) or (last is not None and last.is_deleted):
            return True
        if last is None or planned is None or last.instance != log.instance:
            return False
        return planned.is_deleted or planned.instance != log.instance

    def lacking(self, ledger: Ledger, known: Coverage, *, strict: bool) -> list[Span]:
        """Ranges that were done and that a table does not cover; ``known`` is what it covered.

        ``strict``: a loss must be recorded (Rule 1).
        """
        coverage, found = ledger.coverage, []
        for log, index in self.reached.items():
            if self.is_replaced(log):
                # No later batch will read what an older checkpoint had not reached.
                index = max(index, known.end(log) or 0)
            end = coverage.end(log)
            if end is None:
                end = self._first_mention(log, known)
            if end < index:
                found.append(Span(log, end, index))
        for span in known:
            if span.log not in self.reached and self.is_replaced(span.log):
                found += [part for part in coverage.lacking(span) if part.start < part.end]
        losses = Coverage(loss.span for loss in ledger.head.losses)
        for span in self._passed_over(ledger, {*self.reached, *known.logs}):
            found += losses.lacking(span) if span.start < span.end else []
            found += _unrecorded(ledger, span.log, span.end) if strict else []
        return [*found, *self._tails(ledger, known)] if strict else found

    def _passed_over(self, ledger: Ledger, judged: Collection[Log]) -> list[Span]:
        """What others cover of logs that were replaced, found after one that the ledger knows.

        The ledger was restored from before then, and has no other record of them.  A ledger that
        began later knows none of the logs before its own.
        """
        found: dict[Log, Span] = {}
        for coverage in self._coverages:
            begun: set[Place] = set()
            for log in coverage.logs:
                if log in ledger.coverage.logs:
                    begun.add(place_of(log))
                elif place_of(log) in begun and log not in judged and self.is_replaced(log):
                    start, end = coverage.start(log), coverage.end(log)
                    assert start is not None and end is not None
                    found.setdefault(log, Span(log, start, end))
        return list(found.values())

    def _tails(self, ledger: Ledger, known: Coverage) -> list[Span]:
        """Rule 1; before there was a ledger no loss was recorded."""
        found: list[Span] = []
        for log in dict.fromkeys((*self.reached, *known.logs, *ledger.coverage.logs)):
            if not self.is_ended(log) or log in ledger.head.before.logs:
                continue
            reached = (self.reached.get(log), known.end(log), ledger.coverage.end(log))
            end = max(index for index in reached if index is not None)
            found += _unrecorded(ledger, log, end)
        return found

    def _first_mention(self, log: Log, known: Coverage) -> int:
        """Where a log that the ledger does not have was found; 0 if unknown."""
        if (start := known.start(log)) is not None:
            return start
        for number in self._batches:
            position = self._at(number).get(place_of(log))
            if position is not None and position.instance == log.instance:
                forgotten = number == self._batches[0] and number > 0
                return 0 if forgotten else position.index
        return self.reached[log]

    def _at(self, batch: int) -> dict[Place, Position]:
        if batch == BEGIN:
            return places(self._offsets.begin())
        return places(self._offsets.positions(batch) or {})


def is_dropped(ledger: Ledger, log: Log, index: int) -> bool:
    """Whether all of a log from ``index`` on is an accepted loss, so nothing is left to read."""
    return not _unrecorded(ledger, log, index)


def _unrecorded(ledger: Ledger, log: Log, index: int) -> list[Span]:
    """The ranges of a log from ``index`` on that are not accepted losses."""
    losses = Coverage(loss.span for loss in ledger.head.losses if loss.span.log == log)
    return losses.lacking(Span(log, index, INDEX_MAX))


def newest_logs(*ends: Mapping[Log, int]) -> dict[Place, Log]:
    """The newest instance of each topic on each node.

    Each mapping has its logs in the order in which they were found.  If no mapping has both of two
    instances, the one with the larger index is newer: an index starts with the time.
    """
    followed: set[Log] = set()
    found: dict[Place, dict[Log, int]] = {}
    for each in ends:
        before: dict[Place, Log] = {}
        for log, index in each.items():
            place = place_of(log)
            if place in before:
                followed.add(before[place])
            before[place] = log
            found.setdefault(place, {})[log] = index
    newest = {}
    for place, logs in found.items():
        last = [log for log in logs if log not in followed] or list(logs)
        newest[place] = max(last, key=logs.__getitem__)
    return newest


def place_of(log: Log) -> Place:
    return log.channel, log.node, log.topic


def places(positions: ByChannel) -> dict[Place, Position]:
    return {
        (channel, node, topic): position
        for channel, each in positions.items()
        for node, topic, position in flat(each)
    }
