"""NSQ's objects of /api: topics, channels and nodes over several nsqds, built from decoded JSON.

The fields, their order and which are omitted are NSQ's.  NSQ overwrites the first node's values
with the sum; here ``nodes`` has the values of each node.

A part of a node:      {"node": "10.0.0.5:4151", ..., "nodes": null}
A sum over nodes:      {"node": "*", ..., "nodes": [parts by hostname]}

An invalid response of a daemon raises ValueError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.wire.peer_answers import Object, objects, text

TOPIC_NUMBERS = ("depth", "memory_depth", "backend_depth", "message_count")
CHANNEL_NUMBERS = (
    *("depth", "memory_depth", "backend_depth", "in_flight_count", "deferred_count"),
    *("requeue_count", "timeout_count", "message_count"),
)
# Only of nodes that know their consumers' zones; omitted if 0.
LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
SECOND_NS = 1_000_000_000
# NSQ counts in int64.
NUMBER_MAX = 1 << 63

CLIENT_FIELDS: Mapping[str, Any] = {
    "remote_address": "",
    "version": "",
    "client_id": "",
    "hostname": "",
    "user_agent": "",
    "connect_ts": 0,
    "connected": 0,
    "in_flight_count": 0,
    "ready_count": 0,
    "finish_count": 0,
    "requeue_count": 0,
    "message_count": 0,
    "sample_rate": 0,
    "deflate": False,
    "snappy": False,
    "authed": False,
    "auth_identity": "",
    "auth_identity_url": "",
    "tls": False,
    "tls_cipher_suite": "",
    "tls_version": "",
    "tls_negotiated_protocol": "",
    "tls_negotiated_protocol_is_mutual": False,
    "topology_zone": "",
    "topology_region": "",
}


def topic_part(topic: Mapping[str, Any], producer: Mapping[str, Any], now_s: float) -> Object:
    """A topic of a node's /stats; raises ValueError if it is not one."""
    node, hostname = producer["node"], producer["hostname"]
    name = text(topic, "topic_name")
    depth, backend_depth = count(topic, "depth"), count(topic, "backend_depth")
    channels = [
        channel_part(channel, name, producer, now_s) for channel in objects(topic.get("channels"))
    ]
    return {
        "node": node,
        "hostname": hostname,
        "topic_name": name,
        "depth": depth,
        "memory_depth": depth - backend_depth,
        "backend_depth": backend_depth,
        "message_count": count(topic, "message_count"),
        "delivery_msg_count": sum(channel.get("delivery_msg_count", 0) for channel in channels),
        "nodes": None,
        "channels": channels,
        "paused": topic.get("paused") is True,
        "e2e_processing_latency": latency_part(topic.get("e2e_processing_latency")),
    }


def channel_part(
    channel: Mapping[str, Any], topic: str, producer: Mapping[str, Any], now_s: float
) -> Object:
    depth, backend_depth = count(channel, "depth"), count(channel, "backend_depth")
    found = channel.get("clients")
    clients = None if found is None else objects(found)
    part: Object = {
        "node": producer["node"],
        "hostname": producer["hostname"],
        "topic_name": topic,
        "channel_name": text(channel, "channel_name"),
        "depth": depth,
        "memory_depth": depth - backend_depth,
        "backend_depth": backend_depth,
        **{name: count(channel, name) for name in CHANNEL_NUMBERS[3:]},
    }
    _add_deliveries(part, channel)
    return part | {
        "client_count": count(channel, "client_count", len(clients or ())),
        "nodes": None,
        "clients": None
        if clients is None
        else [client_part(client, producer, now_s) for client in clients],
        "paused": channel.get("paused") is True,
        "e2e_processing_latency": latency_part(channel.get("e2e_processing_latency")),
    }


def _add_deliveries(target: Object, counts: Mapping[str, Any]) -> None:
    """Add the delivery counts by the consumer's distance; omitted if all are 0."""
    near = {name: target.get(name, 0) + count(counts, name, 0) for name in LOCALITIES}
    if total := sum(near.values()):
        target["delivery_msg_count"] = total
        target.update((name, number) for name, number in near.items() if number)


def client_part(client: Mapping[str, Any], producer: Mapping[str, Any], now_s: float) -> Object:
    part: Object = {"node": producer["node"]}
    for name, absent in CLIENT_FIELDS.items():
        value = client.get(name, absent)
        part[name] = value if _is_like(value, absent) else absent
    part["connected"] = max(0, int(now_s) - part["connect_ts"]) * SECOND_NS
    part["node_topology_region"] = producer.get("topology_region", "")
    part["node_topology_zone"] = producer.get("topology_zone", "")
    return part


