"""Data that only one page shows and that is not sampled: clients, due times, damage records.

Rule 1: fetched when a page is requested, and cached for KEEP_S: a hundred browsers on one page
        cost the daemons as much as one.
Rule 2: a daemon that does not respond is a warning; the others' data is shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.admin import api_objects, policies
from penstock.admin.policies import Policies
from penstock.admin.rows import View
from penstock.admin.sample import NodePart, Sample
from penstock.admin.upstream import Upstream, UpstreamError, request_all
from penstock.wire.peer_answers import channels_in, objects, stats_query, text

KEEP_S = 2.0
KEPT_COUNT_MAX = 64
CLIENT_COUNT_MAX = 1000
DAMAGE_COUNT_MAX = 200
BLOCKED_COUNT_MAX = 100
DRAIN_COUNTS = (
    *("messages", "topics", "queued", "in_flight", "requeued", "deferred", "held", "unread"),
    *("buried", "stagings"),
)
HOUR_S = 3600
HOUR_COUNT_MAX = 48

# (upper bound in seconds from now, label)
SPANS: tuple[tuple[int | None, str], ...] = (
    (HOUR_S, "within the hour"),
    (6 * HOUR_S, "in 1 to 6 hours"),
    (24 * HOUR_S, "in 6 to 24 hours"),
    (7 * 24 * HOUR_S, "in 1 to 7 days"),
    (30 * 24 * HOUR_S, "in 7 to 30 days"),
    (None, "later"),
)


@dataclass(slots=True)
class Clients:
    """Clients of a channel or of a node, and how many were left out."""

    clients: list[View] = field(default_factory=list)
    left_out: int = 0
    delivery: dict[str, View] = field(default_factory=dict)  # by node, of a channel
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Damages:
    """Damaged or missing data that a node has found."""

    records: list[View] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Drain:
    """The progress of a node's drain; None if it is not being drained."""

    progress: View | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class PendingMessages:
    """Messages published with a delay."""

    total: int = 0
    spans: list[View] = field(default_factory=list)
    hours: list[View] = field(default_factory=list)
    topics: list[View] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Details:
    """Fetches, and caches for KEEP_S."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._kept: dict[tuple[str, ...], tuple[float, asyncio.Task[Any]]] = {}

    async def channel(self, sample: Sample, topic: str, channel: str) -> Clients:
        """The clients of a channel on all nodes."""
        nodes = sample.topics[topic].channels[channel].nodes
        parts = [sample.nodes[node] for node in nodes]
        found: Clients = await self._once(
            ("channel", topic, channel), lambda: self._clients(parts, topic, channel)
        )
        return found

    async def node(self, sample: Sample, node: str) -> Clients:
        """The clients of all channels of a node."""
        part = sample.nodes[node]
        if not part.answered:
            return Clients()
        found: Clients = await self._once(("node", node), lambda: self._clients([part], "", ""))
        return found

    async def damage(self, sample: Sample, node: str) -> Damages:
        """The damage records of a node."""
        part = sample.nodes[node]
        if not part.answered or part.damage is None:
            return Damages()
        found: Damages = await self._once(("damage", node), lambda: self._damage(part))
        return found

    async def policy(self, sample: Sample, topic: str, channel: str = "") -> Policies:
        """The policy of a topic or channel on the nodes that have it."""
        found = sample.topics[topic]
        nodes = found.channels[channel].nodes if channel else found.nodes
        parts = [sample.nodes[node] for node in nodes if sample.nodes[node].own]
        if not parts:
            return Policies()
        # By sample: the page after a change shows it.
        result: Policies = await self._once(
            ("policy", str(sample.number), topic, channel),
            lambda: policies.fetch(self._upstream, parts, topic, channel),
        )
        return result

    async def drain(self, sample: Sample, node: str) -> Drain:
        """The drain of a node."""
        part = sample.nodes[node]
        if not part.answered or not part.draining:
            return Drain()
        found: Drain = await self._once(("drain", node), lambda: self._drain(part))
        return found

    async def deferred(self, sample: Sample) -> PendingMessages:
        """The deferred messages of all nodes that report them."""
        parts = [part for part in sample.nodes.values() if part.answered]
        found: PendingMessages = await self._once(("deferred",), lambda: self._deferred(parts))
        return found

    async def _once(self, key: tuple[str, ...], get: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        now_s = time.monotonic()
        self._kept = {k: kept for k, kept in self._kept.items() if kept[0] > now_s}
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= KEPT_COUNT_MAX:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[key] = (now_s + KEEP_S, asyncio.create_task(get()))
        return await asyncio.shield(kept[1])

    async def _clients(self, parts: list[NodePart], topic: str, channel: str) -> Clients:
        by_address = {part.address: part for part in parts}
        query = stats_query(topic, channel, include_clients="", include_mem="false")

        async def fetch(address: str) -> list[tuple[str, Mapping[str, Any]]]:
            stats = await self._upstream.nsqd_get(address, "/stats", **query)
            try:
                return [(name, _checked(shown)) for name, _, shown in channels_in(stats)]
            except ValueError:
                raise UpstreamError("invalid statistics") from None

        answers, failures = await request_all(by_address, fetch)
        result = Clients(warnings=_warnings(by_address, failures))
        for address, channels in answers.items():
            part = by_address[address]
            for topic_name, found in channels:
                _add_clients(result, part, topic_name, found)
        result.clients.sort(key=lambda client: (client["node"], client["remote_address"]))
        return result

    async def _damage(self, part: NodePart) -> Damages:
        try:
            answer = await self._upstream.nsqd_get(part.address, "/damage")
            found = objects(answer.get("records"))[-DAMAGE_COUNT_MAX:]
            return Damages([_damage_record(record) for record in reversed(found)])
        except UpstreamError as error:
            return Damages(warnings=[f"{part.node}: {error.short}"])
        except (AttributeError, ValueError):
            return Damages(warnings=[f"{part.node}: invalid damage records"])

    async def _drain(self, part: NodePart) -> Drain:
        try:
            answer = await self._upstream.nsqd_get(part.address, "/drain")
            return Drain(_drain_progress(answer))
        except UpstreamError as error:
            return Drain(warnings=[f"{part.node}: {error.short}"])
        except (ValueError, AttributeError):
            return Drain(warnings=[f"{part.node}: invalid answer about its drain"])

    async def _deferred(self, parts: list[NodePart]) -> PendingMessages:
        able = {part.address: part for part in parts if part.own}

        async def fetch(address: str) -> list[tuple[str, list[tuple[int, int]]]]:
            return _pending(await self._upstream.nsqd_get(address, "/deferred"))

        answers, failures = await request_all(able, fetch)
        result = PendingMessages(warnings=_warnings(able, failures))
        result.silent = [part.node for part in parts if not part.own]
        due: dict[str, dict[int, int]] = {}
        for found in answers.values():
            for topic, buckets in found:
                own = due.setdefault(topic, {})
                for start_s, count in buckets:
                    own[start_s] = own.get(start_s, 0) + count
        _add_up(result, due, time.time())
        return result


def _drain_progress(answer: Any) -> View:
    """The fields that the page shows; raises ValueError if they are invalid."""
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    left = answer.get("left") or {}
    if not isinstance(left, dict):
        raise ValueError("not an object")
    return {
        "to": text(answer, "to") if answer.get("to") else "",
        "error": text(answer, "handover_error")[:1000] if answer.get("handover_error") else "",
        "handed_over": api_objects.count(answer, "handed_over", 0),
        "left": {name: api_objects.count(left, name, 0) for name in DRAIN_COUNTS},
        "deferred_until_ms": api_objects.count(left, "deferred_until_ms", 0),
        "blocked_count": api_objects.count(answer, "blocked_count", 0),
        "blocked": [
            {
                "topic": text(entry, "topic"),
                "channel": text(entry, "channel") if "channel" in entry else "",
                "messages": api_objects.count(entry, "messages"),
                "why": text(entry, "why")[:200],
            }
            for entry in objects(answer.get("blocked"))[:BLOCKED_COUNT_MAX]
        ],
    }


def _damage_record(record: Mapping[str, Any]) -> View:
    messages = record.get("messages")
    return {
        "time_ms": api_objects.count(record, "time") * 1000,
        **{name: text(record, name)[:1000] for name in ("kind", "topic", "path", "text")},
        "messages": None if messages is None else api_objects.count(record, "messages"),
    }


def _warnings(parts: Mapping[str, NodePart], failures: Mapping[str, UpstreamError]) -> list[str]:
    return [f"{parts[address].node}: {error.short}" for address, error in failures.items()]


# Clients


def _checked(channel: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a channel in /stats that are used here; raises ValueError if invalid."""
    return {
        "channel_name": text(channel, "channel_name"),
        "clients": objects(channel.get("clients")),
        **{key: api_objects.count(channel, key, 0) for key in api_objects.LOCALITIES},
    }


