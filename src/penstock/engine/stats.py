"""The numbers of /stats: as a structure, in NSQ's order of fields, and as NSQ's text.

Topics and channels are sorted by name, clients are not.  Empty and absent differ, because
exporters decode into typed structures:

    topics     null: the topic filter matches nothing; []: none, or not with that channel
    clients    null: not wanted; []: none
    producers  null: not wanted, or none
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from penstock.engine.views import BrokerView, ChannelView, ConnectionView, TopicView
from penstock.version import NSQ_VERSION, version_line

_SECOND_NS = 1_000_000_000
# Nothing is configured to be tracked; nsqd then has the field all the same.
_NO_LATENCY: dict[str, object] = {"count": 0, "percentiles": None}


def snapshot(
    broker: BrokerView,
    *,
    topic: str = "",
    channel: str = "",
    include_clients: bool = True,
    memory: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The structure of ``/stats?format=json``; an empty filter takes all."""
    topics = _topics(broker, topic, channel, include_clients)
    producers = None
    if topics is not None and include_clients:
        producers = [
            _client(client, topic) for client in list(broker.clients) if client.pub_counts
        ] or None
    stats: dict[str, Any] = {
        "version": NSQ_VERSION,
        "health": broker.health,
        "start_time": broker.start_time,
        "topics": topics,
    }
    if memory is not None:
        stats["memory"] = dict(memory)
    stats["producers"] = producers
    return stats


def _topics(
    broker: BrokerView, topic_name: str, channel_name: str, include_clients: bool
) -> list[dict[str, Any]] | None:
    if not topic_name:
        topics = [topic for _, topic in sorted(broker.topics.items())]
    elif topic_name in broker.topics:
        topics = [broker.topics[topic_name]]
    else:
        return None
    result = []
    for topic in topics:
        if not channel_name:
            channels = [channel for _, channel in sorted(topic.channels.items())]
        elif channel_name in topic.channels:
            channels = [topic.channels[channel_name]]
        else:
            continue
        filtered = [_channel(channel, topic_name, include_clients) for channel in channels]
        result.append(_topic(topic, filtered))
    return result


def _topic(topic: TopicView, channels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "topic_name": topic.name,
        "channels": channels,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _NO_LATENCY,
    }


def _channel(channel: ChannelView, topic_name: str, include_clients: bool) -> dict[str, Any]:
    clients = channel.clients
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(clients),
        "clients": [_client(c, topic_name) for c in clients] if include_clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": _NO_LATENCY,
    }


def _client(client: ConnectionView, topic_name: str) -> dict[str, Any]:
    stats: dict[str, Any] = {
        "client_id": client.client_id,
        "hostname": client.hostname,
        "version": "V2",
        "remote_address": client.remote_address,
        "state": client.state,
        "ready_count": client.ready_count,
        "in_flight_count": client.in_flight_count,
        "message_count": client.message_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "connect_ts": client.connect_time,
        "sample_rate": client.sample_rate,
        "deflate": False,
        "snappy": False,
        "user_agent": client.user_agent,
        "topology_zone": client.topology_zone,
        "topology_region": client.topology_region,
    }
    if pub_counts := _pub_counts(client.pub_counts, topic_name):
        stats["pub_counts"] = pub_counts
    stats |= {
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }
    return stats


def _pub_counts(pub_counts: Mapping[str, int], topic_name: str) -> list[dict[str, Any]]:
    """At most one entry, as in nsqd: of the filtered topic, else of any."""
    for topic, count in pub_counts.items():
        if not topic_name or topic == topic_name:
            return [{"topic": topic, "count": count}]
    return []


def text(stats: Mapping[str, Any], now_ns: int) -> str:
    """``stats`` of ``snapshot()`` as /stats shows them to people, byte by byte nsqd's."""
    start_time = stats["start_time"]
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start_time))
    lines = [
        version_line("nsqd"),
        f"start_time {started}",
        f"uptime {go_duration(now_ns - start_time * _SECOND_NS)}",
        f"\nHealth: {stats['health']}",
    ]
    if "memory" in stats:
        lines.append("\nMemory:")
        lines += [f"   {name:<25}\t{value}" for name, value in stats["memory"].items()]
    topics = stats["topics"]
    # nsqd begins each topic's line with a newline; the first one ends the heading.
    lines.append("\nTopics:" if topics else "\nTopics: None")
    for at, topic in enumerate(topics or ()):
        lines += _topic_lines(topic, now_ns, "\n" if at else "")
    producers = stats["producers"]
    lines.append("\nProducers:" if producers else "\nProducers: None")
    lines += [f"   {_client_line(client, now_ns)}" for client in producers or ()]
    return "\n".join(lines) + "\n"


def _topic_lines(topic: Mapping[str, Any], now_ns: int, before: str) -> list[str]:
    mark = "*P " if topic["paused"] else "   "
    lines = [
        f"{before}{mark}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
        f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} e2e%: "
    ]
    for channel in topic["channels"]:
        mark = "   *P " if channel["paused"] else "      "
        lines.append(
            f"{mark}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
            f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
            f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} e2e%: "
        )
        lines += [f"        {_client_line(c, now_ns)}" for c in channel["clients"] or ()]
    return lines


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
    """A duration in Go's words: ``2.41915112s``, ``1h2m3s``, ``250ms``, ``0s``."""
    if duration_ns < 0:
        return "-" + go_duration(-duration_ns)
    if duration_ns == 0:
        return "0s"
    if duration_ns < _SECOND_NS:
        for unit, size in (("ms", 1_000_000), ("µs", 1_000), ("ns", 1)):
            if duration_ns >= size:
                return _decimal(duration_ns, size) + unit
    minutes, rest_ns = divmod(duration_ns, 60 * _SECOND_NS)
    hours, minutes = divmod(minutes, 60)
    words = f"{hours}h" if hours else ""
    if hours or minutes:
        words += f"{minutes}m"
    return f"{words}{_decimal(rest_ns, _SECOND_NS)}s"


def _decimal(value: int, unit: int) -> str:
    whole, part = divmod(value, unit)
    digits = str(part).zfill(len(str(unit)) - 1).rstrip("0") if part else ""
    return f"{whole}.{digits}" if digits else str(whole)