def _is_like(value: Any, absent: Any) -> bool:
    if type(value) is not type(absent):
        return False
    return not isinstance(value, int) or -NUMBER_MAX <= value < NUMBER_MAX


def nearness(client: Mapping[str, Any]) -> int:
    """0: in the node's zone, 1: in its region, 2: elsewhere or unknown."""
    region = client["node_topology_region"]
    if not region or client["topology_region"] != region:
        return 2
    zone = client["node_topology_zone"]
    return 0 if zone and client["topology_zone"] == zone else 1


def topic_sum(name: str, parts: Iterable[Object]) -> Object:
    """One topic summed over several nodes."""
    parts = by_host(parts)
    channels: dict[str, list[Object]] = {}
    for part in parts:
        for channel in part["channels"]:
            channels.setdefault(channel["channel_name"], []).append(channel)
    total: Object = {"node": "*", "hostname": "", "topic_name": name}
    total |= {key: sum(part[key] for part in parts) for key in TOPIC_NUMBERS}
    return total | {
        "delivery_msg_count": sum(part["delivery_msg_count"] for part in parts),
        "nodes": parts,
        "channels": [channel_sum(name, channels[key]) for key in sorted(channels)],
        "paused": any(part["paused"] for part in parts),
        "e2e_processing_latency": latency_sum(parts, name, ""),
    }


def channel_sum(topic: str, parts: Iterable[Object]) -> Object:
    """One channel summed over several nodes."""
    parts = by_host(parts)
    name = parts[0]["channel_name"]
    total: Object = {"node": "*", "hostname": "", "topic_name": topic, "channel_name": name}
    total |= {key: sum(part[key] for part in parts) for key in CHANNEL_NUMBERS}
    for part in parts:
        _add_deliveries(total, part)
    clients = [client for part in parts for client in part["clients"] or ()]
    clients.sort(key=lambda client: (client["node"], nearness(client)))
    return total | {
        "client_count": sum(part["client_count"] for part in parts),
        "nodes": parts,
        "clients": clients or None,
        "paused": any(part["paused"] for part in parts),
        "e2e_processing_latency": latency_sum(parts, topic, name),
    }


def by_host(parts: Iterable[Object]) -> list[Object]:
    return sorted(parts, key=lambda part: (part["hostname"], part["node"], part["topic_name"]))


def latency_part(latency: Any) -> Object:
    """A node's percentiles, as a sum over one node."""
    found = latency if isinstance(latency, Mapping) else {}
    number = count(found, "count", 0)
    percentiles = [
        {
            "average": _float(entry, "value"),
            "count": number,
            "max": _float(entry, "value"),
            "min": _float(entry, "value"),
            "quantile": _float(entry, "quantile"),
            "value": _float(entry, "value"),
        }
        for entry in objects(found.get("percentiles"))
    ]
    return _latency(number, percentiles, "", "", "")


def latency_sum(parts: Iterable[Object], topic: str, channel: str) -> Object:
    """Percentiles of several nodes: the mean weighted by messages, and the extremes."""
    merged: dict[float, Object] = {}
    total = 0
    for part in parts:
        latency = part["e2e_processing_latency"]
        total += latency["count"]
        for entry in latency["percentiles"] or ():
            known = merged.get(entry["quantile"])
            merged[entry["quantile"]] = dict(entry) if known is None else _mean(known, entry)
    percentiles = [merged[quantile] for quantile in sorted(merged, reverse=True)]
    return _latency(total, percentiles, topic, channel, "*")


def _mean(one: Object, other: Object) -> Object:
    number = one["count"] + other["count"]
    if number:
        weighted = one["average"] * one["count"] + other["average"] * other["count"]
        average = weighted / number
    else:
        average = (one["average"] + other["average"]) / 2
    return {
        "average": average,
        "count": number,
        "max": max(one["max"], other["max"]),
        "min": min(one["min"], other["min"]),
        "quantile": one["quantile"],
        "value": average,
    }


def _latency(number: int, percentiles: list[Object], topic: str, channel: str, host: str) -> Object:
    return {
        "count": number,
        "percentiles": percentiles or None,
        "topic": topic,
        "channel": channel,
        "host": host,
    }


# Validation


def count(holder: Mapping[str, Any], name: str, absent: int | None = None) -> int:
    value = holder.get(name, absent)
    if type(value) is not int or not -NUMBER_MAX <= value < NUMBER_MAX:
        raise ValueError(f"{name} is not a number")
    return value


def _float(holder: Mapping[str, Any], name: str) -> float:
    value: Any = holder.get(name)
    if type(value) not in (int, float) or not -NUMBER_MAX <= value < NUMBER_MAX:
        raise ValueError(f"{name} is not a number")
    return float(value) if type(value) is float else value
