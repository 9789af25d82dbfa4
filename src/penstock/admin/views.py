"""The values of each page as plain dicts: its template and its JSON twin get the same.

    view = await views.topic(admin, "orders")        raises HttpError(404, ...) if it is unknown

All views have:

    page        "topic"
    sample      {"number": 12, "at_ms": 1794717613000, "interval_ms": 5000}
    warnings    ["10.0.0.5:4151: connection refused"]     nodes that failed; data is from the others
    mode        "lookupd" or "nsqd": the source of the list of nodes

and the parts below.  Rates are per second, times are ms or s by their names, ``None`` is unknown
(Go's nsqd does not report everything).  Names, bodies, addresses and texts are untrusted.

    FIGURES     depth (waiting messages: of a topic its own and those of the channel that is
                furthest behind), in_flight (delivered, not answered yet), deferred (messages
                waiting for their time; a topic's count once, however many channels will get
                them), clients,
                message_count, requeue_count, timeout_count (since the nodes' starts),
                publish_rate, consume_rate, requeue_rate, timeout_rate
    NODE        node ("host:port", its name in paths), hostname, broadcast_address, tcp_port,
                http_port, version, zone, region, state ("ok", "unhealthy", "down"), health, error,
                own (of Penstock), out_of_date, start_time (s), topic_count, channel_count,
                lookupds [address], lookupd_count, tombstones [topic], memory_size,
                damage {records, messages, kinds {kind: count}} or None, draining, + FIGURES
    TOPIC       topic, ephemeral, paused, node_count, channel_count, topic_depth (not in any
                channel yet), message_bytes, lag_s (of its slowest channel), lag_open, + FIGURES
    CHANNEL     topic, channel, ephemeral, paused, pull (read by Spark), node_count, backend_depth,
                lag_s (age of the oldest unfinished message), lag_open ("at least"), + FIGURES;
                its publish_rate is the rate of arrivals
    READER      of pull channels: channel, identity (None: not bound yet), reader (its display
                name), since_ms, nodes [name], text
    LATENCY     [{"quantile": 0.99, "ms": 12.5}]
    CHART       {"recent": SERIES, "hour": SERIES}: the last 10 minutes, the last hour
    SERIES      {"step_ms": 5000, "end_ms": .., "count_max": 120, "series": {"depth": [1, None]}}
                of depth, in_flight, deferred, in_rate, out_rate, requeue_rate, timeout_rate, lag_s
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.admin import dead_letters, effects, patterns, readers, rows
from penstock.admin import pipelines as queries
from penstock.admin.details import SPANS
from penstock.admin.history import CLUSTER
from penstock.admin.policies import Policies
from penstock.admin.sample import Sample, TopicSum
from penstock.net.http_message import HttpError

if TYPE_CHECKING:
    from penstock.admin.app import Admin

View = rows.View

SLOWEST_COUNT = 20
BUSIEST_COUNT = 10
INACTIVE_COUNT_MAX = 1000


async def overview(admin: Admin) -> View:
    """totals: FIGURES and counts; nodes [NODE]; slowest [CHANNEL]; busiest [TOPIC]; chart."""
    sample = await admin.sample()
    channels = [c for topic in sample.topics.values() for c in topic.channels.values()]
    behind = sorted(
        (channel for channel in channels if channel.depth + channel.in_flight),
        key=lambda channel: (-channel.lag_s, -channel.depth, channel.topic, channel.name),
    )
    busiest = sorted(sample.topics.values(), key=lambda topic: (-topic.publish_rate, topic.name))
    return {
        **_head(admin, "overview", sample),
        "totals": rows.totals(sample),
        "nodes": [rows.node_row(sample, node) for node in rows.nodes(sample)],
        "slowest": [rows.channel_row(channel) for channel in behind[:SLOWEST_COUNT]],
        "busiest": [
            rows.topic_row(topic) for topic in busiest[:BUSIEST_COUNT] if topic.publish_rate
        ],
        "chart": admin.history.chart(CLUSTER),
    }


async def topics(admin: Admin) -> View:
    """totals; topics [TOPIC] by name; inactive [name]: known to nsqlookupd, but on no node."""
    sample = await admin.sample()
    return {
        **_head(admin, "topics", sample),
        "totals": rows.totals(sample),
        "topics": [rows.topic_row(topic) for topic in sample.topics.values()],
        "inactive": sorted(sample.inactive),
    }


async def topic(admin: Admin, name: str) -> View:
    """topic: TOPIC; nodes [TOPIC ON NODE]; channels [CHANNEL + latency]; readers [READER]; latency;
    policy: POLICY or None, see ``policies``; bounds [BOUND]; hour [{count, what}]; chart.

    TOPIC ON NODE: node, hostname, topic_depth, memory_depth, backend_depth, message_count,
    message_bytes, channel_count, paused, latency: LATENCY, readers [READER].
    ``inactive`` if no node has it; all lists are then empty.
    """
    sample = await admin.sample()
    found = sample.topics.get(name)
    if found is None and name not in sample.inactive:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    shown = found or TopicSum(name)
    parts = [(sample.nodes[node], sample.nodes[node].topics[name]) for node in shown.nodes]
    read_by = readers.shown(sample, shown.channels.values())
    head = _head(admin, "topic", sample)
    policy = await admin.details.policy(sample, name) if found is not None else Policies()
    return {
        **head,
        "warnings": head["warnings"] + policy.warnings,
        "topic": rows.topic_row(shown),
        "inactive": found is None,
        "nodes": [
            {
                "node": node.node,
                "hostname": node.hostname,
                "topic_depth": part.depth,
                "memory_depth": part.depth - part.backend_depth,
                "backend_depth": part.backend_depth,
                "message_count": part.messages,
                "message_bytes": part.message_bytes,
                "channel_count": len(part.channels),
                "paused": part.paused,
                "latency": rows.latency([part.latency]),
                "readers": [reader for reader in read_by if node.node in reader["nodes"]],
            }
            for node, part in sorted(parts, key=lambda pair: (pair[0].hostname, pair[0].node))
        ],
        "channels": [
            rows.channel_row(channel)
            | {"latency": rows.latency(p.latency for _, p in rows.parts_of(sample, channel))}
            for _, channel in sorted(shown.channels.items())
        ],
        "readers": read_by,
        "latency": rows.latency(part.latency for _, part in parts),
        "policy": policy.shown,
        "bounds": effects.bounds((node.node, part) for node, part in parts),
        "hour": admin.effects.hour(name),
        "chart": admin.history.chart(("topic", name)),
    }


async def channel(admin: Admin, topic_name: str, name: str) -> View:
    """channel: CHANNEL + latency; nodes [CHANNEL ON NODE]; clients [CLIENT]; readers [READER];
    can_peek; policy: POLICY or None; hour [{count, what}]; limits: values of max_attempts above
    those of most clients; buried: messages, of nodes with a policy of the channel; chart.

    clients: at most 1000; ``clients_left_out`` is the number of others.

    CHANNEL ON NODE: node, hostname, depth, memory_depth, backend_depth, in_flight, deferred,
    message_count, requeue_count, timeout_count, clients, paused, own, latency, delivery {zone,
    region, global} or None, pull: PULL or None.
    CLIENT: node, node_hostname, client_id, hostname, remote_address, user_agent, version, state,
    ready_count, in_flight_count, message_count, finish_count, requeue_count, connect_ts (s),
    sample_rate, deflate, snappy, tls, tls_version, tls_cipher_suite, tls_negotiated_protocol,
    topic, channel, authed, auth_identity, auth_identity_url, zone, region, near ("zone", "region"
    or "").
    """
    sample = await admin.sample()
    found = sample.topics.get(topic_name)
    shown = found.channels.get(name) if found is not None else None
    if shown is None:
        if found is None and topic_name not in sample.inactive:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    details = await admin.details.channel(sample, topic_name, name)
    policy = await admin.details.policy(sample, topic_name, name)
    parts = rows.parts_of(sample, shown)
    head = _head(admin, "channel", sample)
    return {
        **head,
        "warnings": list(dict.fromkeys(head["warnings"] + details.warnings + policy.warnings)),
        "channel": rows.channel_row(shown)
        | {"latency": rows.latency(part.latency for _, part in parts)},
        "nodes": [
            rows.channel_part_row(node, part) | {"delivery": details.delivery.get(node.node)}
            for node, part in sorted(parts, key=lambda pair: (pair[0].hostname, pair[0].node))
        ],
        "clients": details.clients,
        "clients_left_out": details.left_out,
        "readers": readers.shown(sample, [shown]),
        "can_peek": any(node.own for node, _ in parts),
        "policy": policy.shown,
        "hour": admin.effects.hour(topic_name, name),
        "limits": dead_letters.client_limits(policy.shown),
        "buried": sum(part.counts.get("buried", 0) for _, part in parts),
        "chart": admin.history.chart(("channel", topic_name, name)),
    }


async def nodes(admin: Admin) -> View:
    """nodes [NODE]; lookupds [LOOKUPD], see ``lookup``."""
    sample = await admin.sample()
    return {
        **_head(admin, "nodes", sample),
        "nodes": [rows.node_row(sample, node) for node in rows.nodes(sample)],
        "lookupds": rows.lookupds(sample),
    }


async def node(admin: Admin, name: str) -> View:
    """node: NODE; memory {name: number}; topics [TOPIC ON NODE]; clients; damage [DAMAGE]; chart;
    drain: of a node that is being drained, else None; others [node]: those that deferred messages
    can be handed over to.

    TOPIC ON NODE: topic, topic_depth, backend_depth, message_count, message_bytes, paused,
    tombstoned, latency, channels [CHANNEL ON NODE + channel].  clients: of all channels.
    drain: the fields of its GET /drain: left, deferred_until_ms, blocked, blocked_count, to,
    handed_over, error.
    DAMAGE: time_ms, kind, topic, path, messages (None: unknown), text; the newest first.
    """
    sample = await admin.sample()
    found = sample.nodes.get(name)
    if found is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    details = await admin.details.node(sample, name)
    damage = await admin.details.damage(sample, name)
    drain = await admin.details.drain(sample, name)
    head = _head(admin, "node", sample)
    return {
        **head,
        "warnings": head["warnings"] + details.warnings + damage.warnings + drain.warnings,
        "node": rows.node_row(sample, found),
        "damage": damage.records,
        "drain": drain.progress,
        "others": [
            part.node
            for part in rows.nodes(sample)
            if part is not found and part.own and part.answered and not part.draining
        ],
        "memory": found.memory,
        "topics": [
            {
                "topic": topic_name,
                "topic_depth": part.depth,
                "backend_depth": part.backend_depth,
                "message_count": part.messages,
                "message_bytes": part.message_bytes,
                "paused": part.paused,
                "tombstoned": topic_name in found.tombstones,
                "latency": rows.latency([part.latency]),
                "channels": [
                    rows.channel_part_row(found, channel) | {"channel": channel_name}
                    for channel_name, channel in sorted(part.channels.items())
                ],
            }
            for topic_name, part in sorted(found.topics.items())
        ],
        "clients": details.clients,
        "clients_left_out": details.left_out,
        "chart": admin.history.chart(("node", name)),
    }


async def lookup(admin: Admin) -> View:
    """lookupds [LOOKUPD]; inactive [{"topic": .., "channels": [..]}]: on no node any more; at most
    1000; ``inactive_left_out`` is the number of others.

    LOOKUPD: address, state ("ok", "down"), error, node_count, topic_count.
    """
    sample = await admin.sample()
    return {
        **_head(admin, "lookup", sample),
        "lookupds": rows.lookupds(sample),
        "inactive": [
            {"topic": name, "channels": sorted(channels)}
            for name, channels in sorted(sample.inactive.items())[:INACTIVE_COUNT_MAX]
        ],
        "inactive_left_out": max(0, len(sample.inactive) - INACTIVE_COUNT_MAX),
    }


async def counter(admin: Admin) -> View:
    """message_count: received by all channels since the nodes' starts; rate: current; chart."""
    sample = await admin.sample()
    channels = [c for topic in sample.topics.values() for c in topic.channels.values()]
    return {
        **_head(admin, "counter", sample),
        "message_count": sum(channel.messages for channel in channels),
        "rate": round(sum(channel.arrival_rate for channel in channels), 3),
        "chart": admin.history.chart(CLUSTER, "in_rate", "out_rate"),
    }


