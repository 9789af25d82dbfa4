"""The rows of the pages' tables; ``views`` describes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.admin.sample import (
    ChannelPart,
    ChannelSum,
    Figures,
    NodePart,
    Pull,
    Sample,
    TopicSum,
)
from penstock.wire.names import is_ephemeral

View = dict[str, Any]

MS_NS = 1_000_000


def totals(sample: Sample) -> View:
    """FIGURES + topic_count, channel_count, node_count, node_up_count."""
    return figures(sample.totals) | {
        "topic_count": len(sample.topics),
        "channel_count": sample.channel_count,
        "node_count": len(sample.nodes),
        "node_up_count": sum(node.answered for node in sample.nodes.values()),
    }


def figures(figures: Figures) -> View:
    return {
        "depth": figures.depth + figures.backlog,
        "in_flight": figures.in_flight,
        "deferred": figures.deferred,
        "clients": figures.clients,
        "message_count": figures.messages,
        "requeue_count": figures.requeues,
        "timeout_count": figures.timeouts,
        "publish_rate": round(figures.publish_rate, 3),
        "consume_rate": round(figures.consume_rate, 3),
        "requeue_rate": round(figures.requeue_rate, 3),
        "timeout_rate": round(figures.timeout_rate, 3),
    }


def nodes(sample: Sample) -> list[NodePart]:
    return sorted(sample.nodes.values(), key=lambda node: (node.hostname, node.node))


def node_row(sample: Sample, node: NodePart) -> View:
    state = "down" if not node.answered else "ok" if node.health == "OK" else "unhealthy"
    memory = node.memory
    return {
        "node": node.node,
        "hostname": node.hostname,
        "broadcast_address": node.broadcast_address,
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": node.version,
        "zone": node.zone,
        "region": node.region,
        "state": state,
        "health": node.health,
        "error": node.error,
        "own": node.own,
        "out_of_date": node.out_of_date,
        "start_time": node.start_time,
        "topic_count": len(node.topics),
        "channel_count": node.channel_count,
        "lookupds": list(node.lookupds),
        "lookupd_count": len(sample.lookupds),
        "tombstones": list(node.tombstones),
        "memory_size": memory.get("heap_in_use_bytes"),
        "draining": node.draining,
        "damage": None if node.damage is None else node.damage._asdict(),
        **figures(node.figures),
    }


def topic_row(topic: TopicSum) -> View:
    channels = topic.channels.values()
    slowest = max(channels, key=lambda channel: channel.lag_s, default=None)
    return {
        "topic": topic.name,
        "ephemeral": is_ephemeral(topic.name),
        "paused": topic.paused,
        "node_count": len(topic.nodes),
        "channel_count": len(channels),
        "topic_depth": topic.depth,
        "message_bytes": topic.message_bytes,
        "lag_s": round(slowest.lag_s, 1) if slowest is not None else 0.0,
        "lag_open": slowest.lag_open if slowest is not None else False,
        "depth": topic.depth + topic.backlog,
        "in_flight": sum(channel.in_flight for channel in channels),
        "deferred": topic.deferred,
        "clients": sum(channel.clients for channel in channels),
        "message_count": topic.messages,
        "requeue_count": sum(channel.requeues for channel in channels),
        "timeout_count": sum(channel.timeouts for channel in channels),
        "publish_rate": round(topic.publish_rate, 3),
        "consume_rate": round(sum(channel.consume_rate for channel in channels), 3),
        "requeue_rate": round(sum(channel.requeue_rate for channel in channels), 3),
        "timeout_rate": round(sum(channel.timeout_rate for channel in channels), 3),
    }


def channel_row(channel: ChannelSum) -> View:
    return {
        "topic": channel.topic,
        "channel": channel.name,
        "ephemeral": is_ephemeral(channel.name),
        "paused": channel.paused,
        "pull": channel.pull,
        "node_count": len(channel.nodes),
        "backend_depth": channel.backend_depth,
        "lag_s": round(channel.lag_s, 1),
        "lag_open": channel.lag_open,
        "depth": channel.depth,
        "in_flight": channel.in_flight,
        "deferred": channel.deferred,
        "clients": channel.clients,
        "message_count": channel.messages,
        "requeue_count": channel.requeues,
        "timeout_count": channel.timeouts,
        "publish_rate": round(channel.arrival_rate, 3),
        "consume_rate": round(channel.consume_rate, 3),
        "requeue_rate": round(channel.requeue_rate, 3),
        "timeout_rate": round(channel.timeout_rate, 3),
    }


def parts_of(sample: Sample, channel: ChannelSum) -> list[tuple[NodePart, ChannelPart]]:
    return [
        (node, node.topics[channel.topic].channels[channel.name])
        for node in (sample.nodes[name] for name in channel.nodes)
    ]


def channel_part_row(node: NodePart, part: ChannelPart) -> View:
    return {
        "node": node.node,
        "hostname": node.hostname,
        "own": node.own,
        "depth": part.depth,
        "memory_depth": part.depth - part.backend_depth,
        "backend_depth": part.backend_depth,
        "in_flight": part.in_flight,
        "deferred": part.deferred,
        "message_count": part.messages,
        "requeue_count": part.requeues,
        "timeout_count": part.timeouts,
        "clients": part.clients,
        "paused": part.paused,
        "latency": latency([part.latency]),
        "pull": _pull(part.pull),
    }


def _pull(pull: Pull | None) -> View | None:
    if pull is None:
        return None
    report = None if pull.progress is None else pull.progress.as_json()
    return {
        "idle_ms": pull.idle_ms,
        "lapses_in_ms": pull.lapses_in_ms,
        "progress": report,
        "progress_ms": pull.progress_ms,
        "identity": pull.identity,
        "reader": pull.reader,
        "reader_since_ms": pull.since_ms,
    }


def latency(several: Iterable[tuple[tuple[float, float], ...]]) -> list[View]:
    """The highest value of all nodes for each quantile: percentiles cannot be added."""
    worst: dict[float, float] = {}
    for percentiles in several:
        for quantile, value in percentiles:
            worst[quantile] = max(worst.get(quantile, 0.0), value)
    return [
        {"quantile": quantile, "ms": round(value / MS_NS, 3)}
        for quantile, value in sorted(worst.items())
    ]


def lookupds(sample: Sample) -> list[View]:
    return [
        {
            "address": lookupd.address,
            "state": "ok" if lookupd.answered else "down",
            "error": lookupd.error,
            "node_count": lookupd.node_count,
            "topic_count": lookupd.topic_count,
        }
        for lookupd in sample.lookupds
    ]
