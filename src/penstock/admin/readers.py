"""The readers of pull channels, which would miss the messages that an action removes (R45).

    READER      channel, identity or None (not bound yet), reader (its display name, may be ""),
                since_ms or None, nodes [name], text (all of it, formatted for people)

Rule 1: an action by which a reader would miss messages needs ``force``; the refusal names the
        reader.  Readers are checked before the nsqlookupds are changed: they must not drop a topic
        that its nodes keep.
Rule 2: nsqd decides.  A node that does not respond here is queried again by the action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from penstock.admin.sample import (
    TEXT_SIZE_MAX,
    ChannelSum,
    Pull,
    Sample,
)
from penstock.admin.upstream import Upstream, request_all
from penstock.net.http_message import HttpError
from penstock.wire.peer_answers import channels_in, stats_query

View = dict[str, Any]

# At most this many are named, because people read the text.
READER_COUNT_MAX = 5
_SINCE_MS_MAX = 253_402_300_799_999  # the end of the year 9999


def shown(sample: Sample, channels: Iterable[ChannelSum]) -> list[View]:
    """The readers of ``channels``, each with the nodes it reads from."""
    found: dict[tuple[str, str | None, str], View] = {}
    for channel in channels:
        for name in channel.nodes if channel.pull else ():
            pull = sample.nodes[name].topics[channel.topic].channels[channel.name].pull
            if pull is None:
                continue
            key = (channel.name, pull.identity, pull.reader)
            view = found.setdefault(key, _view(channel.name, pull))
            view["nodes"].append(name)
    return list(found.values())


def _view(channel: str, pull: Pull) -> View:
    view = {
        "channel": channel,
        "identity": pull.identity,
        "reader": pull.reader,
        "since_ms": pull.since_ms,
    }
    return {**view, "nodes": [], "text": describe(view)}


def describe(reader: Mapping[str, Any]) -> str:
    """For example "lake, read by pipeline lake on host7 (since 2026-11-16 19:00 UTC)"."""
    if reader["identity"] is None:
        return f"{reader['channel']}, not bound to a reader yet"
    name = reader["reader"] or f"an unnamed reader, identity {reader['identity']}"
    since_ms = reader["since_ms"]
    if since_ms is None or not 0 <= since_ms <= _SINCE_MS_MAX:
        return f"{reader['channel']}, read by {name}"
    since = datetime.fromtimestamp(since_ms // 1000, UTC)
    return f"{reader['channel']}, read by {name} (since {since:%Y-%m-%d %H:%M} UTC)"


async def check(
    upstream: Upstream, addresses: Iterable[str], action: str, topic: str, channel: str
) -> None:
    """Raise HttpError 409 PULL_CHANNEL if ``action`` affects a pull channel on a node."""
    query = stats_query(topic, channel, include_mem="false")

    async def fetch(address: str) -> list[str]:
        return _pulled(await upstream.nsqd_get(address, "/stats", **query), topic, channel)

    answers, _ = await request_all(addresses, fetch)
    names = dict.fromkeys(name for found in answers.values() for name in found)
    if not names:
        return
    some = "; ".join(list(names)[:READER_COUNT_MAX])
    more = len(names) - READER_COUNT_MAX
    what = f"channel {channel} of topic {topic}" if channel else f"topic {topic}"
    detail = (
        f"cannot {action} {what} without force, because a reader would miss messages:"
        f" {some}{f'; and {more} more' if more > 0 else ''}"
    )
    raise HttpError(409, "PULL_CHANNEL", detail=detail)


def _pulled(stats: Any, topic: str, channel: str) -> list[str]:
    """Descriptions of the pull channels in a /stats response; none if it is invalid."""
    found: list[str] = []
    with suppress(ValueError):
        for _, name, fields in channels_in(stats, [topic], channel):
            pull = fields.get("pull")
            if isinstance(pull, dict):
                found.append(describe({"channel": name, **reader_fields(pull)}))
    return found


def reader_fields(pull: Mapping[str, Any]) -> View:
    """The reader of a channel, from ``pull`` in /stats, truncated for display."""
    identity, name, since_ms = (pull.get(key) for key in ("identity", "reader", "reader_since_ms"))
    return {
        "identity": identity[:TEXT_SIZE_MAX] if isinstance(identity, str) else None,
        "reader": name[:TEXT_SIZE_MAX] if isinstance(name, str) else "",
        "since_ms": since_ms if type(since_ms) is int else None,
    }