async def deferred(admin: Admin) -> View:
    """Deferred messages; those published with a delay by due time.

    deferred: all of them, the figure of the other pages; total: those published with a delay;
    spans [{"until_s": 3600, "label": "within the hour", "count": n}], the last one's until_s
    is None; hours [{"start_ms", "count"}]: the next two days by hour;
    topics [{"topic", "deferred", "count" (published with a delay), "next_due_ms" (the start of
    its hour), "counts": [n per span]}];
    channels [{"topic", "channel", "deferred"}]: deferred for each channel, its topic's included;
    silent [node]: nodes that do not report due times (Go's have no list).
    """
    sample = await admin.sample()
    details = await admin.details.deferred(sample)
    head = _head(admin, "deferred", sample)
    return {
        **head,
        "warnings": head["warnings"] + details.warnings,
        "deferred": sample.totals.deferred,
        "total": details.total,
        "spans": details.spans,
        "hours": details.hours,
        "topics": _deferred_topics(sample, details.topics),
        "channels": [
            {"topic": channel.topic, "channel": channel.name, "deferred": channel.deferred}
            for topic in sample.topics.values()
            for channel in topic.channels.values()
            if channel.deferred
        ],
        "silent": details.silent,
    }


def _deferred_topics(sample: Sample, due: list[View]) -> list[View]:
    """The due times that are known, and the deferred count of every topic that has any."""
    known = {row["topic"]: row for row in due}
    names = {name for name, topic in sample.topics.items() if topic.deferred} | set(known)
    nothing = {"count": 0, "next_due_ms": None, "counts": [0] * len(SPANS)}
    return [
        {"topic": name, "deferred": topic.deferred if topic is not None else 0}
        | nothing
        | known.get(name, {})
        for name, topic in ((name, sample.topics.get(name)) for name in sorted(names))
    ]


