"""The nodes of the cluster, their topics and statistics, queried on each call, for NSQ's /api.

    source           topics            nodes of a topic             all nodes
    nsqlookupd       /topics           /lookup?topic=               /nodes
    nsqd             /stats            /stats?topic= and /info      /info and /stats

Rule 1: a result is data *and* warnings; a daemon that is down does not hide the others' data.
Rule 2: only if all daemons fail, NothingKnownError is raised.
Rule 3: a response is validated when it is read; an invalid one counts as a failure.
Rule 4: anyone who can reach an nsqlookupd may register there.  A node whose address is not a host
        and a port is left out with a warning; it does not hide the others.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from penstock.admin import api_objects
from penstock.admin.hosts import is_host
from penstock.admin.upstream import Upstream, UpstreamError, request_all
from penstock.errors import PenstockError
from penstock.wire.address import join_address
from penstock.wire.names import is_valid_name
from penstock.wire.peer_answers import Object, members, names_in, stats_query, text, topics_in

T = TypeVar("T")

_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(-[0-9A-Za-z.-]+)?")
TEXT_SIZE_MAX = 255


class NothingKnownError(PenstockError):
    """No daemon responded successfully; ``statuses`` are the statuses of the error responses."""

    def __init__(self, text: str, statuses: frozenset[int] = frozenset()) -> None:
        super().__init__(text)
        self.statuses = statuses


@dataclass(slots=True)
class Known(Generic[T]):
    """Data, and a warning for each daemon that failed."""

    data: T
    warnings: list[str] = field(default_factory=list)


class Producers(list["Producer"]):
    """The nodes that an nsqlookupd lists; ``error`` counts those that were left out."""

    error = ""


@dataclass(slots=True)
class Producer:
    """An nsqd as described by /lookup, /nodes or its own /info."""

    node: str  # broadcast_address:http_port
    address: str  # where to connect: the same, unless given by a flag
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    zone: str = ""
    region: str = ""
    remote_address: str = ""
    remote_addresses: list[str] | None = None  # "lookupd/address", one for each nsqlookupd
    topics: list[tuple[str, bool]] = field(default_factory=list)  # name, tombstoned
    out_of_date: bool = False

    @classmethod
    def unknown(cls, address: str) -> Producer:
        """A node that has not responded yet."""
        host, _, port = address.rpartition(":")
        return cls(address, address, "", host, 0, int(port) if port.isdecimal() else 0, "")

    def as_object(self) -> Object:
        """NSQ's JSON object of a node."""
        node: Object = {
            "remote_addresses": self.remote_addresses,
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
        }
        if self.zone:
            node["topology_zone"] = self.zone
        if self.region:
            node["topology_region"] = self.region
        return node | {
            "topics": [{"topic": name, "tombstoned": hidden} for name, hidden in self.topics],
            "out_of_date": self.out_of_date,
        }

    def place(self) -> Object:
        """The node's fields for ``api_objects``."""
        return {
            "node": self.node,
            "hostname": self.hostname,
            "topology_zone": self.zone,
            "topology_region": self.region,
        }


