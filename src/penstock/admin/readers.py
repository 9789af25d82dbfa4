"""Who reads pull channels, and would miss what an action removes (R45).

    READER      channel, identity or None (not bound yet), reader (its name for people, maybe ""),
                since_ms or None, nodes [name], text (all of it for people)

Rule 1: nothing is done where a reader would miss messages, unless somebody who was told of the
        reader says ``force``.  Asked before the nsqlookupds are: they must not forget a topic that
        its nodes keep.
Rule 2: nsqd has the last word; a node that does not answer here is asked again by the action.
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
from penstock.admin.upstream import Upstream, ask_all
from penstock.net.http_message import HttpError
from penstock.wire.peer_answers import channels_in, stats_query

View = dict[str, Any]

# So many are named; a person reads it.
READER_COUNT_MAX = 5
_SINCE_MS_MAX = 253_402_300_799_999  # the end of the year 9999


def shown(sample: Sample, channels: Iterable[ChannelSum]) -> list[View]:
    """The readers of ``channels``, each with the nodes it reads there."""
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
    return {**view, "nodes": [], "text": words(view)}


def words(reader: Mapping[str, Any]) -> str:
    """A READER: "lake, read by pipeline lake on host7 (since 2026-11-16 19:00 UTC)"."""
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
    """HttpError 409 PULL_CHANNEL if a node has a pull channel that ``action`` is about."""
    query = stats_query(topic, channel, include_mem="false")

    async def ask(address: str) -> list[str]:
        return _pulled(await upstream.nsqd_get(address, "/stats", **query), topic, channel)

    answers, _ = await ask_all(addresses, ask)
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
    """The pull channels in an answer of /stats, in words; what is not an answer has none."""
    found: list[str] = []
    with suppress(ValueError):
        for _, name, told in channels_in(stats, [topic], channel):
            pull = told.get("pull")
            if isinstance(pull, dict):
                found.append(words({"channel": name, **reader_fields(pull)}))
    return found


def reader_fields(pull: Mapping[str, Any]) -> View:
    """Who reads a channel, of the ``pull`` in /stats; cut to what can be shown."""
    identity, name, since_ms = (pull.get(key) for key in ("identity", "reader", "reader_since_ms"))
    return {
        "identity": identity[:TEXT_SIZE_MAX] if isinstance(identity, str) else None,
        "reader": name[:TEXT_SIZE_MAX] if isinstance(name, str) else "",
        "since_ms": since_ms if type(since_ms) is int else None,
    }
