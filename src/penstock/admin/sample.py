"""One look at the whole cluster: what every node's /stats said at a moment, and the sums of it.

    Sample
      nodes     "host:port" -> NodePart      each with its TopicParts and their ChannelParts
      topics    name -> TopicSum             over all nodes, with ChannelSums
      totals    Figures                      over everything

Rule 1: what a node says is not trusted.  ``read_node`` takes it apart completely, or refuses it
        with ValueError; everything after it works on checked numbers.
Rule 2: a rate is the growth of a node's own counter over the time between two of its answers.  A
        node that was started anew, or missed, starts its rates anew: a rate is never negative.
Rule 3: nothing here is kept of an older sample but its numbers.

A part is a tuple and a sum has slots: 18,000 channels of three nodes as dicts would be 30 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


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
    latency: Any  # /stats' percentiles, or None
    pull: Any  # what a Spark query says of itself, or None

    def backlog(self, own: bool) -> int:
        """What has arrived and is not finished.

        Our nsqds count a message published with a delay when it is due, Go's at once.
        """
        backlog = self.depth + self.in_flight
        return backlog if own else backlog + self.deferred


class TopicPart(NamedTuple):
    """A topic on one node."""

    depth: int
    backend_depth: int
    messages: int
    message_bytes: int
    paused: bool
    latency: Any
    channels: dict[str, ChannelPart]


@dataclass(slots=True)
class Figures:
    """Numbers that add up.  Rates are per second; ``backlog`` is the channels' depth."""

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
    """One nsqd; without ``answered`` only what others know of it."""

    node: str  # broadcast_address:http_port
    address: str = ""  # where it is asked
    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    zone: str = ""
    region: str = ""
    lookupds: tuple[str, ...] = ()  # those at which it is registered
    tombstones: tuple[str, ...] = ()  # topics for which it is hidden
    out_of_date: bool = False
    answered: bool = False
    error: str = ""
    own: bool = False  # a nsqd of Penstock, which can tell more
    health: str = ""
    start_time: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    at_ns: int = 0  # monotonic, of its answer
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
        # How long ago the oldest unfinished message came; ``lag_open``: that long at least.
        self.lag_s = 0.0
        self.lag_open = False