def _add_clients(result: Clients, part: NodePart, topic: str, channel: Mapping[str, Any]) -> None:
    name = channel["channel_name"]
    near = {key: channel[key] for key in api_objects.LOCALITIES}
    if any(near.values()):
        zone, region, everywhere = near.values()
        result.delivery[part.node] = {"zone": zone, "region": region, "global": everywhere}
    place = {
        "node": part.node,
        "topology_zone": part.zone,
        "topology_region": part.region,
    }
    for found in channel["clients"]:
        if len(result.clients) == CLIENT_COUNT_MAX:
            result.left_out += 1
            continue
        client = api_objects.client_part(found, place, 0.0)
        url = client["auth_identity_url"]
        nearness = ("zone", "region", "")[api_objects.nearness(client)]
        shown = {
            key: value
            for key, value in client.items()
            if key not in ("connected", "topology_zone", "topology_region")
            and not key.startswith("node_")
        }
        shown |= {
            "node_hostname": part.hostname,
            "topic": topic,
            "channel": name,
            "state": state if type(state := found.get("state")) is int else None,
            "zone": client["topology_zone"],
            "region": client["topology_region"],
            "near": nearness,
            # The link must not be a javascript: URL.
            "auth_identity_url": url if url.startswith(("http://", "https://")) else "",
        }
        result.clients.append(shown)


