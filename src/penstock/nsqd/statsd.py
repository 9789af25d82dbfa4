"""Pushes the statistics to a statsd over UDP, with nsqd's keys.

    nsq.127_0_0_1_4151.topic.orders.channel.billing.depth:12|g

Rule 1: a line is never split over packets; packets are spread evenly over the interval less a
        second, so that they do not overflow statsd's small buffer.
Rule 2: counters are differences since the last push; in the first push, since the start.
Rule 3: the loop is not blocked: lines are made in slices, one per turn, and names resolved on a
        thread.
Rule 4: an unreachable statsd is retried at every interval, and logged once.

One push of 10,000 channels is about 5 MB of packets; memory is limited to one push, since the next
one starts after the last packet.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.stats.latency import Percentiles
from penstock.engine.stats.memory import Memory
from penstock.wire.names import is_ephemeral

LOGGER = logging.getLogger(__name__)

# Time for making lines in one turn.
SLICE_NS = 2_000_000
RESOLVE_TIMEOUT_S = 5.0
# Time at the end of an interval without packets, for statsd to catch up.
QUIET_S = 1.0

MEMORY_KEYS = (
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
)

Counters = dict[str, int]


class Lines:
    """Makes the lines of each push; keeps the counters of the last one."""

    def __init__(self, components: Components, memory: Memory, prefix: Callable[[], str]) -> None:
        self._options = components.context.options
        self._topics = components.broker.topics
        self._memory = memory
        self._prefix = prefix
        self._before: Counters = {}
        self._now: Counters = {}

    def push(self) -> Iterator[str]:
        """The lines of a push, topic by topic and channel by channel."""
        options = self._options
        prefix = self._prefix()
        self._now = {}
        for name, topic in sorted(self._topics.items()):
            if options.statsd_exclude_ephemeral and is_ephemeral(name):
                continue
            yield from self._topic(f"{prefix}topic.{name}.", topic)
            for channel_name, channel in sorted(topic.channels.items()):
                if options.statsd_exclude_ephemeral and is_ephemeral(channel_name):
                    continue
                key = f"{prefix}topic.{name}.channel.{channel_name}."
                yield from self._channel(key, channel)
        if options.statsd_mem_stats:
            yield from self._figures(f"{prefix}mem.", self._memory.figures())
        # This also drops the keys of deleted topics and channels.
        self._before = self._now

    def _topic(self, key: str, topic: BaseTopic) -> Iterator[str]:
        yield self._counter(f"{key}message_count", topic.message_count)
        yield self._counter(f"{key}message_bytes", topic.message_bytes)
        yield _gauge(f"{key}depth", topic.depth)
        yield _gauge(f"{key}backend_depth", topic.backend_depth)
        yield from _latency(key, topic.latency)

    def _channel(self, key: str, channel: Channel) -> Iterator[str]:
        yield self._counter(f"{key}message_count", channel.message_count)
        yield _gauge(f"{key}depth", channel.depth)
        yield _gauge(f"{key}backend_depth", channel.backend_depth)
        yield _gauge(f"{key}in_flight_count", channel.in_flight_count)
        yield _gauge(f"{key}deferred_count", channel.deferred_count)
        yield self._counter(f"{key}requeue_count", channel.requeue_count)
        yield self._counter(f"{key}timeout_count", channel.timeout_count)
        yield _gauge(f"{key}clients", len(channel.consumers))
        yield from _latency(key, channel.latency)

    def _figures(self, key: str, figures: Mapping[str, int]) -> Iterator[str]:
        for name in MEMORY_KEYS:
            yield _gauge(key + name, figures[name])
        yield self._counter(f"{key}gc_runs", figures["gc_total_runs"])

    def _counter(self, key: str, value: int) -> str:
        self._now[key] = value
        before = self._before.get(key, 0)
        # Less than before: the topic or channel was deleted and created again.
        return f"{key}:{value - before if value >= before else value}|c\n"


def _gauge(key: str, value: int) -> str:
    return f"{key}:{value}|g\n"


def _latency(key: str, latency: Percentiles) -> Iterator[str]:
    for share, value_ns in latency.values:
        yield _gauge(f"{key}e2e_processing_latency_{share * 100:.0f}", value_ns)


def pack(lines: Iterable[str], size_max: int) -> Iterator[bytes | None]:
    """Packets of complete lines, and None after each line that completed no packet.

    A line longer than ``size_max`` is a packet of its own.
    """
    packet = b""
    for line in lines:
        data = line.encode("utf-8", "surrogateescape")
        if packet and len(packet) + len(data) > size_max:
            yield packet
            packet = data
        else:
            packet += data
            yield None
    if packet:
        yield packet


class Statsd:
    """Pushes at every interval, from ``start()`` to ``stop()``."""

    def __init__(self, components: Components, memory: Memory, prefix: Callable[[], str]) -> None:
        self._options = components.context.options
        self._lines = Lines(components, memory, prefix)
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    def start(self) -> None:
        if self._options.statsd_address:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="statsd")
            self._task.add_done_callback(_ended)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        interval_s = self._options.statsd_interval_ns / 1e9
        next_s = loop.time()
        while True:
            # After a push that took too long, skip one instead of making two in a row.
            next_s = max(next_s + interval_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            try:
                await self._push(interval_s)
            except (OSError, UnicodeError) as error:
                self._report(error)

    async def _push(self, interval_s: float) -> None:
        packets = await self._pack()
        sock = await self._connect()
        error: OSError | None = None
        with sock:
            loop = asyncio.get_running_loop()
            start_s = loop.time()
            pause_s = max(0.0, interval_s - QUIET_S) / max(1, len(packets))
            for number, packet in enumerate(packets):
                await asyncio.sleep(max(0.0, start_s + number * pause_s - loop.time()))
                try:
                    sock.send(packet)
                except OSError as failure:
                    # An earlier packet was refused, or the buffer is full: this one is lost.
                    error = failure
        self._report(error)

    async def _pack(self) -> list[bytes]:
        packets: list[bytes] = []
        end_ns = time.perf_counter_ns() + SLICE_NS
        for packet in pack(self._lines.push(), self._options.statsd_udp_packet_size):
            if packet is not None:
                packets.append(packet)
            if time.perf_counter_ns() >= end_ns:
                await asyncio.sleep(0)
                end_ns = time.perf_counter_ns() + SLICE_NS
        return packets

    async def _connect(self) -> socket.socket:
        """A socket to statsd; its name is resolved each time, since the address may change."""
        address = self._options.statsd_address
        host, _, port = address.rpartition(":")
        lookup = asyncio.get_running_loop().getaddrinfo(
            host.strip("[]") or "localhost", port, type=socket.SOCK_DGRAM
        )
        family, kind, protocol, _, target = (await asyncio.wait_for(lookup, RESOLVE_TIMEOUT_S))[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.connect(target)
        except OSError:
            sock.close()
            raise
        return sock

    def _report(self, error: Exception | None) -> None:
        address = self._options.statsd_address
        if error is not None and not self._failing:
            LOGGER.error("statsd=%s: cannot push: %s", address, str(error) or type(error).__name__)
        elif error is None and self._failing:
            LOGGER.info("statsd=%s: pushing works again", address)
        self._failing = error is not None


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        LOGGER.error("statsd: ended unexpectedly", exc_info=task.exception())
