"""The numbers of /stats: as a structure, in NSQ's order of fields, and as NSQ's text.

Topics and channels are sorted by name, clients are not.  Empty and absent differ, because
exporters decode into typed structures:

    topics     null: the topic filter matches nothing; []: none, or not with that channel
    clients    null: not wanted; []: none
    producers  null: not wanted, or none

With 10,000 channels this is 7 MB and a third of a second of work, so /stats makes it in pieces,
and the loop delivers messages in between.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.policy.policies import set_values
from penstock.engine.policy.rules import CHANNEL_KEYS, TOPIC_KEYS
from penstock.engine.stats.latency import format_ns
from penstock.engine.stats.memory import Memory
from penstock.record import record
from penstock.settings.policy import DEFAULT, DROP_OLDEST
from penstock.version import NSQ_VERSION, matched_line
from penstock.wire import gojson

_SECOND_NS = 1_000_000_000
# In nsqd's order; zeros are left out.
_LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


class Client(Protocol):
    """A connected client."""

    @property
    def pub_counts(self) -> Mapping[str, int]: ...
    def stats(self, topic: str) -> dict[str, Any]: ...


@record
class StatsSource:
    """Where the numbers come from."""

    components: Components
    clients: Collection[Client]
    memory: Memory


@record
class Selection:
    """The filters of a request; an empty name matches all."""

    topic: str = ""
    channel: str = ""
    include_clients: bool = True
    include_memory: bool = True
    policies: bool = False  # show all policies, not only those that are set


def json_pieces(source: StatsSource, wanted: Selection) -> Iterator[bytes]:
    """The JSON of /stats, in pieces, so that other work can run in between.

    A piece is at most a channel with its clients.  Pieces are from different moments, as in nsqd.
    """
    topics = _topics(source, wanted)
    summary = gojson.encode(_summary(source, wanted) | {"topics": [], "producers": []})
    head, _, remainder = summary.partition(b'"topics":[]')
    middle, _, tail = remainder.partition(b'"producers":[]')
    yield head + b'"topics":'
    if topics is None:
        yield b"null" + middle + b'"producers":null' + tail
        return
    yield b"["
    for at, topic in enumerate(topics):
        opening, _, closing = gojson.encode(_topic(topic, [], wanted)).partition(b'"channels":[]')
        yield (b"," if at else b"") + opening + b'"channels":['
        yield from _listed(_channel(channel, wanted) for channel in _channels(topic, wanted))
        yield b"]" + closing
    yield b"]" + middle + b'"producers":'
    producers = _producers(source, wanted)
    if producers:
        yield b"["
        yield from _listed(client.stats(wanted.topic) for client in producers)
        yield b"]" + tail
    else:
        yield b"null" + tail


def _listed(values: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    for at, value in enumerate(values):
        yield b"," + gojson.encode(value) if at else gojson.encode(value)


def _summary(source: StatsSource, wanted: Selection) -> dict[str, Any]:
    """Everything but topics and producers, with null in their places."""
    components = source.components
    stats: dict[str, Any] = {
        "version": NSQ_VERSION,
        "health": components.health.text,
        "start_time": components.broker.start_time,
        "topics": None,
    }
    if wanted.include_memory:
        stats["memory"] = source.memory.figures()
    stats["producers"] = None
    if damage := components.damage.summary:
        stats["damage"] = damage
    if wanted.policies:
        stats["policy_file"] = components.policies.stats
    if components.drain.draining:
        stats["draining"] = True
    if patterns := components.patterns.stats:
        stats["patterns"] = patterns
    return stats


def _topics(source: StatsSource, wanted: Selection) -> list[BaseTopic] | None:
    """The topics by name; None if the topic filter matches nothing."""
    known = source.components.broker.topics
    if not wanted.topic:
        topics = [topic for _, topic in sorted(known.items())]
    elif wanted.topic in known:
        topics = [known[wanted.topic]]
    else:
        return None
    if wanted.channel:
        topics = [topic for topic in topics if wanted.channel in topic.channels]
    return topics


def _channels(topic: BaseTopic, wanted: Selection) -> list[Channel]:
    """The topic's channels by name; the requested one may have been deleted since."""
    return [
        channel for name, channel in sorted(topic.channels.items()) if wanted.channel in ("", name)
    ]


def _producers(source: StatsSource, wanted: Selection) -> list[Client]:
    if not wanted.include_clients:
        return []
    return [client for client in list(source.clients) if client.pub_counts]


def _topic(topic: BaseTopic, channels: list[dict[str, Any]], wanted: Selection) -> dict[str, Any]:
    stats = {
        "topic_name": topic.name,
        "channels": channels,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": topic.latency.as_json(),
    }
    # Not in NSQ: there each channel counts the topic's deferred messages.
    if deferred_count := topic.deferred_count:
        stats["deferred_count"] = deferred_count
    stats |= _policy(topic, TOPIC_KEYS, wanted)
    return stats


