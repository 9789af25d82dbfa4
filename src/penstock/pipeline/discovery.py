"""What the brokers of a source have: which topics match, and how much of them waits."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from penstock.errors import NodeError
from penstock.pipeline.plan import broker_options
from penstock.pipeline.spec import Pipeline, Source, channel_of
from penstock.spark.broker import Access, Node
from penstock.spark.cluster import Cluster
from penstock.spark.options import BATCH, Options, parse_options

# Of the data source's options, those that say how to reach a broker.
REACHING = ("tls", "httptoken", "requesttimeout", "retrytimeout")


def is_pattern(topic: str) -> bool:
    return "*" in topic or "?" in topic


def has_patterns(pipeline: Pipeline) -> bool:
    return any(is_pattern(topic) for source in pipeline.sources.values() for topic in source.topics)


class Brokers:
    """The brokers of one source."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        self._pipeline = pipeline
        self._source: Source = pipeline.sources[name]
        self._channel = channel_of(pipeline, name)
        passed = {
            key: text
            for key, text in self._source.options.items()
            if key.lower().startswith(REACHING)
        }
        given = {**broker_options(self._source), "topic": "unused", **passed}
        self._options: Options = parse_options(given, BATCH)
        self._access = Access.of(self._options)

    def nodes(self) -> list[Node]:
        cluster = Cluster(self._options, self._access)
        return [Node(address, self._access) for address in cluster.addresses(everywhere=True)]

    def topics(self) -> tuple[str, ...]:
        """The topics to read now: those named, and those that match, sorted.

        A pipeline's own topics match no pattern: it would read what it writes.
        """
        named = {topic for topic in self._source.topics if not is_pattern(topic)}
        patterns = [topic for topic in self._source.topics if is_pattern(topic)]
        if patterns:
            own = own_topics(self._pipeline)
            named |= {
                topic
                for topic in self._all_topics()
                if topic not in own and any(fnmatchcase(topic, each) for each in patterns)
            }
        return tuple(sorted(named))

    def _all_topics(self) -> set[str]:
        found: set[str] = set()
        errors: list[NodeError] = []
        lookupds = self._options.lookupd_http_addresses
        for address in lookupds:
            lookupd = Node(address, self._access, "nsqlookupd")
            try:
                found.update(lookupd.get("/topics")["topics"])
            except NodeError as error:
                errors.append(error)
        if lookupds and len(errors) == len(lookupds):
            raise errors[0]
        for address in self._options.nsqd_http_addresses:
            node = Node(address, self._access)
            stats = node.get("/stats", format="json", include_clients="false")
            found.update(topic["topic_name"] for topic in stats["topics"])
        return {topic for topic in found if not topic.endswith("#ephemeral")}

    def waiting(self, topics: tuple[str, ...]) -> int | None:
        """How many messages the pipeline has not read; None if a topic is new to it."""
        count = 0
        seen: set[str] = set()
        for topic, channel in self._channels(topics):
            seen.add(topic)
            count += int(channel["depth"])
        return count if seen >= set(topics) else None

    def _channels(self, topics: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
        for node in self.nodes():
            try:
                stats = node.get("/stats", format="json", include_clients="false")
            except NodeError:
                continue  # the stream itself tells of a node that is away
            for topic in stats["topics"]:
                for channel in topic["channels"]:
                    if topic["topic_name"] in topics and channel["channel_name"] == self._channel:
                        yield topic["topic_name"], channel


def own_topics(pipeline: Pipeline) -> set[str]:
    """The topics that a pipeline writes."""
    topics = {getattr(sink, "topic", "") for sink in pipeline.sinks}
    return {pipeline.retry_topic, pipeline.dead_topic, pipeline.invalid_topic, *topics} - {""}
