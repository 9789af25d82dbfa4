"""A sample of the cluster: every node's /stats at one time, and the sums over nodes.

    Sample
      nodes     "host:port" -> NodePart      each with its TopicParts and their ChannelParts
      topics    name -> TopicSum             over all nodes, with ChannelSums
      totals    Figures                      over everything

    depth of a topic      waiting messages: its own, which no channel has yet, and those of the
                          channel that is furthest behind.  Channels read one log, so the sum over
                          channels would count a message once for each channel
    deferred of a topic   messages waiting for their time, each once: published with a delay, or
                          requeued with one in a channel

Both are summed over nodes; for a node over its topics, and for the cluster over everything.  So a
figure means the same on every page.

Rule 1: a node's response is not trusted.  ``read_node`` validates it completely or raises
        ValueError; all other code uses validated numbers.
Rule 2: a rate is the increase of a node's own counter over the time between two of its responses;
        it is never negative.  A channel, topic or node that is new since the last sample has
        counted from zero: its first messages are in the rate too.  Only the channels of a restarted
        node have no rates, because their counts from before do not say what arrived or left since.
Rule 3: only the numbers of an older sample are kept.

Parts are tuples and sums have slots: 18,000 channels of three nodes as dicts would take 30 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.admin.effects import NOTHING, read_counts, read_policy
from penstock.admin.patterns import PatternPart, read_patterns
from penstock.progress import Progress

# NSQ counts in int64.
NUMBER_MAX = 1 << 63
NAME_SIZE_MAX = 128
TEXT_SIZE_MAX = 255
PERCENTILE_COUNT_MAX = 32
CHANNEL_COUNT_MAX = 250_000
# Channels between two turns of the loop: 5 ms.
SLICE_COUNT = 2000


class Pull(NamedTuple):
    """nsqd's report on the reader of a pull channel."""

    idle_ms: int | None
    lapses_in_ms: int | None
    progress: Progress | None
    progress_ms: int  # time of the report, by the node's clock
    identity: str | None = None  # of the reader that owns the channel
    reader: str = ""  # its display name
    since_ms: int | None = None


class Damage(NamedTuple):
    """Damaged or missing data that a node found on its disk, not cleared yet."""

    records: int
    messages: int  # lost, as far as it can be counted
    kinds: dict[str, int]


class ChannelPart(NamedTuple):
    """A channel on one node."""

    depth: int
    backend_depth: int
    in_flight: int
    deferred: int
    messages: int
    requeues: int
    timeouts: int
    clients: int
    paused: bool
    latency: tuple[tuple[float, float], ...]  # quantile, ns
    pull: Pull | None
    counts: Mapping[str, int] = NOTHING  # what its policy did

    def backlog(self, own: bool) -> int:
        """Messages that have arrived and are not finished.

        Our nsqds count a message published with a delay when it is due, Go's immediately.
        """
        backlog = self.depth + self.in_flight
        return backlog if own else backlog + self.deferred


class TopicPart(NamedTuple):
    """A topic on one node."""

    depth: int  # of the topic itself: messages that no channel has yet
    backend_depth: int
    messages: int
    message_bytes: int
    paused: bool
    latency: tuple[tuple[float, float], ...]
    channels: dict[str, ChannelPart]
    backlog: int  # depth of the channel that is furthest behind
    deferred: int
    policy: Mapping[str, Any] = NOTHING  # its bounds
    counts: Mapping[str, int] = NOTHING


@dataclass(slots=True)
class Figures:
    """Numbers that can be added.  Rates are per second; the pages' depth is ``depth + backlog``."""

    depth: int = 0
    backlog: int = 0
    in_flight: int = 0
    deferred: int = 0
    messages: int = 0
    requeues: int = 0
    timeouts: int = 0
    clients: int = 0
    publish_rate: float = 0.0
    consume_rate: float = 0.0
    requeue_rate: float = 0.0
    timeout_rate: float = 0.0


@dataclass(slots=True)
class NodePart:
    """One nsqd; without ``answered`` it has only what others know about the node."""

    node: str  # broadcast_address:http_port
    address: str = ""  # where to connect
    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    zone: str = ""
    region: str = ""
    lookupds: tuple[str, ...] = ()  # where it is registered
    tombstones: tuple[str, ...] = ()  # topics for which it is tombstoned
    out_of_date: bool = False
    answered: bool = False
    error: str = ""
    own: bool = False  # an nsqd of Penstock, which reports more
    health: str = ""
    start_time: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    damage: Damage | None = None
    draining: bool = False
    patterns: tuple[PatternPart, ...] = ()
    at_ns: int = 0  # monotonic time of its response
    topics: dict[str, TopicPart] = field(default_factory=dict)
    channel_count: int = 0
    figures: Figures = field(default_factory=Figures)