class Cluster:
    """Queries the daemons that ``lookupds()`` or ``nsqds()`` currently return."""

    def __init__(
        self,
        upstream: Upstream,
        lookupds: Callable[[], tuple[str, ...]],
        nsqds: Callable[[], tuple[str, ...]],
    ) -> None:
        self.upstream = upstream
        self.lookupds = lookupds
        self.nsqds = nsqds

    # Topics

    async def topics(self) -> Known[list[str]]:
        """The names of all topics, sorted."""
        if lookupds := self.lookupds():
            answers = await self._from_lookupds(lookupds, self.lookupd_topics)
        else:
            answers = await self._from_nsqds(self.nsqds(), self._nsqd_topics)
        names = {name for found in answers.data.values() for name in found}
        return Known(sorted(names), answers.warnings)

    async def inactive(self) -> Known[dict[str, list[str]]]:
        """Topics that no node has, with their channels; only nsqlookupds know them."""
        lookupds = self.lookupds()
        if not lookupds:
            return Known({})
        topics, producers = await asyncio.gather(self.topics(), self.producers())
        active = {
            name for producer in producers.data for name, hidden in producer.topics if not hidden
        }
        names = [name for name in topics.data if name not in active]
        channels = await asyncio.gather(*(self.lookupd_channels(name) for name in names))
        warnings = list(dict.fromkeys(topics.warnings + producers.warnings))
        return Known(dict(zip(names, channels, strict=True)), warnings)

    async def lookupd_channels(self, topic: str) -> list[str]:
        """The channels of a topic that any nsqlookupd knows."""

        async def fetch(address: str) -> list[str]:
            answer = await self.upstream.lookupd_get(address, "/channels", topic=topic)
            return _names(answer, "channels", address)

        answers, _ = await request_all(self.lookupds(), fetch)
        return sorted({name for found in answers.values() for name in found})

    async def lookupd_topics(self, address: str) -> list[str]:
        return _names(await self.upstream.lookupd_get(address, "/topics"), "topics", address)

    async def _nsqd_topics(self, address: str) -> list[str]:
        stats = await self.upstream.nsqd_get(address, "/stats", **stats_query())
        return [name for name, _ in _topics_of(stats, address)]

    # Nodes

    async def producers(self) -> Known[list[Producer]]:
        """All nodes, by hostname."""
        if lookupds := self.lookupds():
            answers = await self._from_lookupds(lookupds, self.lookupd_nodes)
            nodes = self.merged(answers.data)
        else:
            answers = await self._from_nsqds(self.nsqds(), self._nsqd_nodes)
            nodes = [producer for producers in answers.data.values() for producer in producers]
        nodes.sort(key=lambda producer: (producer.hostname, producer.node))
        return Known(nodes, answers.warnings)

    @staticmethod
    def merged(answers: Mapping[str, Producers]) -> list[Producer]:
        """The nodes of several nsqlookupds, without duplicates."""
        merged: dict[str, Producer] = {}
        for address, producers in answers.items():
            for producer in producers:
                known = merged.setdefault(
                    f"{producer.broadcast_address}:{producer.tcp_port}", producer
                )
                known.remote_addresses = known.remote_addresses or []
                known.remote_addresses.append(f"{address}/{producer.remote_address}")
        nodes = list(merged.values())
        _mark_outdated(nodes)
        return nodes

    async def topic_producers(self, topic: str) -> Known[list[Producer]]:
        """The nodes that have a topic."""

        async def from_lookupd(address: str) -> Producers:
            answer = await self.upstream.lookupd_get(address, "/lookup", topic=topic)
            return _producers(answer, address)

        async def from_nsqd(address: str) -> Producers:
            stats = await self.upstream.nsqd_get(address, "/stats", **stats_query(topic))
            if topic not in dict(_topics_of(stats, address)):
                return Producers()
            return Producers([await self.node(address)])

        if lookupds := self.lookupds():
            answers = await self._from_lookupds(lookupds, from_lookupd)
        else:
            answers = await self._from_nsqds(self.nsqds(), from_nsqd)
        found = {p.node: p for producers in answers.data.values() for p in producers}
        return Known(list(found.values()), answers.warnings)

    async def lookupd_nodes(self, address: str) -> Producers:
        return _producers(await self.upstream.lookupd_get(address, "/nodes"), address)

    async def _nsqd_nodes(self, address: str) -> Producers:
        producer, stats = await asyncio.gather(
            self.node(address),
            self.upstream.nsqd_get(address, "/stats", **stats_query()),
        )
        producer.topics = [(name, False) for name, _ in _topics_of(stats, address)]
        return Producers([producer])

    async def node(self, address: str) -> Producer:
        """A node as it describes itself.  Raises UpstreamError."""
        producer = _producer(await self.upstream.nsqd_get(address, "/info"), address)
        producer.address = address
        return producer

    # Statistics

    async def stats(
        self,
        producers: Iterable[Producer],
        topic: str = "",
        channel: str = "",
        clients: bool = False,
    ) -> Known[list[Object]]:
        """The nodes' topics in the form of ``api_objects.topic_part``, by hostname."""
        by_address = {producer.address: producer for producer in producers}
        query = stats_query(topic, channel, include_clients="" if clients else "false")

        async def fetch(address: str) -> list[Object]:
            stats = await self.upstream.nsqd_get(address, "/stats", **query)
            place, now_s = by_address[address].place(), time.time()
            try:
                return [
                    api_objects.topic_part(found, place, now_s)
                    for name, found in _topics_of(stats, address)
                    if not topic or name == topic
                ]
            except ValueError as error:
                raise _invalid(address, str(error)) from None

        answers = await self._from_nsqds(by_address, fetch)
        parts = [part for found in answers.data.values() for part in found]
        return Known(api_objects.by_host(parts), answers.warnings)

    # Queries

    async def _from_lookupds(
        self, addresses: Iterable[str], fetch: Callable[[str], Coroutine[Any, Any, T]]
    ) -> Known[dict[str, T]]:
        return await _some(addresses, fetch, "nsqlookupd")

    async def _from_nsqds(
        self, addresses: Iterable[str], fetch: Callable[[str], Coroutine[Any, Any, T]]
    ) -> Known[dict[str, T]]:
        return await _some(addresses, fetch, "nsqd")