class TopicSum:
    """A topic over all nodes that have it."""

    __slots__ = (
        *("name", "nodes", "depth", "backend_depth", "messages", "message_bytes", "paused"),
        *("publish_rate", "channels"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[str] = []
        self.depth = self.backend_depth = self.messages = self.message_bytes = 0
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
    """The cluster at a moment."""

    number: int
    tick: int  # intervals since the start, which charts count by
    at_ms: int  # wall time
    at_ns: int  # monotonic time
    nodes: dict[str, NodePart] = field(default_factory=dict)
    lookupds: list[LookupdPart] = field(default_factory=list)
    inactive: dict[str, list[str]] = field(default_factory=dict)  # topics without a producer
    warnings: list[str] = field(default_factory=list)
    topics: dict[str, TopicSum] = field(default_factory=dict)  # by name, in its order
    totals: Figures = field(default_factory=Figures)
    channel_count: int = 0


def read_node(part: NodePart, stats: Any, at_ns: int) -> None:
    """Fill ``part`` from the decoded JSON of its /stats; ValueError if it is none."""
    try:
        part.version = str(stats["version"])
        part.health = str(stats["health"])
        part.start_time = int(stats.get("start_time") or 0)
        part.memory = _numbers(stats.get("memory"))
        part.topics = {
            _name(topic["topic_name"]): _topic_part(topic) for topic in stats["topics"] or ()
        }
        _add_up(part)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        part.topics = {}
        raise ValueError(f"its statistics make no sense: {error!r}") from None
    part.at_ns = at_ns
    part.answered = True


def _name(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 128:
        raise ValueError("a name that is none")
    return value


def _numbers(memory: Any) -> dict[str, int]:
    if not isinstance(memory, Mapping):
        return {}
    return {str(name): value for name, value in memory.items() if isinstance(value, int)}


def _topic_part(topic: Mapping[str, Any]) -> TopicPart:
    return TopicPart(
        topic["depth"],
        topic["backend_depth"],
        topic["message_count"],
        topic.get("message_bytes", 0),
        topic["paused"] is True,
        _percentiles(topic),
        {_name(c["channel_name"]): _channel_part(c) for c in topic["channels"] or ()},
    )


def _channel_part(channel: Mapping[str, Any]) -> ChannelPart:
    return ChannelPart(
        channel["depth"],
        channel["backend_depth"],
        channel["in_flight_count"],
        channel["deferred_count"],
        channel["message_count"],
        channel["requeue_count"],
        channel["timeout_count"],
        channel["client_count"],
        channel["paused"] is True,
        _percentiles(channel),
        channel.get("pull"),
    )


def _percentiles(stats: Mapping[str, Any]) -> Any:
    latency = stats.get("e2e_processing_latency")
    return latency.get("percentiles") if latency else None


def _add_up(part: NodePart) -> None:
    """The node's own figures; a value that is no number does not survive it."""
    figures = part.figures = Figures()
    part.channel_count = 0
    backend_depth = message_bytes = 0
    for topic in part.topics.values():
        figures.depth += topic.depth
        figures.messages += topic.messages
        backend_depth += topic.backend_depth
        message_bytes += topic.message_bytes
        part.channel_count += len(topic.channels)
        for channel in topic.channels.values():
            figures.backlog += channel.depth
            figures.in_flight += channel.in_flight
            figures.deferred += channel.deferred
            figures.requeues += channel.requeues
            figures.timeouts += channel.timeouts
            figures.clients += channel.clients
            backend_depth += channel.backend_depth + channel.messages


def add_up(sample: Sample, earlier: Mapping[str, NodePart]) -> None:
    """Make the sums of ``sample`` from its nodes; ``earlier`` are their last answers before."""
    for _ in adding_up(sample, earlier):
        pass


def adding_up(sample: Sample, earlier: Mapping[str, NodePart]) -> Iterator[None]:
    """The same node by node: a browser may be answered in between."""
    topics: dict[str, TopicSum] = {}
    for node in sample.nodes.values():
        if node.answered:
            _add_node(topics, node, earlier.get(node.node))
            yield
    sample.topics = dict(sorted(topics.items()))
    sample.channel_count = sum(len(topic.channels) for topic in topics.values())
    sample.totals = total_of(node.figures for node in sample.nodes.values())


def total_of(several: Iterable[Figures]) -> Figures:
    total = Figures()
    for figures in several:
        for name in Figures.__slots__:
            setattr(total, name, getattr(total, name) + getattr(figures, name))
    return total


def _add_node(topics: dict[str, TopicSum], node: NodePart, before: NodePart | None) -> None:
    passed_ns = node.at_ns - before.at_ns if before is not None else 0
    earlier: Mapping[str, TopicPart] = {}
    if before is not None and before.start_time == node.start_time and passed_ns > 0:
        earlier = before.topics
    per_s = 1e9 / passed_ns if passed_ns > 0 else 0.0
    for name, part in node.topics.items():
        total = topics.get(name)
        if total is None:
            total = topics[name] = TopicSum(name)
        total.nodes.append(node.node)
        total.depth += part.depth
        total.backend_depth += part.backend_depth
        total.messages += part.messages
        total.message_bytes += part.message_bytes
        total.paused |= part.paused
        past = earlier.get(name)
        if past is not None and part.messages > past.messages:
            rate = (part.messages - past.messages) * per_s
            total.publish_rate += rate
            node.figures.publish_rate += rate
        _add_channels(total, node, part, past, per_s)


def _add_channels(
    topic: TopicSum, node: NodePart, part: TopicPart, past: TopicPart | None, per_s: float
) -> None:
    earlier = past.channels if past is not None else {}
    address = node.node
    for name, channel in part.channels.items():
        total = topic.channels.get(name)
        if total is None:
            total = topic.channels[name] = ChannelSum(topic.name, name)
        total.nodes.append(address)
        # Taken apart at once, and zeros left out: this runs for every channel of every node.
        depth, backend, sent, deferred, messages, requeues, timeouts, clients, *flags = channel
        paused, _, pull = flags
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
        before = earlier.get(name)
        # Most channels of a large cluster are quiet at any moment.
        if before is not None and before != channel:
            _add_rates(total, node, channel, before, per_s)


def _add_rates(
    total: ChannelSum, node: NodePart, now: ChannelPart, before: ChannelPart, per_s: float
) -> None:
    """What left is what came, less what stayed: /stats has no count of finished messages."""
    arrived = now.messages - before.messages
    if arrived < 0:  # deleted and made again
        return
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