class ChannelSum:
    """A channel over all nodes that have it."""

    __slots__ = (
        *("topic", "name", "nodes", "depth", "backend_depth", "in_flight", "deferred"),
        *("messages", "requeues", "timeouts", "clients", "paused", "pull"),
        *("arrival_rate", "consume_rate", "requeue_rate", "timeout_rate"),
        *("lag_s", "lag_open"),
    )

    def __init__(self, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self.nodes: list[str] = []
        self.depth = self.backend_depth = self.in_flight = self.deferred = 0
        self.messages = self.requeues = self.timeouts = self.clients = 0
        self.paused = self.pull = False
        self.arrival_rate = self.consume_rate = self.requeue_rate = self.timeout_rate = 0.0
        # The age of the oldest unfinished message; ``lag_open``: at least that.
        self.lag_s = 0.0
        self.lag_open = False


class TopicSum:
    """A topic over all nodes that have it."""

    __slots__ = (
        *("name", "nodes", "depth", "backend_depth", "messages", "message_bytes", "paused"),
        *("publish_rate", "channels", "backlog", "deferred"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[str] = []
        self.depth = self.backend_depth = self.messages = self.message_bytes = 0
        self.backlog = self.deferred = 0
        self.paused = False
        self.publish_rate = 0.0
        self.channels: dict[str, ChannelSum] = {}


@dataclass(slots=True)
class LookupdPart:
    """One nsqlookupd."""

    address: str
    answered: bool = False
    error: str = ""
    topic_count: int = 0
    node_count: int = 0


@dataclass(slots=True)
class Sample:
    """The cluster at one time."""

    number: int
    tick: int  # intervals since start, the unit of charts
    at_ms: int  # wall-clock time
    at_ns: int  # monotonic time
    nodes: dict[str, NodePart] = field(default_factory=dict)
    lookupds: list[LookupdPart] = field(default_factory=list)
    inactive: dict[str, list[str]] = field(default_factory=dict)  # topics without a producer
    warnings: list[str] = field(default_factory=list)
    topics: dict[str, TopicSum] = field(default_factory=dict)  # ordered by name
    totals: Figures = field(default_factory=Figures)
    channel_count: int = 0


def read_node(part: NodePart, stats: Any, at_ns: int) -> None:
    """Fill ``part`` from the decoded JSON of its /stats; raises ValueError if it is invalid."""
    for _ in reading_node(part, stats, at_ns):
        pass


def reading_node(part: NodePart, stats: Any, at_ns: int) -> Iterator[None]:
    """``read_node`` in slices."""
    try:
        part.version = _text(stats["version"])
        part.health = _text(stats["health"])
        part.start_time = _count(stats.get("start_time") or 0)
        part.memory = _numbers(stats.get("memory"))
        part.damage = _damage(stats.get("damage"))
        part.draining = stats.get("draining") is True
        part.patterns = read_patterns(stats.get("patterns"))
        topics: dict[str, TopicPart] = {}
        done = 0
        for topic in stats["topics"] or ():
            read = topics[_name(topic["topic_name"])] = _topic_part(topic)
            done += 1 + len(read.channels)
            if done >= SLICE_COUNT:
                done = 0
                yield
        _add_up(part, topics)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        part.topics, part.channel_count = {}, 0
        raise ValueError(f"invalid statistics: {_reason(error)}") from None
    part.topics = topics
    part.at_ns = at_ns
    part.answered = True


def _reason(error: Exception) -> str:
    return repr(error)[:TEXT_SIZE_MAX]


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= NAME_SIZE_MAX:
        raise ValueError("not a name")
    # A lone surrogate is valid JSON, but cannot be encoded in a path or a page.
    value.encode()
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value[:TEXT_SIZE_MAX].encode("utf-8", "replace").decode()


def _count(value: Any) -> int:
    """A count.  Go's diskqueue may report one slightly below zero."""
    if type(value) is not int or not -NUMBER_MAX <= value < NUMBER_MAX:
        raise ValueError("not a number")
    return max(0, value)


def _numbers(memory: Any) -> dict[str, int]:
    if not isinstance(memory, Mapping):
        return {}
    return {
        str(name)[:TEXT_SIZE_MAX]: value
        for name, value in list(memory.items())[:PERCENTILE_COUNT_MAX]
        if type(value) is int and 0 <= value < NUMBER_MAX
    }


def _damage(damage: Any) -> Damage | None:
    if damage is None:
        return None
    records, messages = _count(damage["records"]), _count(damage["messages"])
    return Damage(records, messages, _numbers(damage["kinds"])) if records else None


def _topic_part(topic: Mapping[str, Any]) -> TopicPart:
    channels = {_name(c["channel_name"]): _channel_part(c) for c in topic["channels"] or ()}
    deferred = topic.get("deferred_count")
    if deferred is None:
        # Go's nsqd has a copy for each channel and no other count.
        deferred = sum(channel.deferred for channel in channels.values())
    return TopicPart(
        _count(topic["depth"]),
        _count(topic["backend_depth"]),
        _count(topic["message_count"]),
        _count(topic.get("message_bytes", 0)),
        topic["paused"] is True,
        _percentiles(topic),
        channels,
        max((channel.depth for channel in channels.values()), default=0),
        _count(deferred),
        read_policy(topic),
        read_counts(topic),
    )


def _channel_part(channel: Mapping[str, Any]) -> ChannelPart:
    numbers: tuple[int, ...] = (
        channel["depth"],
        channel["backend_depth"],
        channel["in_flight_count"],
        channel["deferred_count"],
        channel["message_count"],
        channel["requeue_count"],
        channel["timeout_count"],
        channel["client_count"],
    )
    # Checked together, because this runs for every channel: a float, a text or a number out of
    # range fails it.
    if type(sum(numbers)) is not int or min(numbers) < 0 or max(numbers) >= NUMBER_MAX:
        numbers = tuple(map(_count, numbers))
    pull = channel.get("pull")
    flags = (
        channel["paused"] is True,
        _percentiles(channel),
        None if pull is None else _pull(pull),
        read_counts(channel),
    )
    return ChannelPart._make((*numbers, *flags))


def _pull(pull: Mapping[str, Any]) -> Pull:
    idle_ms, lapses_in_ms = pull.get("idle_ms"), pull.get("lapses_in_ms")
    reported_ns = pull.get("progress_time")
    return Pull(
        None if idle_ms is None else _count(idle_ms),
        None if lapses_in_ms is None else _count(lapses_in_ms),
        Progress.read(pull.get("progress")),
        0 if reported_ns is None else _count(reported_ns) // 1_000_000,
        None if pull.get("identity") is None else _text(pull["identity"]),
        "" if pull.get("reader") is None else _text(pull["reader"]),
        None if pull.get("reader_since_ms") is None else _count(pull["reader_since_ms"]),
    )


def _percentiles(stats: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    latency = stats.get("e2e_processing_latency")
    found = latency.get("percentiles") if latency else None
    if not found:
        return ()
    if not isinstance(found, list) or len(found) > PERCENTILE_COUNT_MAX:
        raise ValueError("percentiles are not a list")
    return tuple((_float(entry["quantile"]), _float(entry["value"])) for entry in found)


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < NUMBER_MAX:
        raise ValueError("not a number")
    return float(value)


def _add_up(part: NodePart, topics: Mapping[str, TopicPart]) -> None:
    """Sum a node's figures."""
    figures = part.figures = Figures()
    part.channel_count = sum(len(topic.channels) for topic in topics.values())
    if part.channel_count > CHANNEL_COUNT_MAX:
        raise ValueError(f"more than {CHANNEL_COUNT_MAX:,} channels")
    for topic in topics.values():
        figures.depth += topic.depth
        figures.backlog += topic.backlog
        figures.deferred += topic.deferred
        figures.messages += topic.messages
        for channel in topic.channels.values():
            figures.in_flight += channel.in_flight
            figures.requeues += channel.requeues
            figures.timeouts += channel.timeouts
            figures.clients += channel.clients


class Since(NamedTuple):
    """The time of the previous sample; anything newer has counted from zero."""

    at_ns: int  # monotonic
    at_ms: int  # wall-clock time


def add_up(sample: Sample, earlier: Mapping[str, NodePart], since: Since | None = None) -> None:
    """Sum the nodes of ``sample``; ``earlier`` are the nodes' previous responses."""
    for _ in adding_up(sample, earlier, since):
        pass


def adding_up(
    sample: Sample, earlier: Mapping[str, NodePart], since: Since | None = None
) -> Iterator[None]:
    """``add_up`` in slices, so that requests are served in between."""
    topics: dict[str, TopicSum] = {}
    for node in sample.nodes.values():
        if node.answered:
            yield from _add_node(topics, node, _past(node, earlier.get(node.node), since))
    sample.topics = dict(sorted(topics.items()))
    sample.channel_count = sum(len(topic.channels) for topic in topics.values())
    sample.totals = total_of(node.figures for node in sample.nodes.values())


def total_of(several: Iterable[Figures]) -> Figures:
    total = Figures()
    for figures in several:
        for name in Figures.__slots__:
            setattr(total, name, getattr(total, name) + getattr(figures, name))
    return total


class Past(NamedTuple):
    """The earlier numbers of a node; without ``known`` its rates are unknown."""

    known: bool
    per_s: float
    topics: Mapping[str, TopicPart]
    # Of a restarted node: Penstock's channels count the waiting messages as arrived again.
    again: Mapping[str, TopicPart]


_UNKNOWN = Past(False, 0.0, {}, {})


def _past(node: NodePart, before: NodePart | None, since: Since | None) -> Past:
    topics: Mapping[str, TopicPart] = {}
    again: Mapping[str, TopicPart] = {}
    if before is not None:
        passed_ns = node.at_ns - before.at_ns
        if before.start_time == node.start_time:
            topics = before.topics
        else:
            again = before.topics
    elif since is not None and node.start_time * 1000 >= since.at_ms:
        # A new node that was started after the last sample.
        passed_ns = node.at_ns - since.at_ns
    else:
        return _UNKNOWN
    return Past(True, 1e9 / passed_ns, topics, again) if passed_ns > 0 else _UNKNOWN


def _add_node(topics: dict[str, TopicSum], node: NodePart, past: Past) -> Iterator[None]:
    done = 0
    for name, part in node.topics.items():
        total = topics.get(name)
        if total is None:
            total = topics[name] = TopicSum(name)
        total.nodes.append(node.node)
        total.depth += part.depth
        total.backlog += part.backlog
        total.deferred += part.deferred
        total.backend_depth += part.backend_depth
        total.messages += part.messages
        total.message_bytes += part.message_bytes
        total.paused |= part.paused
        before = past.topics.get(name)
        if past.known:
            rate = _increase(part.messages, before.messages if before else 0) * past.per_s
            total.publish_rate += rate
            node.figures.publish_rate += rate
        _add_channels(total, node, part, before, past)
        done += 1 + len(part.channels)
        if done >= SLICE_COUNT:
            done = 0
            yield
    yield


def _increase(now: int, before: int) -> int:
    """The increase of a counter; one that fell was deleted, created again, and counts from zero."""
    return now - before if now >= before else now


def _add_channels(
    topic: TopicSum, node: NodePart, part: TopicPart, before: TopicPart | None, past: Past
) -> None:
    earlier = before.channels if before is not None else {}
    again = past.again[topic.name].channels if topic.name in past.again else {}
    address = node.node
    for name, channel in part.channels.items():
        total = topic.channels.get(name)
        if total is None:
            total = topic.channels[name] = ChannelSum(topic.name, name)
        total.nodes.append(address)
        # Unpacked at once, and zeros skipped: this runs for every channel of every node.
        depth, backend, sent, deferred, messages, requeues, timeouts, clients = channel[:8]
        paused, pull = channel.paused, channel.pull
        total.messages += messages
        if depth:
            total.depth += depth
            total.backend_depth += backend
        if sent or clients:
            total.in_flight += sent
            total.clients += clients
        if deferred:
            total.deferred += deferred
        if requeues or timeouts:
            total.requeues += requeues
            total.timeouts += timeouts
        if paused or pull is not None:
            total.paused |= paused
            total.pull |= pull is not None
        if past.known and name not in again:
            found = earlier.get(name)
            # At any time most channels of a large cluster are idle.
            if found is None or found != channel:
                _add_rates(total, node, channel, found, past.per_s)


def _add_rates(
    total: ChannelSum, node: NodePart, now: ChannelPart, before: ChannelPart | None, per_s: float
) -> None:
    """Finished is arrived minus the growth of the backlog: /stats does not count it."""
    if before is None or now.messages < before.messages:  # created since, or created again
        before = _NEW
    arrived = now.messages - before.messages
    left = max(0, arrived - now.backlog(node.own) + before.backlog(node.own))
    requeued = max(0, now.requeues - before.requeues)
    timed_out = max(0, now.timeouts - before.timeouts)
    total.arrival_rate += arrived * per_s
    total.consume_rate += left * per_s
    total.requeue_rate += requeued * per_s
    total.timeout_rate += timed_out * per_s
    figures = node.figures
    figures.consume_rate += left * per_s
    figures.requeue_rate += requeued * per_s
    figures.timeout_rate += timed_out * per_s


_NEW = ChannelPart(0, 0, 0, 0, 0, 0, 0, 0, False, (), None)
