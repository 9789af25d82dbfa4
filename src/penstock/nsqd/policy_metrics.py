"""The metrics of policies: what they did, by topic and channel, and the policy file.

A part that counts something gives it to ``policy_stats`` of a topic or channel, where /stats finds
it, and has a row here.  nsqadmin counts the last hour by the same names (admin/effects.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.engine.base import BaseTopic
from penstock.engine.components import Components
from penstock.net.exposition import COUNTER, GAUGE, Sample, family, labels, single


class Counted(NamedTuple):
    """A number of ``policy_stats`` and its metric; ``name`` is complete."""

    key: str
    name: str
    kind: str
    help: str


TOPIC_COUNTS: tuple[Counted, ...] = (
    Counted(
        "unfinished_count",
        "penstock_topic_unfinished_messages",
        GAUGE,
        "Messages that max_messages bounds.",
    ),
    Counted(
        "unfinished_bytes", "penstock_topic_unfinished_bytes", GAUGE, "Bytes that max_bytes bounds."
    ),
    Counted(
        "dropped_count",
        "penstock_topic_dropped_total",
        COUNTER,
        "Messages dropped at a bound while they waited for the first channel.",
    ),
    Counted(
        "expired_count",
        "penstock_topic_expired_total",
        COUNTER,
        "Messages that became older than msg_ttl while they waited for the first channel.",
    ),
)
CHANNEL_COUNTS: tuple[Counted, ...] = (
    Counted(
        "expired_count",
        "penstock_channel_expired_total",
        COUNTER,
        "Messages that became older than msg_ttl before they were delivered.",
    ),
    Counted(
        "dropped_count",
        "penstock_channel_dropped_total",
        COUNTER,
        "Messages dropped at a bound of the topic.",
    ),
)


def policy_families(components: Components, topics: Sequence[BaseTopic]) -> Iterator[bytes]:
    """All families, in pieces; a topic or channel without a number has no sample of it."""
    policies = components.policies
    yield single("penstock_policy_rules", GAUGE, "Rules of the policy file.", policies.rules.count)
    yield single(
        "penstock_policy_file_refusals_total",
        COUNTER,
        "Times that the policy file was wrong when it was read again.",
        policies.refused_count,
    )
    yield single(
        "penstock_channel_lapses_total",
        COUNTER,
        "Channels deleted by their channel_lapse.",
        policies.lapses.count,
    )
    of_topics: dict[str, list[Sample]] = {counted.key: [] for counted in TOPIC_COUNTS}
    of_channels: dict[str, list[Sample]] = {counted.key: [] for counted in CHANNEL_COUNTS}
    for topic in topics:
        where = labels({"topic": topic.name})
        for key, value in topic.policy_stats().items():
            if key in of_topics:
                of_topics[key].append((where, value))
        for name, channel in sorted(topic.channels.items()) if of_channels else ():
            where = labels({"topic": topic.name, "channel": name})
            for key, value in channel.policy_stats().items():
                if key in of_channels:
                    of_channels[key].append((where, value))
        yield b""
    for counted in TOPIC_COUNTS:
        yield from family(counted.name, counted.kind, counted.help, of_topics[counted.key])
    for counted in CHANNEL_COUNTS:
        yield from family(counted.name, counted.kind, counted.help, of_channels[counted.key])