async def _some(
    addresses: Iterable[str], fetch: Callable[[str], Coroutine[Any, Any, T]], kind: str
) -> Known[dict[str, T]]:
    answers, failures = await request_all(addresses, fetch)
    texts = [error.text for error in failures.values()]
    for address, answer in answers.items():
        if isinstance(answer, Producers) and answer.error:
            texts.append(f"{address}: {answer.error}")
    if not answers:
        statuses = frozenset(error.status for error in failures.values())
        raise NothingKnownError(f"failed to query any {kind}: " + "\n".join(texts), statuses)
    return Known(answers, ["\n".join(texts)] if texts else [])


def _invalid(address: str, reason: str) -> UpstreamError:
    return UpstreamError(f"{address}: {reason}", short=reason)


def _names(answer: Any, name: str, address: str) -> list[str]:
    try:
        # An invalid name could be neither queried nor deleted.
        return [item for item in names_in(answer, name) if is_valid_name(item)]
    except ValueError as error:
        raise _invalid(address, str(error)) from None


def _topics_of(stats: Any, address: str) -> list[tuple[str, Object]]:
    try:
        return topics_in(stats)
    except ValueError:
        raise _invalid(address, "invalid statistics") from None


def _producers(answer: Any, address: str) -> Producers:
    try:
        found = members(answer, "producers")
    except ValueError:
        raise _invalid(address, "invalid list of nodes") from None
    producers, left_out = Producers(), 0
    for producer in found:
        try:
            producers.append(_producer(producer, address))
        except UpstreamError:
            left_out += 1
    if left_out:
        producers.error = f"{left_out} of the nodes it lists are invalid"
    return producers


def _producer(found: Any, address: str) -> Producer:
    try:
        broadcast, http_port = _place(found)
        hidden = found.get("tombstones") or []
        topics = found.get("topics") or []
        node = join_address(broadcast, http_port)
        return Producer(
            node=node,
            address=node,
            hostname=_short(text(found, "hostname")),
            broadcast_address=broadcast,
            tcp_port=api_objects.count(found, "tcp_port"),
            http_port=http_port,
            version=_short(text(found, "version")),
            zone=_short(str(found.get("topology_zone") or "")),
            region=_short(str(found.get("topology_region") or "")),
            remote_address=_short(str(found.get("remote_address") or "")),
            topics=sorted(
                (name, at < len(hidden) and hidden[at] is True)
                for at, name in enumerate(topics)
                if is_valid_name(name)
            ),
        )
    except (AttributeError, TypeError, ValueError, RecursionError):
        raise _invalid(address, "invalid description of a node") from None


def _place(found: Any) -> tuple[str, int]:
    """Host and HTTP port of a node; raises ValueError if they would not be safe in a URL."""
    host, port = text(found, "broadcast_address"), api_objects.count(found, "http_port")
    if not 0 <= port < 65536:
        raise ValueError("http_port is not a port")
    if not is_host(host):
        raise ValueError("broadcast_address is not a host")
    return host, port


def _short(text: str) -> str:
    return text[:TEXT_SIZE_MAX]


def _mark_outdated(producers: list[Producer]) -> None:
    """Mark the nodes whose version is older than the newest."""
    newest = max((_version(producer.version) for producer in producers), default=())
    for producer in producers:
        producer.out_of_date = _version(producer.version) < newest


def _version(version: str) -> tuple[int, ...]:
    match = _VERSION.match(version)
    if match is None:
        return (0, 0, 0, 0)
    # A pre-release is older than its release.
    return (int(match[1]), int(match[2]), int(match[3]), 0 if match[4] else 1)
