"""Finds the topics of a source that match, and how many of their messages wait."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import partial

from penstock.errors import NodeError, QueryError
from penstock.pipeline.identity import PipelineIdentity
from penstock.pipeline.patterns import PatternRequest, RegisteredPattern
from penstock.pipeline.plan import broker_options
from penstock.pipeline.spec import Pipeline, Source, channel_of
from penstock.spark.cluster import Cluster
from penstock.spark.node_client import Access, Node, node_request
from penstock.spark.options import BATCH, Options, parse_options
from penstock.wire.peer_answers import channels_in, names_in, topics_in

TOPICS = partial(names_in, name="topics")
# Prefixes of the data source's options for connecting to a broker.
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

    @property
    def patterned(self) -> bool:
        return any(is_pattern(topic) for topic in self._source.topics)

    def request(self, identity: str, take_over: str) -> PatternRequest:
        """The pattern to register with each node, for a source with wildcards."""
        pipeline = self._pipeline
        return PatternRequest(
            self._channel,
            identity,
            reader_name(pipeline),
            self._source.topics,
            tuple(sorted(own_topics(pipeline))),
            take_over,
        )

    def cluster(self) -> Cluster:
        return Cluster(self._options, self._access)

    def nodes(self) -> list[Node]:
        cluster = self.cluster()
        return [Node(address, self._access) for address in cluster.addresses(everywhere=True)]

    def topics(self, more: Iterable[str] = ()) -> tuple[str, ...]:
        """The topics to read now: those named, and those that match, sorted.

        A pipeline's own topics match no pattern: it would read what it writes.  ``more``: topics
        that nodes have already reported.
        """
        named = {topic for topic in self._source.topics if not is_pattern(topic)}
        patterns = [topic for topic in self._source.topics if is_pattern(topic)]
        if patterns:
            own = own_topics(self._pipeline)
            named |= {
                topic
                for topic in self._all_topics() | set(more)
                if topic not in own and any(fnmatchcase(topic, each) for each in patterns)
            }
        return tuple(sorted(named))

    def _all_topics(self) -> set[str]:
        found = self.cluster().query_lookupds(node_request("GET", "/topics"), TOPICS)
        for address in self._options.nsqd_http_addresses:
            node = Node(address, self._access)
            found.update(topic for topic, _ in node.read(topics_in, node.stats()))
        return {topic for topic in found if not topic.endswith("#ephemeral")}

    def waiting(self, topics: tuple[str, ...]) -> int | None:
        """How many messages the pipeline has not read; None if a topic is new to it."""
        count = 0
        seen: set[str] = set()
        for node in self.nodes():
            try:
                stats = node.stats()
            except NodeError:
                continue  # the stream itself reports an unreachable node
            for topic, _, channel in channels_in(stats, topics, self._channel):
                seen.add(topic)
                count += int(channel["depth"])
        return count if seen >= set(topics) else None


class Discovery:
    """The topics of all sources of a run, polled repeatedly."""

    def __init__(self, pipeline: Pipeline, identity: PipelineIdentity, take_over: str = "") -> None:
        self._brokers = {
            name: Brokers(pipeline, name)
            for name, source in pipeline.sources.items()
            if source.format == "nsq"
        }
        self._patterns = {
            name: RegisteredPattern(brokers.request(identity.text, take_over), new=identity.new)
            for name, brokers in self._brokers.items()
            if brokers.patterned
        }

    def topics(self) -> dict[str, tuple[str, ...]]:
        """The topics to read now, by source; patterns are registered with the nodes first."""
        return {name: self._poll(name) for name in self._brokers}

    @property
    def missed_count(self) -> int:
        """Messages that were removed before their topic was found; a lower bound."""
        return sum(each.count_min for found in self._patterns.values() for each in found.removed)

    @property
    def missed_topic_count(self) -> int:
        return len({each.topic for found in self._patterns.values() for each in found.removed})

    def _poll(self, name: str) -> tuple[str, ...]:
        brokers, pattern = self._brokers[name], self._patterns.get(name)
        if pattern is None:
            return brokers.topics()
        try:
            nodes = brokers.nodes()
        except NodeError:
            raise
        except QueryError:
            nodes = []  # no nsqd is registered yet
        answers = pattern.register(nodes)
        topics = brokers.topics({topic for each in answers.values() for topic in each["topics"]})
        pattern.check_existing(answers, topics)
        return topics


def reader_name(pipeline: Pipeline) -> str:
    """The name of the reader, for people."""
    return f"pipeline {pipeline.name} on {platform.node()}, pid {os.getpid()}"


def own_topics(pipeline: Pipeline) -> set[str]:
    """The topics that a pipeline writes."""
    topics = {getattr(sink, "topic", "") for sink in pipeline.sinks}
    return {pipeline.retry_topic, pipeline.dead_topic, pipeline.invalid_topic, *topics} - {""}
