"""The nodes of a query: their addresses, their identities, and the state of their logs.

A node is identified by the UUID in its data path (R7), not by its address.

Rule 1: a plan needs all nodes: if one does not respond, it is a NodeError.  A running stream
        continues with the nodes that respond.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.errors import NodeError, QueryError
from penstock.spark.node_client import Access, Node, Request, host_and_port, node_request
from penstock.spark.options import Options
from penstock.wire.peer_answers import addresses_in

log = logging.getLogger("penstock.spark")

# A node syncs its log in milliseconds.
SYNC_WAIT_MS = 5000
RANGE_COUNT_MAX = 1024  # per request of /log/counts
HTTP_ADDRESSES = partial(addresses_in, port="http_port")


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull channel: all below ``low`` is finished; ``identity`` is its reader's, or ""."""

    low: int
    identity: str = ""
    paused: bool = False


@dataclass(frozen=True, slots=True)
class LogState:
    """A topic's log on a node, as GET /log returns it."""

    node: str
    instance: str
    first: int
    whole_from: int
    end: int
    synced_end: int
    released: int
    channels: tuple[str, ...]
    pulls: Mapping[str, Pull] = field(default_factory=dict)

    def missing_below(self, channel: str, index: int) -> int:
        """The end of the range from ``index`` in which messages may have been removed.

        It is ``index`` if none were: a pull channel keeps everything at and above its low.
        """
        pull = self.pulls.get(channel)
        if pull is not None:
            return max(index, min(self.whole_from, pull.low))
        # A node of an earlier version does not report the low of its channels.
        return index if channel in self.channels else max(index, self.whole_from)


