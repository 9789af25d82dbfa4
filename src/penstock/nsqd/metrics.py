"""GET /metrics: all metrics, for Prometheus.

Names begin with ``penstock_`` and end with their unit; counters end with ``_total`` and start at 0
with the process.  The page is made in pieces, like /stats, so that 10,000 channels do not block the
loop: first the numbers of all channels are collected, then the families are written one by one,
because the format requires the samples of a family together.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.retention.wakes import Keeping
from penstock.engine.stats.memory import Memory
from penstock.engine.topic import Topic
from penstock.engine.topology import EXPERIMENT, LOCALITIES
from penstock.net.admission import Quota
from penstock.net.body_budget import BodyBudget
from penstock.net.exposition import (
    CONTENT_TYPE,
    COUNTER,
    GAUGE,
    PIECE_COUNT,
    SUMMARY,
    Sample,
    escape,
    family,
    histogram,
    labels,
    single,
)
from penstock.net.http_message import Pending, Request, Response
from penstock.net.long_answers import gather
from penstock.nsqd.clients import Clients
from penstock.nsqd.loop_lag import LoopLag
from penstock.nsqd.policy_metrics import policy_families
from penstock.storage.damage import DamageKind
from penstock.version import NSQ_VERSION, VERSION

_FD_FOLDER = Path("/proc/self/fd")


class Traffic(NamedTuple):
    """Counts of the TCP and HTTP servers."""

    tcp_connections: int
    http_connections: int
    http_requests: dict[int, int]
    connection_count_max: int
    quotas: Sequence[Quota]
    bodies: BodyBudget
    unmade_channels: int  # listed by nsqlookupds: too many, or invalid names


class Column(NamedTuple):
    """A family with one sample per channel or topic."""

    name: str
    kind: str
    help: str


CHANNEL_COLUMNS = (
    Column("depth", GAUGE, "Messages that wait for a consumer."),
    Column("in_flight", GAUGE, "Messages sent and not answered yet."),
    Column("deferred", GAUGE, "Messages requeued with a delay or published deferred."),
    Column("clients", GAUGE, "Clients subscribed."),
    Column("paused", GAUGE, "1 if the channel is paused."),
    Column("messages_total", COUNTER, "Messages received from the topic."),
    Column("deliveries_total", COUNTER, "Messages sent to clients, redeliveries included."),
    Column("finishes_total", COUNTER, "Messages finished by clients."),
    Column("requeues_total", COUNTER, "Messages requeued by clients, or because one was lost."),
    Column("timeouts_total", COUNTER, "Messages not answered in time."),
    Column("moved_total", COUNTER, "Buried messages moved to another topic."),
    Column("move_failures_total", COUNTER, "Batches that could not be moved."),
)
RETAINED_COLUMNS = (
    Column("retained_bytes", GAUGE, "Bytes of finished segments that retention keeps."),
    Column("retained_oldest_seconds", GAUGE, "Age of the oldest message that retention keeps."),
    Column("retained_given_up_total", COUNTER, "Messages removed early because the disk was low."),
)
TOPIC_COLUMNS = (
    Column("depth", GAUGE, "Messages that no channel may read yet."),
    Column("deferred", GAUGE, "Deferred publishes that are not due yet."),
    Column("channels", GAUGE, "Channels of the topic."),
    Column("paused", GAUGE, "1 if the topic is paused."),
    Column("messages_total", COUNTER, "Messages published."),
    Column("message_bytes_total", COUNTER, "Bytes of the messages published."),
    Column("refused_total", COUNTER, "Publishes refused because the topic was full."),
)
PULL_COLUMNS = (
    Column("idle_seconds", GAUGE, "Time since the last call of the channel's reader."),
    Column("held_bytes", GAUGE, "Bytes of the log that wait for the channel's reader."),
)
LOG_COLUMNS = (
    Column("log_bytes", GAUGE, "Bytes of the topic's log on disk."),
    Column("log_segments", GAUGE, "Files of the topic's log."),
    Column("log_unsynced_messages", GAUGE, "Messages that a power cut could lose."),
    Column("log_unsynced_bytes", GAUGE, "Bytes written and not synced."),
    Column("journal_bytes", GAUGE, "Bytes of the topic's ack journal."),
    Column("log_corrupt_total", COUNTER, "Damaged places found in synced data."),
    Column("log_torn_total", COUNTER, "Unsynced tails truncated at start."),
)


class Metrics:
    """Makes the page."""

    def __init__(
        self,
        components: Components,
        clients: Clients,
        memory: Memory,
        lag: LoopLag,
        traffic: Callable[[], Traffic],
    ) -> None:
        self._components = components
        self._options = components.context.options
        self._clients = clients
        self._memory = memory
        self._lag = lag
        self._traffic = traffic

    def serve(self, request: Request) -> Response | Pending:
        return gather(self.pieces(), (CONTENT_TYPE,))

    def pieces(self) -> Iterator[bytes]:
        topics = [topic for _, topic in sorted(self._components.broker.topics.items())]
        yield from self._process()
        yield from self._servers()
        yield from self._damage()
        yield from self._storage(topics)
        yield from self._deferral()
        yield from self._staging()
        yield from self._drain()
        yield from self._topics(topics)
        yield from self._channels(topics)
        yield from self._readers()
        yield from policy_families(self._components, topics)

    # The node

    def _process(self) -> Iterator[bytes]:
        health, broker = self._components.health, self._components.broker
        build = {
            "version": VERSION,
            "nsq_version": NSQ_VERSION,
            "python": sys.version.partition(" ")[0],
        }
        yield from family(
            "penstock_build_info", GAUGE, "Versions of the running process.", [(labels(build), 1)]
        )
        yield _gauge("start_time_seconds", "Start of the process, Unix time.", broker.start_time)
        yield _gauge(
            "healthy",
            "0 while a write or read fails.",
            int(health.problem is None),
        )
        yield _counter("cpu_seconds_total", "CPU time of all threads.", time.process_time())
        yield _gauge("resident_memory_bytes", "Memory in use.", self._memory.resident_size())
        yield _gauge("open_files", "File descriptors in use, sockets included.", open_files())
        yield histogram(
            "penstock_loop_lag_seconds",
            "How late the event loop serves a timer; sampled ten times a second.",
            self._lag.times,
        )
        yield _gauge(
            "loop_lag_max_seconds",
            "The largest loop lag of the last one to two minutes.",
            self._lag.maximum_ns() / 1e9,
        )

    def _servers(self) -> Iterator[bytes]:
        clients, traffic = self._clients, self._traffic()
        yield _gauge("clients", "TCP clients connected.", len(clients.connected))
        yield _counter(
            "tcp_connections_total", "TCP connections accepted.", traffic.tcp_connections
        )
        commands = clients.left_command_count + sum(c.command_count for c in clients.connected)
        yield _counter("tcp_commands_total", "Commands received over TCP.", commands)
        yield _counter(
            "lookupd_channels_unmade_total",
            "Channels listed by nsqlookupds and not created: too many, or invalid names.",
            traffic.unmade_channels,
        )
        yield _counter(
            "tcp_stuck_clients_total",
            "Clients disconnected because they did not read.",
            clients.stuck_count,
        )
        yield _gauge("http_connections", "HTTP connections open.", traffic.http_connections)
        yield from family(
            "penstock_http_requests_total",
            COUNTER,
            "HTTP requests answered.",
            [
                (labels({"status": str(status)}), count)
                for status, count in sorted(traffic.http_requests.items())
            ],
        )
        yield _gauge(
            "connections_max",
            "Connections that may be open, by the limit of open files.",
            traffic.connection_count_max,
        )
        bodies = traffic.bodies
        yield _gauge("unfinished_body_bytes", "Bytes of incomplete request bodies.", bodies.size)
        yield _gauge(
            "unfinished_bodies_held", "Bodies not read for lack of room.", bodies.held_count
        )
        yield _counter(
            "unfinished_bodies_ended_total",
            "Bodies dropped: too slow, or no room.",
            bodies.ended_count,
        )
        yield from family(
            "penstock_connections_refused_total",
            COUNTER,
            "Connections refused because all slots were in use.",
            [(labels({"door": own.name}), own.refused_count) for own in traffic.quotas],
        )
        yield from family(
            "penstock_connections_evicted_total",
            COUNTER,
            "Connections closed to make room: silent ones, and HTTP between two requests.",
            [(labels({"door": own.name}), own.evicted_count) for own in traffic.quotas],
        )

    def _damage(self) -> Iterator[bytes]:
        damage = self._components.damage
        for name, help, counts in (
            ("total", "Damaged or missing places found on disk.", damage.counts),
            ("messages_total", "Messages lost with them, where known.", damage.message_counts),
        ):
            samples = [(labels({"kind": kind}), counts[kind]) for kind in DamageKind]
            yield from family(f"penstock_damage_{name}", COUNTER, help, samples)
        yield _gauge(
            "damage_records",
            "Damage records not cleared yet, including earlier runs; see GET /damage.",
            len(damage.records),
        )

    # Storage

    def _storage(self, topics: list[BaseTopic]) -> Iterator[bytes]:
        sync_times = self._components.shared.sync_times
        yield _gauge(
            "reserve_held",
            "1 while disk space is held back for journals; 0: the disk is full.",
            int(self._components.health.reserve.held),
        )
        yield _gauge(
            "disk_low",
            "1 while less of the disk is free than --disk-low-watermark.",
            int(self._components.room.low),
        )
        yield histogram("penstock_sync_duration_seconds", "Syncs of topic logs.", sync_times)
        rows: list[tuple[str, tuple[int, ...]]] = []
        for topic in topics:
            if isinstance(topic, Topic):
                rows.append((_topic_labels(topic), _log_row(topic)))
            if not len(rows) % PIECE_COUNT:
                yield b""
        yield from _table("penstock_", LOG_COLUMNS, rows)

    def _deferral(self) -> Iterator[bytes]:
        table = self._components.deferred.table
        yield _gauge("deferred_pending", "Deferred publishes not due yet.", table.tallies.total)
        yield _gauge("deferred_slots", "Files of deferred publishes.", len(table.files))
        yield _gauge("deferred_near", "Deferred publishes in memory.", len(table.schedule))
        yield _counter(
            "deferred_void_total",
            "Deferred publishes whose topic was deleted or emptied first.",
            table.void_count,
        )
        yield _counter(
            "deferred_corrupt_total",
            "Damaged deferred records found.",
            table.corrupt_count,
        )
        yield _counter(
            "deferred_torn_total",
            "Deferred records torn by a crash, never synced.",
            table.torn_count,
        )
        yield _counter(
            "deferred_errors_total", "Disk errors of deferred publishing.", table.error_count
        )
        yield histogram(
            "penstock_deferred_lateness_seconds",
            "How long after their due time deferred publishes were fired.",
            self._components.turn.lateness,
        )

    def _staging(self) -> Iterator[bytes]:
        staging = self._components.staging
        yield _gauge("stagings", "Stagings on this node.", staging.staging_count)
        yield _gauge("staging_bytes", "Bytes of staged rows.", staging.size)
        yield _gauge(
            "staging_publications",
            "Batches that are being published, or could not be yet.",
            len(staging.publications),
        )
        yield _counter("staged_parts_total", "Parts staged.", staging.part_count)
        yield _counter("staged_messages_total", "Messages staged.", staging.staged_count)
        yield _counter(
            "staging_published_messages_total",
            "Staged messages published.",
            staging.published_count,
        )
        yield _counter(
            "staging_void_messages_total",
            "Staged messages whose topic was deleted while they were published.",
            staging.void_count,
        )
        yield _counter(
            "staging_expired_total",
            "Stagings dropped after --staging-timeout.",
            staging.expired_count,
        )
        yield _counter(
            "staging_errors_total", "Disk errors of stagings and batches.", staging.error_count
        )

    def _drain(self) -> Iterator[bytes]:
        drain = self._components.drain
        left = drain.left if drain.draining else None
        yield _gauge("draining", "1 while the node is being drained.", int(drain.draining))
        yield _gauge(
            "drain_left_messages",
            "Messages that a drain waits for.",
            0 if left is None else left.messages,
        )
        yield _gauge(
            "drain_blocked",
            "Topics and channels that a drain waits for and that cannot become empty.",
            0 if left is None else left.blocked_count,
        )
        yield _gauge(
            "drain_handed_over",
            "Deferred messages that another node has taken over in this drain.",
            drain.record.handed_over if drain.draining else 0,
        )

    # Topics and channels

    def _topics(self, topics: list[BaseTopic]) -> Iterator[bytes]:
        yield _gauge("topics", "Topics of this node.", len(topics))
        memory = self._components.shared.ephemeral
        yield _gauge("ephemeral_bytes", "Bytes that ephemeral queues keep.", memory.size)
        yield _counter(
            "ephemeral_dropped_messages_total",
            "Messages that ephemeral queues had no room for.",
            memory.dropped_count,
        )
        rows: list[tuple[str, tuple[int, ...]]] = []
        for topic in topics:
            rows.append((_topic_labels(topic), _topic_row(topic)))
            if not len(rows) % PIECE_COUNT:
                yield b""
        yield from _table("penstock_topic_", TOPIC_COLUMNS, rows)
        yield from self._retained()
        yield from self._latencies("topic", topics, _topic_labels)

    def _retained(self) -> Iterator[bytes]:
        """Of the topics whose policy retains something."""
        rows: list[tuple[str, tuple[float, ...]]] = []
        for each in self._components.retention.by_name():
            rows.append((_name_labels(each.topic.name), _retained_row(each)))
            if not len(rows) % PIECE_COUNT:
                yield b""
        yield from _table("penstock_topic_", RETAINED_COLUMNS, rows)

    def _channels(self, topics: list[BaseTopic]) -> Iterator[bytes]:
        channels: list[Channel] = []
        rows: list[tuple[str, tuple[int, ...]]] = []
        for topic in topics:
            for _, channel in sorted(topic.channels.items()):
                channels.append(channel)
                rows.append((_channel_labels(channel), _channel_row(channel)))
                if not len(rows) % 64:
                    yield b""
        yield _gauge("channels", "Channels of all topics.", len(channels))
        yield from _table("penstock_channel_", CHANNEL_COLUMNS, rows)
        if EXPERIMENT in self._options.enable_experiment:
            yield from family(
                "penstock_channel_local_deliveries_total",
                COUNTER,
                "Messages sent, by locality of the client.",
                _by_locality(channels),
            )
        yield from self._latencies("channel", channels, _channel_labels)

    def _readers(self) -> Iterator[bytes]:
        """Readers of logs by index."""
        components, pulls = self._components, self._components.pulls
        rows: list[tuple[str, tuple[float, ...]]] = []
        for channel in sorted(pulls.channels, key=lambda c: (c.topic.name, c.name)):
            rows.append((_channel_labels(channel), (channel.idle_ns / 1e9, channel.held_size)))
            yield b""
        yield _gauge("pull_channels", "Channels that are read by index.", len(rows))
        yield from _table("penstock_pull_channel_", PULL_COLUMNS, rows)
        yield from family(
            "penstock_pull_channel_lapses_total",
            COUNTER,
            "Pull channels deleted because their reader was gone, by limit exceeded.",
            [(labels({"cause": c}), count) for c, count in pulls.lapse_counts.items()],
        )
        yield from family(
            "penstock_pull_refusals_total",
            COUNTER,
            "Requests refused to protect a pull channel's reader, by reason.",
            [(labels({"reason": r}), count) for r, count in pulls.refusal_counts.items()],
        )
        yield _counter(
            "pull_losses_total",
            "Responses that reported lost messages to a reader.",
            pulls.loss_count,
        )
        patterns = components.patterns
        yield _gauge("pull_patterns", "Patterns that give topics a channel.", len(patterns))
        yield _counter(
            "pull_pattern_lapses_total",
            "Patterns deleted because their reader was gone.",
            patterns.lapse_count,
        )
        yield _counter(
            "pull_pattern_channels_total",
            "Pull channels created together with a topic.",
            patterns.made_count,
        )
        yield _gauge(
            "log_polls", "Readers that wait for a log's end.", components.polls.waiting_count
        )
        yield _counter("log_reads_total", "Ranges read by index.", components.reads.read_count)
        yield _counter("log_read_bytes_total", "Bytes of those ranges.", components.reads.read_size)

    def _latencies(
        self, what: str, things: list[BaseTopic] | list[Channel], where: Callable[..., str]
    ) -> Iterator[bytes]:
        if not self._options.e2e_processing_latency_percentiles:
            return
        samples: list[Sample] = []
        for thing in things:
            begun = where(thing)[:-1]
            for share, value_ns in thing.latency.values:
                samples.append((f'{begun},quantile="{share}"}}', value_ns / 1e9))
            yield b""
        help = "Time from publish to finish, over -e2e-processing-latency-window-time."
        yield from family(f"penstock_{what}_latency_seconds", SUMMARY, help, samples)


def open_files() -> int:
    """The number of open descriptors; -1 if unknown."""
    try:
        # Since Linux 6.2 the folder's size is the number; listing 10,000 takes milliseconds.
        return _FD_FOLDER.stat().st_size or len(os.listdir(_FD_FOLDER))  # noqa: PTH208
    except OSError:
        return -1


def _gauge(name: str, help: str, value: float) -> bytes:
    return single(f"penstock_{name}", GAUGE, help, value)


def _counter(name: str, help: str, value: float) -> bytes:
    return single(f"penstock_{name}", COUNTER, help, value)


def _table(
    prefix: str,
    columns: tuple[Column, ...],
    rows: Sequence[tuple[str, tuple[float, ...]]],
) -> Iterator[bytes]:
    for at, column in enumerate(columns):
        samples = ((where, values[at]) for where, values in rows)
        yield from family(prefix + column.name, column.kind, column.help, samples)


def _topic_labels(topic: BaseTopic) -> str:
    return _name_labels(topic.name)


def _name_labels(topic: str) -> str:
    return f'{{topic="{escape(topic)}"}}'


def _channel_labels(channel: Channel) -> str:
    return f'{{topic="{escape(channel.topic.name)}",channel="{escape(channel.name)}"}}'


def _retained_row(each: Keeping) -> tuple[float, ...]:
    return each.size, each.oldest_age_ns / 1e9, each.given_up_count


def _topic_row(topic: BaseTopic) -> tuple[int, ...]:
    return (
        topic.depth,
        topic.deferred_pending(0),
        len(topic.channels),
        int(topic.paused),
        topic.message_count,
        topic.message_bytes,
        topic.appender.refused_count,
    )


def _log_row(topic: Topic) -> tuple[int, ...]:
    log = topic.log
    return (
        log.size + log.zeros_size,
        log.segment_count,
        log.extent.unsynced_count,
        log.extent.unsynced_size,
        topic.keeper.size,
        log.corrupt_count,
        log.torn_count,
    )


def _channel_row(channel: Channel) -> tuple[int, ...]:
    return (
        channel.depth,
        channel.in_flight_count,
        channel.deferred_count,
        len(channel.consumers),
        int(channel.paused),
        channel.message_count,
        sum(channel.delivery_counts),
        channel.finish_count,
        channel.requeue_count,
        channel.timeout_count,
        channel.moved_count,
        channel.move_failure_count,
    )


def _by_locality(channels: list[Channel]) -> Iterator[Sample]:
    for channel in channels:
        begun = _channel_labels(channel)[:-1]
        for locality, count in zip(LOCALITIES, channel.delivery_counts, strict=True):
            yield f'{begun},locality="{locality}"}}', count
