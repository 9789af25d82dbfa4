"""Samples the cluster every few seconds, once for all pages and browsers.

    nsqlookupds  /topics, /nodes  ->  the nodes
    nsqds        /stats           ->  Sample  ->  lags, history
                 /info                of a new or restarted node

Rule 1: one sample at a time.  If a sample of a large cluster takes more CPU time than a fifteenth
        of the interval, the next is delayed: nsqadmin uses less than a tenth of a core.
Rule 2: a node that nsqlookupd has dropped is polled and shown as down for REMEMBER_S.
Rule 3: no response of a daemon ends the sampling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import Any

from penstock.admin.cluster import Cluster, Producer
from penstock.admin.effects import Effects
from penstock.admin.history import History
from penstock.admin.lag import Lags
from penstock.admin.sample import (
    LookupdPart,
    NodePart,
    Sample,
    Since,
    adding_up,
    reading_node,
)
from penstock.admin.upstream import UpstreamError, request_all
from penstock.clock import Clock
from penstock.wire.peer_answers import stats_query

log = logging.getLogger(__name__)

REMEMBER_S = 900
# A limit, because anyone who can reach nsqlookupd may register nodes.
NODE_COUNT_MAX = 1000
IDLE_SHARE = 15
# Channels of topics without a node: one request for each topic.
INACTIVE_S = 30
INACTIVE_QUERIED_MAX = 32
NEVER_NS = -(1 << 62)
# The least time between two samples, however often something changes.
REFRESH_S = 0.3
# The share of an interval by which a sample may start before its tick.
EARLY_SHARE = 0.1


class Sampler:
    """Keeps the newest sample."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        interval_s: float,
        clock: Clock | None = None,
        effects: Effects | None = None,
    ) -> None:
        self.newest: Sample | None = None
        self._cluster = cluster
        self._upstream = cluster.upstream
        self._history = history
        self._effects = effects or Effects()
        self._interval_s = interval_s
        self._clock = clock or Clock()
        self._lags = Lags()
        self._first = asyncio.Event()
        self._again = asyncio.Event()
        self._start_ns = self._clock.monotonic_ns()
        # The last response of each node, and its registration.
        self._answers: dict[str, NodePart] = {}
        self._producers: dict[str, Producer] = {}
        self._seen_ns: dict[str, int] = {}
        self._own: dict[str, tuple[int, bool]] = {}  # by node: start time, whether it is Penstock's
        self._inactive_channels: dict[str, tuple[int, list[str]]] = {}  # time of the query, names
        self._number = 0
        self.started = 0  # the number of the sample that was started last

    async def run(self) -> None:
        """Sample until cancelled."""
        started_s = time.monotonic()
        while True:
            began_s, began_ns = time.monotonic(), time.thread_time_ns()
            try:
                await self.sample()
            except Exception:
                log.exception("SAMPLE: failed")
            busy_s = (time.thread_time_ns() - began_ns) / 1e9
            # On ticks of the interval, so that charts have even steps.
            tick_count = max(1, math.ceil(IDLE_SHARE * busy_s / self._interval_s))
            passed = int((began_s - started_s) / self._interval_s + EARLY_SHARE)
            wait_s = started_s + (passed + tick_count) * self._interval_s - time.monotonic()
            await asyncio.sleep(min(REFRESH_S, max(0.0, wait_s)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), max(0.0, wait_s - REFRESH_S))
            self._again.clear()

    def refresh(self, topic: str) -> None:
        """Sample again soon, because a topic was changed."""
        self._inactive_channels.pop(topic, None)
        self._again.set()

    async def first(self) -> Sample:
        """The newest sample; wait for it if there is none yet."""
        await self._first.wait()
        assert self.newest is not None
        return self.newest

    async def sample(self) -> Sample:
        """Take one sample."""
        self.started = self._number + 1
        lookupds, nodes, inactive = await self._discover()
        answers, failures = await request_all(nodes, self._poll)
        now_ns = self._clock.monotonic_ns()
        self._number += 1
        sample = Sample(
            number=self._number,
            # Rounded, so that a slightly late sample is not in the next tick.
            tick=int((now_ns - self._start_ns) / 1e9 / self._interval_s + 0.5),
            at_ms=self._clock.wall_ns() // 1_000_000,
            at_ns=now_ns,
            lookupds=lookupds,
            inactive=inactive,
        )
        parts = [answers.get(address) or self._down(nodes[address], failures) for address in nodes]
        sample.nodes = {part.node: part for part in parts}
        sample.warnings = [f"{part.address}: {part.error}" for part in lookupds if part.error]
        sample.warnings += [f"{part.node}: {part.error}" for part in parts if part.error]
        # With thousands of channels each of these steps takes about 20 ms.
        before = self.newest
        since = None if before is None else Since(before.at_ns, before.at_ms)
        for _ in adding_up(sample, self._answers, since):
            await asyncio.sleep(0)
        self._lags.measure(sample)
        await asyncio.sleep(0)
        for part in parts:
            if part.answered:
                self._answers[part.node] = part
        self._history.record(sample)
        self._effects.record(sample)
        self._expire(now_ns)
        self.newest = sample
        self._first.set()
        return sample

    # Discovery

    async def _discover(
        self,
    ) -> tuple[list[LookupdPart], dict[str, Producer], dict[str, list[str]]]:
        """The nsqlookupds, the nodes to poll by address, and topics that no node has."""
        addresses = self._cluster.lookupds()
        if not addresses:
            known = {address: self._given(address) for address in self._cluster.nsqds()}
            return [], known, {}
        topics, failures = await request_all(addresses, self._cluster.lookupd_topics)
        nodes, more = await request_all(topics, self._cluster.lookupd_nodes)
        failures |= more
        parts = [
            LookupdPart(
                address,
                answered=address in nodes,
                error=failures[address].short if address in failures else nodes[address].error,
                topic_count=len(topics.get(address, ())),
                node_count=len(nodes.get(address, ())),
            )
            for address in dict.fromkeys(addresses)
        ]
        merged = self._cluster.merged(nodes)
        self._remember(merged)
        active = {name for p in merged for name, hidden in p.topics if not hidden}
        names = {name for found in topics.values() for name in found} - active
        return parts, dict(self._producers), await self._inactive(names)

    async def _inactive(self, names: set[str]) -> dict[str, list[str]]:
        """Topics without a node, and their channels: each sample queries a few."""
        known = {name: found for name, found in self._inactive_channels.items() if name in names}
        self._inactive_channels = known
        now_ns = self._clock.monotonic_ns()
        stale_ns = now_ns - INACTIVE_S * 1_000_000_000
        # Those never queried first, then by age.
        ages = sorted((known[name][0] if name in known else NEVER_NS, name) for name in names)
        queried = [name for at_ns, name in ages[:INACTIVE_QUERIED_MAX] if at_ns < stale_ns]
        channels = await asyncio.gather(*map(self._cluster.lookupd_channels, queried))
        known |= {name: (now_ns, found) for name, found in zip(queried, channels, strict=True)}
        return {name: known[name][1] if name in known else [] for name in sorted(names)}

    def _remember(self, producers: list[Producer]) -> None:
        now_ns = self._clock.monotonic_ns()
        for producer in self._producers.values():
            producer.topics, producer.remote_addresses = [], None
        for producer in producers[:NODE_COUNT_MAX]:
            self._producers[producer.address] = producer
            self._seen_ns[producer.address] = now_ns
        oldest_first = sorted(self._seen_ns, key=self._seen_ns.__getitem__)
        for address in oldest_first[: max(0, len(oldest_first) - NODE_COUNT_MAX)]:
            del self._producers[address], self._seen_ns[address]

    def _given(self, address: str) -> Producer:
        """A node given by a flag, as it described itself if it ever responded."""
        return self._producers.get(address) or Producer.unknown(address)

    def _expire(self, now_ns: int) -> None:
        if self._cluster.lookupds():
            for address, seen_ns in list(self._seen_ns.items()):
                if now_ns - seen_ns > REMEMBER_S * 1_000_000_000:
                    del self._seen_ns[address], self._producers[address]
        named = {producer.node for producer in self._producers.values()}
        self._answers = {node: part for node, part in self._answers.items() if node in named}
        self._own = {node: own for node, own in self._own.items() if node in named}

    # Polling a node

    async def _poll(self, address: str) -> NodePart:
        producer = self._given(address)
        if not producer.version:
            producer = self._producers[address] = await self._cluster.node(address)
        stats = await self._upstream.nsqd_get(address, "/stats", **stats_query())
        part = _part(producer)
        try:
            for _ in reading_node(part, stats, self._clock.monotonic_ns()):
                await asyncio.sleep(0)
        except ValueError as error:
            raise UpstreamError(str(error)) from None
        del stats
        part.own = await self._is_own(address, part)
        return part

    async def _is_own(self, address: str, part: NodePart) -> bool:
        start_time, own = self._own.get(part.node, (-1, False))
        if start_time != part.start_time:
            answer = await self._upstream.nsqd_get(address, "/info")
            own = isinstance(answer, dict) and "node_uuid" in answer
            self._own[part.node] = (part.start_time, own)
        return own

    def _down(self, producer: Producer, failures: dict[str, Any]) -> NodePart:
        part = _part(producer)
        part.error = failures[producer.address].short
        earlier = self._answers.get(part.node)
        if earlier is not None:
            part.own, part.start_time = earlier.own, earlier.start_time
        return part


def _part(producer: Producer) -> NodePart:
    return NodePart(
        node=producer.node,
        address=producer.address,
        hostname=producer.hostname,
        broadcast_address=producer.broadcast_address,
        tcp_port=producer.tcp_port,
        http_port=producer.http_port,
        version=producer.version,
        zone=producer.zone,
        region=producer.region,
        lookupds=tuple(a.partition("/")[0] for a in producer.remote_addresses or ()),
        tombstones=tuple(name for name, hidden in producer.topics if hidden),
        out_of_date=producer.out_of_date,
    )