def _channel(channel: Channel, wanted: Selection) -> dict[str, Any]:
    clients = [consumer.client for consumer in channel.consumers]
    stats: dict[str, Any] = {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
    }
    for locality, count in zip(_LOCALITIES, reversed(channel.delivery_counts), strict=True):
        if count:
            stats[locality] = count
    stats |= {
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(clients),
        "clients": [c.stats(wanted.topic) for c in clients] if wanted.include_clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": channel.latency.as_json(),
    }
    if (pull := channel.pull) is not None:
        stats["pull"] = pull
    if channel.topic.policy.overflow == DROP_OLDEST:
        stats["dropped_count"] = channel.dropped_count  # by its topic's policy
    return stats | _policy(channel, CHANNEL_KEYS, wanted)


def _policy(what: BaseTopic | Channel, keys: frozenset[str], wanted: Selection) -> dict[str, Any]:
    """Its policy and what that did; nothing if it has none, because NSQ's consumers of /stats
    do not know these fields."""
    if not wanted.policies and what.policy == DEFAULT and not what.own_policy:
        return {}
    return {"policy": set_values(what.policy, what.own_policy, keys), **what.policy_stats()}


def text_pieces(source: StatsSource, wanted: Selection, now_ns: int) -> Iterator[bytes]:
    """The text of /stats, byte for byte like nsqd's; in pieces, as above."""
    for lines in _text(source, wanted, now_ns):
        yield "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _text(source: StatsSource, wanted: Selection, now_ns: int) -> Iterator[list[str]]:
    summary = _summary(source, wanted)
    start_time = summary["start_time"]
    head = [
        matched_line("nsqd"),
        "start_time " + time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start_time)),
        f"uptime {go_duration(now_ns - start_time * _SECOND_NS)}",
        f"\nHealth: {summary['health']}",
    ]
    if damage := summary.get("damage"):
        head.append(
            f"\nDamage: {damage['records']} records, {damage['messages']} messages lost;"
            " see GET /damage"
        )
    if "memory" in summary:
        head.append("\nMemory:")
        head += [f"   {name:<25}\t{value}" for name, value in summary["memory"].items()]
    topics = _topics(source, wanted)
    yield [*head, "\nTopics:" if topics else "\nTopics: None"]
    for at, topic in enumerate(topics or ()):
        # nsqd begins each topic's line with a newline; the first one ends the heading.
        yield ["\n" * bool(at) + _topic_line(_topic(topic, [], wanted))]
        for channel in _channels(topic, wanted):
            yield _channel_lines(_channel(channel, wanted), now_ns)
    producers = [] if topics is None else _producers(source, wanted)
    yield ["\nProducers:" if producers else "\nProducers: None"]
    for client in producers:
        yield [f"   {_client_line(client.stats(wanted.topic), now_ns)}"]


def _topic_line(topic: Mapping[str, Any]) -> str:
    mark = "*P " if topic["paused"] else "   "
    return (
        f"{mark}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
        f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} "
        f"e2e%: {_latency_text(topic)}"
    )


def _channel_lines(channel: Mapping[str, Any], now_ns: int) -> list[str]:
    mark = "   *P " if channel["paused"] else "      "
    line = (
        f"{mark}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
        f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
        f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
        f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} "
        f"e2e%: {_latency_text(channel)}"
    )
    clients = channel["clients"] or ()
    return [line, *(f"        {_client_line(client, now_ns)}" for client in clients)]


def _latency_text(stats: Mapping[str, Any]) -> str:
    percentiles = stats["e2e_processing_latency"]["percentiles"] or ()
    return ", ".join(format_ns(percentile["value"]) for percentile in percentiles)


def _client_line(client: Mapping[str, Any], now_ns: int) -> str:
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    age_s = max(0, now_ns // _SECOND_NS - client["connect_ts"])
    connected = go_duration(age_s * _SECOND_NS)
    if pub_counts := client.get("pub_counts"):
        count = sum(entry["count"] for entry in pub_counts)
        topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in pub_counts)
        return f"[V2 {name:<21}] msgs: {count:<8} topics: {topics} connected: {connected}"
    return (
        f"[V2 {name:<21}] state: {client['state']} inflt: {client['in_flight_count']:<4} "
        f"rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} "
        f"re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8} "
        f"connected: {connected}"
    )


def go_duration(duration_ns: int) -> str:
    """A duration in Go's format: ``2.41915112s``, ``1h2m3s``, ``250ms``, ``0s``."""
    if duration_ns < 0:
        return "-" + go_duration(-duration_ns)
    if duration_ns == 0:
        return "0s"
    if duration_ns < _SECOND_NS:
        for unit, size in (("ms", 1_000_000), ("µs", 1_000), ("ns", 1)):
            if duration_ns >= size:
                return _decimal(duration_ns, size) + unit
    minutes, remainder_ns = divmod(duration_ns, 60 * _SECOND_NS)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h" if hours else ""
    if hours or minutes:
        text += f"{minutes}m"
    return f"{text}{_decimal(remainder_ns, _SECOND_NS)}s"


def _decimal(value: int, unit: int) -> str:
    whole, part = divmod(value, unit)
    digits = str(part).zfill(len(str(unit)) - 1).rstrip("0") if part else ""
    return f"{whole}.{digits}" if digits else str(whole)
