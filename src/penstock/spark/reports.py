"""Sends commits and progress reports of queries to the nodes.

    POST /channel/commit    {"channel": .., "topics": {topic: position}, "progress": Progress}

A report need not move the channel: the last known position, or index 0, changes nothing.

Rule 1: a failure here never stops a query; it is logged.
Rule 2: a deleted topic does not keep a report from the others.
Rule 3: requests have the identity of the committed offset, or that of the options.  Without either,
        a channel that has a reader refuses the report.
Rule 4: Spark's listeners lag: a batch may be reported after the end of its query.  The state of the
        end is kept.
Rule 5: a report does not bind a channel (R45): one with index 0 has the identity only if the
        channel already has a reader.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Iterable, Mapping

from penstock.errors import NodeError, PenstockError
from penstock.progress import Progress
from penstock.spark.checkpoint import CheckpointSyncer
from penstock.spark.cluster import Cluster
from penstock.spark.node_client import HAS_READER, Node, node_request
from penstock.spark.offsets import Position, Positions
from penstock.spark.option_kinds import LocalFolder
from penstock.spark.options import parse_brokers

log = logging.getLogger("penstock.spark")

# Spark waits for its listeners, so a node that is down is searched only this often.
DISCOVERY_S = 10.0

Channel = str
ByTopic = dict[str, Position]  # by topic


class Reporter:
    """Reports any number of queries to the nodes; thread-safe."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): text.strip() for name, text in options.items()}
        self._cluster = Cluster(parse_brokers(options))
        self._checkpoint = CheckpointSyncer(LocalFolder().parse(given.get("checkpoint", "")))
        self._identity = given.get("identity", "").lower()
        self._identities: dict[Channel, str] = {}
        self._name = given.get("reader", "")
        self._known: dict[tuple[Channel, str], ByTopic] = {}  # by channel and node
        self._ended: dict[Channel, Progress] = {}  # Rule 4
        self._discover_s = 0.0
        self._lock = threading.Lock()

    def commit(
        self, channel: Channel, positions: Positions, progress: Progress, identity: str = ""
    ) -> None:
        """Commit everything below the positions; those that have not moved are not sent again.

        ``identity`` is that of the offset; it is in the checkpoint, so it may bind the channel.
        """
        with self._lock:
            self._checkpoint.sync()
            self._identities[channel] = self._identity or identity
            if (end := self._ended.get(channel)) is not None:
                progress = dataclasses.replace(progress, state=end.state, error=end.error)
            if any(uuid not in self._cluster.nodes for uuid in positions):
                self._discover()
            for uuid, topics in positions.items():
                node = self._cluster.nodes.get(uuid)
                known = self._known.setdefault((channel, uuid), {})
                new = {
                    topic: place
                    for topic, place in topics.items()
                    if known.get(topic) != place and not place.is_deleted
                }
                if node is None or not new:
                    continue
                try:
                    self._send(node, channel, new, progress)
                except PenstockError as error:
                    log.warning("channel=%s: %s", channel, error)
                    continue
                known.update(new)

    def find(self, channel: Channel, topics: Iterable[str]) -> bool:
        """Find the nodes with a query's channel, for reports before its first commit.

        Returns whether there are any: the source creates the channel after the query has started.
        """
        with self._lock:
            try:
                self._discover()
            except PenstockError as error:
                log.warning("channel=%s: %s", channel, error)
            for uuid in self._cluster.nodes:
                known = self._known.setdefault((channel, uuid), {})
                for topic in topics:
                    try:
                        found = self._cluster.log_of(uuid, topic)
                    except PenstockError as error:
                        log.warning("channel=%s: %s", channel, error)
                        break
                    if found is not None and channel in found.channels:
                        pull, identity = found.pulls.get(channel), self._identity_of(channel)
                        ours = pull is not None and identity and pull.identity == identity
                        index = pull.low if pull is not None and ours else 0
                        known.setdefault(topic, Position(found.instance, index))
            return any(places for (name, _), places in self._known.items() if name == channel)

    def begin(self, channels: Iterable[Channel]) -> None:
        """Note that a query with these channels has started or restarted."""
        with self._lock:
            for channel in channels:
                self._ended.pop(channel, None)

    def report(self, channels: Iterable[Channel], progress: Progress, *, end: bool = False) -> None:
        """Send a report to all known nodes of a query; ``end``: it stays until ``begin``."""
        wanted = set(channels)
        with self._lock:
            if end:
                self._ended.update(dict.fromkeys(wanted, progress))
            elif wanted & self._ended.keys():
                return
            for (channel, uuid), places in self._known.items():
                node = self._cluster.nodes.get(uuid)
                if channel in wanted and node is not None and places:
                    self._report(node, channel, places, progress)

    def _discover(self) -> None:
        if time.monotonic() >= self._discover_s:
            self._discover_s = time.monotonic() + DISCOVERY_S
            self._cluster.discover(strict=False, everywhere=True)

    def _report(self, node: Node, channel: Channel, places: ByTopic, progress: Progress) -> None:
        try:
            self._send(node, channel, places, progress)
        except NodeError as error:
            if error.status not in (404, 409):
                log.warning("channel=%s: %s", channel, error)
                return
            # A topic was deleted or recreated; report to the others one by one.
            for topic, place in places.items() if len(places) > 1 else ():
                try:
                    self._send(node, channel, {topic: place}, progress)
                except PenstockError as refused:
                    log.debug("channel=%s: %s", channel, refused)
        except PenstockError as error:
            log.warning("channel=%s: %s", channel, error)

    def _identity_of(self, channel: Channel) -> str:
        return self._identities.get(channel, self._identity)

    def _send(self, node: Node, channel: Channel, places: ByTopic, progress: Progress) -> None:
        """Rule 5."""
        identity = self._identity_of(channel)
        read = {topic: place for topic, place in places.items() if place.index}
        unread = {topic: place for topic, place in places.items() if not place.index}
        if read:
            self._post(node, channel, read, progress, identity)
        try:
            if unread:
                self._post(node, channel, unread, progress, "")
        except NodeError as error:
            if error.code != HAS_READER or not identity:
                raise
            self._post(node, channel, unread, progress, identity)

    def _post(
        self, node: Node, channel: Channel, places: ByTopic, progress: Progress, identity: str
    ) -> None:
        topics = {
            topic: {"instance": place.instance, "index": place.index}
            for topic, place in places.items()
        }
        body = {"channel": channel, "topics": topics, "progress": progress.as_json()}
        if identity:
            body["identity"] = identity
            body.update({"reader": self._name} if self._name else {})
        node.brief().json(node_request("POST", "/channel/commit", None, body), 0.0)