async def pipelines(admin: Admin) -> View:
    """pipelines [PIPELINE]: the Spark queries that read topics, each once.

    PIPELINE: name, query (Spark's id), state (of ``PipelineState``, or "silent": no request for a
    minute, or "unknown": it has not reported), lapsing, readers [name], channels
    [name], topics [{"topic", "channel", "depth", "lag_s", "lag_open"}], depth, lag_s, lag_open (of
    its slowest topic),
    input_rate, processed_rate, batch, batch_ms, rows (of its last batch), sink, error, at_ms,
    nodes [{"node", "depth", "idle_ms", "lapses_in_ms"}], chart.

    patterns [PATTERN]: new topics that get a reader's channel, by channel.

    PATTERN: channel, identity, reader, topics [glob], except [name], nodes [name], idle_ms,
    lapses_in_ms.
    """
    sample = await admin.sample()
    nodes = ((part.node, part.patterns) for part in sample.nodes.values() if part.answered)
    return {
        **_head(admin, "pipelines", sample),
        "pipelines": queries.rows(sample, admin.history),
        "patterns": patterns.rows(nodes),
    }


def _head(admin: Admin, page: str, sample: Sample) -> View:
    return {
        "page": page,
        "mode": "lookupd" if sample.lookupds else "nsqd",
        "sample": {
            "number": sample.number,
            "at_ms": sample.at_ms,
            "interval_ms": admin.options.sample_interval_ns // rows.MS_NS,
        },
        "warnings": list(sample.warnings),
    }