# Deferred messages


def _pending(answer: Any) -> list[tuple[str, list[tuple[int, int]]]]:
    """(topic, [(start of an interval in s, count)]) of a node's /deferred."""
    try:
        return [
            (
                text(topic, "topic_name"),
                [
                    (api_objects.count(interval, "start"), api_objects.count(interval, "count"))
                    for interval in objects(topic.get("due"))
                ],
            )
            for topic in objects(answer.get("topics"))
        ]
    except (AttributeError, ValueError):
        raise UpstreamError("invalid list of deferred messages") from None


def _add_up(result: PendingMessages, due: Mapping[str, Mapping[int, int]], now_s: float) -> None:
    totals = [0] * len(SPANS)
    hours: dict[int, int] = {}
    for topic, buckets in sorted(due.items()):
        counts = [0] * len(SPANS)
        for start_s, count in buckets.items():
            counts[_span(start_s - now_s)] += count
            if start_s < now_s + HOUR_COUNT_MAX * HOUR_S:
                hours[start_s] = hours.get(start_s, 0) + count
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        first_s = min((start for start, count in buckets.items() if count), default=None)
        result.topics.append(
            {
                "topic": topic,
                "count": sum(counts),
                "next_due_ms": None if first_s is None else first_s * 1000,
                "counts": counts,
            }
        )
    result.total = sum(totals)
    result.spans = [
        {"until_s": until_s, "label": label, "count": count}
        for (until_s, label), count in zip(SPANS, totals, strict=True)
    ]
    result.hours = _every_hour(hours, now_s)


def _span(seconds: float) -> int:
    return next(at for at, (until_s, _) in enumerate(SPANS) if until_s is None or seconds < until_s)


def _every_hour(hours: Mapping[int, int], now_s: float) -> list[View]:
    """Counts for each hour of the next two days; overdue messages count as now."""
    this_hour = int(now_s) // HOUR_S * HOUR_S
    shown = {this_hour + at * HOUR_S: 0 for at in range(HOUR_COUNT_MAX)}
    for start_s, count in hours.items():
        place = max(this_hour, start_s // HOUR_S * HOUR_S)
        if place in shown:
            shown[place] += count
    return [{"start_ms": start_s * 1000, "count": count} for start_s, count in shown.items()]
