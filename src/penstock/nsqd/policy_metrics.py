"""The metrics of policies: what they did, by topic and channel, and the policy file.

A part that counts something gives it to ``policy_stats`` of a topic or channel, where /stats finds
it, and has a row here.  nsqadmin counts the last hour by the same names (admin/effects.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.engine.base import BaseTopic
from penstock.engine.components import Components
from penstock.net.exposition import COUNTER, GAUGE, Sample, family, labels, single
from penstock.settings.policy import DEFAULT


class Counted(NamedTuple):
    """A number of ``policy_stats`` and its metric; ``name`` is complete.

    If it is several numbers by name, ``label`` is the label for that name.
    """

    key: str
    name: str
    kind: str
    help: str
    label: str = ""


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
    Counted("buried", "penstock_channel_buried", GAUGE, "Messages that are buried."),
    Counted(
        "buried_total",
        "penstock_channel_burials_total",
        COUNTER,
        "Messages buried, by reason.",
        "reason",
    ),
    Counted(
        "kicked_total",
        "penstock_channel_kicked_total",
        COUNTER,
        "Buried messages that were made ready again.",
    ),
    Counted(
        "discarded_total",
        "penstock_channel_discarded_total",
        COUNTER,
        "Buried messages that were finished.",
    ),
    Counted(
        "dropped_attempts_total",
        "penstock_channel_dropped_attempts_total",
        COUNTER,
        "Messages dropped after max_attempts.",
    ),
    Counted(
        "not_buried_total",
        "penstock_channel_not_buried_total",
        COUNTER,
        "Messages that max_buried left no room for; they stay in the channel.",
    ),
)


def policy_families(components: Components, topics: Sequence[BaseTopic]) -> Iterator[bytes]:
    """All families, in pieces; a topic or channel without a number has no sample of it.

    Without a policy there are only the numbers that are not zero, and none of a topic: they take
    time to count, and nothing limits them.
    """
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
        ruled = topic.policy != DEFAULT
        if ruled:
            _collect(topic.policy_stats(), {"topic": topic.name}, TOPIC_COUNTS, of_topics)
        for name, channel in sorted(topic.channels.items()):
            stats = channel.policy_stats()
            if not ruled and channel.policy == DEFAULT:
                stats = {key: value for key, value in stats.items() if value}
            _collect(stats, {"topic": topic.name, "channel": name}, CHANNEL_COUNTS, of_channels)
        yield b""
    for counted in TOPIC_COUNTS:
        yield from family(counted.name, counted.kind, counted.help, of_topics[counted.key])
    for counted in CHANNEL_COUNTS:
        yield from family(counted.name, counted.kind, counted.help, of_channels[counted.key])


def _collect(
    stats: Mapping[str, Any],
    where: dict[str, str],
    counts: Sequence[Counted],
    samples: dict[str, list[Sample]],
) -> None:
    for counted in counts:
        value = stats.get(counted.key)
        if value is None:
            continue
        if counted.label:
            named = ((labels(where | {counted.label: name}), one) for name, one in value.items())
            samples[counted.key] += named
        else:
            samples[counted.key].append((labels(where), value))
