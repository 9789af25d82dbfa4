"""Checks the ranges of a ledger against each other and against the brokers.

    broker    first ......... whole_from ............ low ............... end
    ledger         start |======|  gap  |===========| end
                   earlier      GAP                 PASSED       not read

Rule 1: a gap in which the broker counts no message is the broker's own: indexes are not dense.
Rule 2: what an accepted loss covers is explained.
Rule 3: ranges from before the ledger are never wrong by the ledger.  They go to ``Topic.before``,
        to be proven by the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.pipeline.audit_brokers import BrokerLogs, matches
from penstock.pipeline.audit_findings import (
    COUNTED,
    EARLIER,
    GAP,
    NEVER_READ,
    PASSED,
    ROWS,
    Fault,
    Topic,
    Topics,
)
from penstock.pipeline.audit_ledgers import OpenLedger, channels_of
from penstock.pipeline.coverage import Coverage, Log, Span
from penstock.pipeline.discovery import is_pattern
from penstock.spark.cluster import LogState
from penstock.spark.offsets import INDEX_MAX


def judge_ranges(
    ledgers: Sequence[OpenLedger],
    brokers: BrokerLogs,
    patterns: Sequence[str],
    topics: Topics,
    *,
    from_first: bool,
) -> None:
    """Check all ledgers, and topics that are in none of them."""
    for opened in ledgers:
        _OneLedger(opened, brokers, from_first).judge(patterns, topics)
    _judge_unread(ledgers, brokers, patterns, topics, from_first)


class _OneLedger:
    def __init__(self, opened: OpenLedger, brokers: BrokerLogs, from_first: bool) -> None:
        self._coverage = opened.coverage
        self._before = opened.ledger.head.before
        self._losses = opened.lost
        self._lost = Coverage(loss.span for loss in opened.ledger.head.losses)
        self._brokers = brokers
        self._from_first = from_first

    def judge(self, patterns: Sequence[str], topics: Topics) -> None:
        gaps: dict[Log, list[Span]] = {}
        for gap in self._coverage.gaps():
            gaps.setdefault(gap.log, []).extend(self._lost.lacking(gap))
        for log in self._coverage.logs:
            if matches(log.topic, patterns):
                topic = topics.of(log.topic, log.node)
                self._judge_log(log, gaps.get(log, []), topic)

    def _judge_log(self, log: Log, gaps: list[Span], topic: Topic) -> None:
        spans = self._coverage.of(log)
        counts = [span.messages for span in spans]
        if None not in counts:
            topic.count = (topic.count or 0) + sum(count or 0 for count in counts)
        topic.before += [span for span in self._before.of(log) if span.start < span.end]
        self._judge_gaps(gaps, topic)
        if spans[-1].end >= INDEX_MAX:
            topic.note("accepted: the rest of the log is not read")
            return
        why_not = self._brokers.why_not(log.node)
        if why_not:
            topic.doubt(why_not)
            return
        found = self._brokers.log_of(log.node, log.topic)
        if found is None or found.instance != log.instance:
            topic.note("the topic was deleted" + (" and created again" if found else ""))
            return
        self._judge_ends(log, found, topic)
        self._compare(spans, topic)

    def _judge_gaps(self, gaps: list[Span], topic: Topic) -> None:
        for gap, count in zip(gaps, self._brokers.counts(gaps), strict=True):
            if count == 0:
                continue
            if count is None and self._is_before(gap):
                topic.before.append(gap)
            else:
                topic.add_fault(Fault(GAP, gap.log, gap.start, gap.end, count))

    def _is_before(self, gap: Span) -> bool:
        start, end = self._before.start(gap.log), self._before.end(gap.log)
        return start is not None and end is not None and start <= gap.start and gap.end <= end

    def _judge_ends(self, log: Log, found: LogState, topic: Topic) -> None:
        start, end = self._coverage.start(log), self._coverage.end(log)
        assert start is not None and end is not None
        pull = found.pulls.get(log.channel)
        low = end if pull is None else min(pull.low, found.end)
        if low > end:
            count = self._brokers.count(Span(log, end, low))
            if count != 0:
                topic.add_fault(Fault(PASSED, log, end, low, count))
        elif pull is None and end < found.whole_from:
            topic.doubt(
                f"channel {log.channel} no longer exists, and the broker has removed messages "
                f"below {found.whole_from}; the ledger ends at {end}"
            )
        behind = max(end, low, found.whole_from)
        if found.end > behind:
            topic.not_read += self._brokers.count(Span(log, behind, found.end)) or 0
        if self._before.of(log) and self._before.end(log) == self._before.start(log) == start:
            topic.note(f"the table starts at index {start}: its sink was added then")
        elif self._from_first and found.first < start:
            earlier = Span(log, max(found.first, found.whole_from), start)
            for part in self._lost.lacking(earlier) if earlier.start < start else ():
                if count := self._brokers.count(part):
                    topic.add_fault(Fault(EARLIER, log, part.start, part.end, count))

    def _compare(self, spans: list[Span], topic: Topic) -> None:
        """Compare the ledger's counts with the broker's."""
        known = [span for span in spans if span.messages is not None and span.start < span.end]
        for span, count in zip(known, self._brokers.counts(known), strict=True):
            if count is None or count == span.messages:
                continue
            assert span.messages is not None
            missing = count - span.messages - self._explained(span)
            if missing > 0:
                topic.add_fault(Fault(COUNTED, span.log, span.start, span.end, missing))
            elif count < span.messages:
                topic.note(f"the broker counts {count:,} messages, the ledger {span.messages:,}")

    def _explained(self, span: Span) -> int:
        """How many of the broker's messages in a range were accepted as lost."""
        inside = [
            loss
            for loss in self._losses.get(span.log, ())
            if span.start <= loss.span.start < span.end
        ]
        asked = [loss.span for loss in inside if loss.what not in (COUNTED, ROWS)]
        counted = sum(loss.span.messages or 0 for loss in inside if loss.what == COUNTED)
        return counted + sum(count or 0 for count in self._brokers.counts(asked))


