"""What the brokers report about the topics of a table; asked once, before its ledgers are read.

A pipeline commits to its channel after the batch is in the ledger.  So positions requested first
are never ahead of a ledger that is read afterwards, even while the pipeline runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from penstock.errors import NodeError, QueryError
from penstock.pipeline import coverage
from penstock.spark.cluster import Cluster, LogState
from penstock.spark.node_client import Access
from penstock.spark.options import parse_brokers

log = logging.getLogger("penstock.pipeline")

UNSUPPORTED = (404, 405)


class Nodes(Protocol):
    """The part of Cluster that is used."""

    @property
    def nodes(self) -> Mapping[str, object]: ...

    def log_of(self, uuid: str, topic: str) -> LogState | None: ...

    def counts(
        self, uuid: str, ranges: Sequence[tuple[str, str, int, int]]
    ) -> list[int | None]: ...


class BrokerLogs:
    """The logs of all nodes that respond."""

    def __init__(self, cluster: Nodes, topics: Mapping[str, Iterable[str]]) -> None:
        """``topics``: the topics to request, by node."""
        self._cluster = cluster
        self._logs: dict[tuple[str, str], LogState] = {}
        self._errors: dict[str, str] = {}
        for node, names in topics.items():
            for topic in names:
                self._ask(node, topic)

    def _ask(self, node: str, topic: str) -> None:
        if node in self._errors:
            return
        try:
            found = self._cluster.log_of(node, topic)
        except NodeError as error:
            self._errors[node] = str(error)
            return
        if found is not None:
            self._logs[node, topic] = found

    def why_not(self, node: str) -> str:
        """Why nothing is known of a node; "" if it responds."""
        if node not in self._cluster.nodes:
            return "the node does not respond"
        return self._errors.get(node, "")

    def log_of(self, node: str, topic: str) -> LogState | None:
        return self._logs.get((node, topic))

    def logs(self) -> Iterable[tuple[str, str, LogState]]:
        """All logs as (node, topic, log)."""
        return [(node, topic, found) for (node, topic), found in sorted(self._logs.items())]

    def counts(self, spans: Sequence[coverage.Span]) -> list[int | None]:
        """The number of messages in each range, all of one node; None if no longer known.

        A broker that has removed messages counts only the others, so only complete ranges are sent.
        """
        countable = [(place, span) for place, span in enumerate(spans) if self.is_whole(span)]
        found: list[int | None] = [None] * len(spans)
        if not countable:
            return found
        node = countable[0][1].log.node
        ranges = [(*span.log[2:], span.start, span.end) for _, span in countable]
        try:
            counts = self._cluster.counts(node, ranges)
        except NodeError as error:
            if error.status not in UNSUPPORTED:
                self._errors[node] = str(error)
            return found
        for (place, _), count in zip(countable, counts, strict=True):
            found[place] = count
        return found

    def count(self, span: coverage.Span) -> int | None:
        return self.counts([span])[0]

    def is_whole(self, span: coverage.Span) -> bool:
        """Whether no message of a range has been removed."""
        found = self.log_of(span.log.node, span.log.topic)
        if found is None or self.why_not(span.log.node):
            return False
        return found.instance == span.log.instance and span.start >= found.whole_from


def ask_brokers(nsqd: str, lookupd: str, patterns: Sequence[str]) -> tuple[BrokerLogs, list[str]]:
    """Request the matching topics from all nodes; also return which nodes did not respond."""
    given = {"nsqdHttpAddresses": nsqd, "lookupdHttpAddresses": lookupd}
    options = parse_brokers({name: text for name, text in given.items() if text})
    cluster = Cluster(options, Access.of(options))
    doubts: list[str] = []
    try:
        cluster.discover(strict=False, everywhere=True)
    except QueryError as error:
        doubts.append(str(error))
    # nsqlookupd may list nodes of Go's nsqd, which no table comes from; named nodes are ours.
    if not cluster.complete and nsqd:
        found = {node.address for node in cluster.nodes.values()}
        unreachable = [each for each in options.nsqd_http_addresses if each not in found]
        doubts.append(f"nsqd {', '.join(unreachable)} does not respond: its messages are unknown")
    topics: dict[str, list[str]] = {}
    for uuid, node in list(cluster.nodes.items()):
        try:
            stats = node.get("/stats", format="json", include_clients="false")
        except NodeError as error:
            doubts.append(str(error))
            cluster.forget(uuid)
            continue
        topics[uuid] = [
            each["topic_name"] for each in stats["topics"] if matches(each["topic_name"], patterns)
        ]
    return BrokerLogs(cluster, topics), doubts


def matches(topic: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(topic, pattern) for pattern in patterns)