class Cluster:
    """All nodes that have been found, by UUID."""

    def __init__(self, options: Options, access: Access | None = None) -> None:
        self.options = options
        self.access = access or Access.of(options)
        self.nodes: dict[str, Node] = {}
        self.complete = False  # the last discovery knew every address
        for address in options.nsqd_http_addresses:
            host_and_port(address)

    def discover(self, *, strict: bool, everywhere: bool = False) -> list[str]:
        """Find nodes; return the UUIDs of new ones.

        ``everywhere``: include nodes that do not have the topic.
        """
        before = set(self.nodes)
        known = {node.address: uuid for uuid, node in self.nodes.items()}
        nodes: dict[str, Node] = {}
        self.complete = True
        for address in self.addresses(everywhere=everywhere, retry_s=None if strict else 0.0):
            uuid = known.get(address)
            if uuid is None:
                uuid = self._identify(address, strict=strict)
            if uuid is None:
                self.complete = False
            else:
                nodes.setdefault(uuid, Node(address, self.access))
        self.nodes.update(nodes)
        return [uuid for uuid in nodes if uuid not in before]

    def find(self, uuids: Collection[str]) -> None:
        """Find nodes by UUID among all nodes that nsqlookupd lists.

        Shortly after a start, and while a topic is tombstoned, /lookup does not list them.
        """
        missing = set(uuids) - set(self.nodes)
        if not missing or not self.options.lookupd_http_addresses:
            return
        known = {node.address for node in self.nodes.values()}
        found = self.query_lookupds(node_request("GET", "/nodes"), HTTP_ADDRESSES, 0.0)
        for address in sorted(found - known):
            uuid = self._identify(address, strict=False)
            if uuid in missing:
                self.nodes[uuid] = Node(address, self.access)

    def forget(self, uuid: str) -> None:
        """Drop a node that is no longer at its address; the next discovery identifies it again."""
        self.nodes.pop(uuid, None)

    def _identify(self, address: str, *, strict: bool) -> str | None:
        node = Node(address, self.access)
        try:
            asking, retry_s = (node, None) if strict else (node.brief(), 0.0)
            about = asking.json(node_request("GET", "/info"), retry_s)
            uuid = about.get("node_uuid") if isinstance(about, dict) else None
            if not isinstance(uuid, str):
                raise NodeError(
                    f"{node} is not an nsqd of Penstock; a Go nsqd can be read with mode=channel"
                )
        except NodeError as error:
            if strict:
                raise
            log.warning("%s", error)
            return None
        return uuid

    # Addresses

    def addresses(self, *, everywhere: bool, retry_s: float | None = None) -> list[str]:
        """The addresses of nsqds; ``retry_s`` overrides retryTimeout."""
        if self.options.nsqd_http_addresses:
            return list(self.options.nsqd_http_addresses)
        found: set[str] = set()
        if not everywhere:
            for topic in self.options.topic:
                request = node_request("GET", "/lookup", {"topic": topic})
                found |= self.query_lookupds(request, HTTP_ADDRESSES, retry_s)
        found = found or self.query_lookupds(node_request("GET", "/nodes"), HTTP_ADDRESSES, retry_s)
        if everywhere and not found:
            lookupds = ", ".join(self.options.lookupd_http_addresses)
            raise QueryError(f"no nsqd is registered with nsqlookupd {lookupds}")
        return sorted(found)

    def query_lookupds(
        self,
        request: Request,
        read: Callable[[Any], Iterable[str]],
        retry_s: float | None = None,
    ) -> set[str]:
        """The union of what ``read`` finds in all responses; raises only if all lookupds fail.

        ``retry_s`` overrides retryTimeout; with 0 the request timeout is short, too.
        """
        found: set[str] = set()
        errors: list[NodeError] = []
        addresses = self.options.lookupd_http_addresses
        for address in addresses:
            lookupd = Node(address, self.access, "nsqlookupd")
            if retry_s == 0.0:
                lookupd = lookupd.brief()
            try:
                found.update(lookupd.read(read, lookupd.json(request, retry_s)))
            except NodeError as error:
                if error.status != 404:
                    log.warning("%s", error)
                    errors.append(error)
        if addresses and len(errors) == len(addresses):
            raise errors[0]
        return found

    # Topics

    def log_of(self, uuid: str, topic: str) -> LogState | None:
        """The state of a topic's log on a node; None if the node does not have the topic."""
        node = self.nodes[uuid]
        try:
            reply = node.get("/log", topic=topic)
        except NodeError as error:
            if error.code == "TOPIC_NOT_FOUND":
                return None
            raise
        return LogState(
            *(reply["node"], reply["instance"], reply["first"], reply["whole_from"]),
            *(reply["end"], reply["synced_end"], reply["released"], tuple(reply["channels"])),
            {
                name: Pull(int(pull["low"]), pull["identity"] or "", bool(pull["paused"]))
                for name, pull in reply.get("pull_channels", {}).items()
            },
        )

    def settled(
        self, uuid: str, topic: str, found: LogState, channel: str = "", identity: str = ""
    ) -> int:
        """The current end of the log, synced first if necessary (R18)."""
        end = min(found.end, found.released) if channel else found.end
        if found.synced_end >= end:
            return end
        known = {"after": end - 1, "instance": found.instance}
        body: dict[str, Any] = {"topics": {topic: known}, "wait_ms": SYNC_WAIT_MS}
        if channel:
            body["channel"] = channel
            body.update({"identity": identity} if identity else {})
        reply = self.nodes[uuid].post("/log/ends", body)["topics"][topic]
        if reply is None or reply["instance"] != found.instance:
            raise QueryError(f"topic {topic} was deleted on {self.nodes[uuid]} during the query")
        return min(end, int(reply["end"]))

    def seek(self, uuid: str, topic: str, time_ns: int) -> int:
        return int(self.nodes[uuid].get("/log/seek", topic=topic, timestamp=time_ns)["index"])

    def count(self, uuid: str, topic: str, start: int, end: int) -> int:
        """How many messages a range has; indexes may have gaps."""
        reply = self.nodes[uuid].get("/log/count", topic=topic, start=start, end=end)
        return int(reply["count"])

    def counts(
        self, uuid: str, ranges: Sequence[tuple[str, str, int, int]], retry_s: float | None = None
    ) -> list[int | None]:
        """``count`` of many (topic, instance, start, end); None where the log does not exist.

        ``retry_s`` overrides retryTimeout; with 0 the request timeout is short, too.
        """
        node = self.nodes[uuid].brief() if retry_s == 0.0 else self.nodes[uuid]
        keys = ("topic", "instance", "start", "end")
        counts: list[int | None] = []
        for first in range(0, len(ranges), RANGE_COUNT_MAX):
            part = ranges[first : first + RANGE_COUNT_MAX]
            body = {"ranges": [dict(zip(keys, each, strict=True)) for each in part]}
            counts += node.json(node_request("POST", "/log/counts", None, body), retry_s)["counts"]
        return counts

    def missing_count_max(self, uuid: str, topic: str, start: int, end: int) -> int:
        """How many messages of a range may be missing at most: its indexes without a message."""
        try:
            return end - start - self.count(uuid, topic, start, end)
        except NodeError:
            return end - start