def _judge_unread(
    ledgers: Sequence[OpenLedger],
    brokers: BrokerLogs,
    patterns: Sequence[str],
    topics: Topics,
    from_first: bool,
) -> None:
    """Check topics that a node has and no ledger: named ones, and those a channel has passed."""
    known = {log[1:] for opened in ledgers for log in opened.coverage.logs}
    named = {pattern for pattern in patterns if not is_pattern(pattern)}
    for node, name, found in brokers.logs():
        if (node, name, found.instance) in known or (not ledgers and (name, node) in topics):
            continue
        passed = 0
        for opened in ledgers:
            passed = max(passed, _judge_passed(opened, brokers, node, name, found, topics))
        if name in named and not passed and from_first and not _is_waiting(ledgers, found):
            span = Span(Log("", node, name, found.instance), found.whole_from, found.end)
            if count := brokers.count(span):
                fault = Fault(NEVER_READ, span.log, span.start, span.end, count)
                topics.of(name, node).add_fault(fault)


def _is_waiting(ledgers: Sequence[OpenLedger], found: LogState) -> bool:
    """Whether a pipeline has a channel in the topic but has read nothing yet."""
    return any(channel in found.pulls for opened in ledgers for channel in channels_of(opened))


def _judge_passed(
    opened: OpenLedger, logs: BrokerLogs, node: str, name: str, found: LogState, topics: Topics
) -> int:
    """1 if a channel of the pipeline passed messages that its ledger does not have."""
    for channel in channels_of(opened):
        pull = found.pulls.get(channel)
        if pull is None:
            continue
        log = Log(channel, node, name, found.instance)
        passed = Span(log, min(found.first, pull.low), pull.low)
        there = Span(log, max(passed.start, min(found.whole_from, pull.low)), pull.low)
        count = logs.count(there) if there.start >= found.whole_from else 0
        # A reader binds a channel with its first commit, which is in its ledger first.
        ours = bool(opened.ledger.identity) and pull.identity == opened.ledger.identity
        if count or (ours and found.whole_from > 0 and pull.low >= found.whole_from):
            fault = Fault(PASSED, log, passed.start, pull.low, count or None)
            topics.of(name, node).add_fault(fault)
            return 1
    return 0
