"""The buried messages of a channel on all its nodes: shown, kicked, moved and discarded.

    VIEW     topic, channel, counts [{"node", "count"}], total, messages [MESSAGE] or None (not
             permitted), more [{"node", "after"}]: where each node's next page begins,
             nodes [name], node, reason, to: the dead topic that the page proposes,
             running [{"node", "act", "left", "to"}]: what runs in the background, and moves,
             limits: values of max_attempts above CLIENT_ATTEMPTS
    MESSAGE  node, id, reason, text, attempts, client, timestamp_ms, buried_ms, size, cut, kind,
             body

A form chooses messages by ``which``: ``selected`` with fields ``id.<id>``, ``oldest`` with
``number``, or ``all``.  The last two may have a ``rate`` in messages a second: then nodes do it in
the background, and the page shows what is left.

Rule 1: at most PAGE_COUNT messages are shown, those of the nodes in equal shares.
Rule 2: a request to a node is about BATCH_COUNT messages at most; others follow until all are done
        or BUSY_S have passed.  The result says how many are left.  A batch of a kick begins where
        the one before ended: messages that fail again meanwhile are among the oldest again.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from penstock.admin import api_objects, bodies
from penstock.admin.policies import Policies
from penstock.admin.sample import TEXT_SIZE_MAX, ChannelSum, NodePart, Sample
from penstock.admin.upstream import Upstream, UpstreamError, request_all
from penstock.net.http_message import HttpError
from penstock.record import record
from penstock.wire.ids import split_id
from penstock.wire.names import EPHEMERAL, is_ephemeral, is_valid_name
from penstock.wire.peer_answers import objects, text

View = dict[str, Any]

PAGE_COUNT = 50
REASONS = {"attempts": "failed too often", "bury": "buried by its client", "expired": "expired"}
DONE = {"kick": "kicked", "move": "moved", "discard": "discarded"}
DOING = {"kick": "kicking", "move": "moving", "discard": "discarding"}
# go-nsq and pynsq give up on a message by themselves after this many attempts.
CLIENT_ATTEMPTS = 5
BATCH_COUNT = 10_000
BUSY_S = 10.0
ID_COUNT_MAX = 100
COUNT_MAX = 10_000_000
RATE_MAX = 1_000_000
RUNNING_COUNT_MAX = 8


@record
class Wanted:
    """Which messages a form is about, and where they go."""

    action: str
    ids: list[str] | None
    count: int  # on each node; 0: all
    reason: str
    to: str
    rate: int  # messages a second on each node; 0: at once


async def view(
    upstream: Upstream,
    sample: Sample,
    policy: Policies,
    topic: str,
    channel: str,
    query: Mapping[str, str],
    *,
    read: bool,
) -> View:
    """The page; without ``read`` it has no messages."""
    known = known_channel(sample, topic, channel)
    parts = {part.address: part for part in map(sample.nodes.__getitem__, known.nodes) if part.own}
    node, reason, after = (query.get(name, "") for name in ("node", "reason", "after"))
    if reason not in ("", *REASONS):
        raise HttpError(400, "INVALID_REASON")
    if after and (not after.isdecimal() or len(after) > 19 or not node):
        raise HttpError(400, "INVALID_AFTER")
    asked = {a: part for a, part in parts.items() if node in ("", part.node)}
    pages, failures = await _pages(upstream, asked, topic, channel, reason, after, read=read)
    warnings = [f"{parts[a].node}: {error.short}" for a, error in failures.items()]
    messages = [message for page in pages.values() for message in page["messages"]]
    messages.sort(key=lambda message: int(message["buried_ms"]))
    return {
        "warnings": list(dict.fromkeys((*sample.warnings, *warnings, *policy.warnings))),
        "topic": topic,
        "channel": channel,
        "counts": [{"node": parts[a].node, "count": page["count"]} for a, page in pages.items()],
        "total": sum(page["count"] for page in pages.values()),
        "running": [
            {"node": parts[a].node, **one} for a, page in pages.items() for one in page["running"]
        ],
        "messages": messages[:PAGE_COUNT] if read else None,
        "more": [
            {"node": parts[a].node, "after": page["next"]}
            for a, page in pages.items()
            if page["next"] is not None and read
        ],
        "nodes": [part.node for part in parts.values()],
        "node": node,
        "reason": reason,
        "to": f"{topic}.{channel.removesuffix(EPHEMERAL)}.dead",
        "limits": client_limits(policy.shown),
    }


def known_channel(sample: Sample, topic: str, channel: str) -> ChannelSum:
    """The channel in a sample; raises HttpError."""
    found = sample.topics.get(topic)
    known = found.channels.get(channel) if found is not None else None
    if known is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return known


async def _pages(
    upstream: Upstream,
    parts: Mapping[str, NodePart],
    topic: str,
    channel: str,
    reason: str,
    after: str,
    *,
    read: bool,
) -> tuple[dict[str, View], dict[str, UpstreamError]]:
    count = max(1, PAGE_COUNT // max(1, len(parts))) if read else 1
    query = {"topic": topic, "channel": channel, "count": str(count)}
    query["size_max"] = str(bodies.BODY_SIZE_MAX if read else 1)
    query |= {name: value for name, value in (("reason", reason), ("after", after)) if value}

    async def fetch(address: str) -> View:
        answer = await upstream.nsqd_get(address, "/channel/dead", **query)
        return _page(answer, parts[address].node)

    answers, failures = await request_all(parts, fetch)
    # An earlier version buries nothing; or the channel has just been deleted there.
    return answers, {a: error for a, error in failures.items() if error.status != 404}


def _page(answer: Any, node: str) -> View:
    try:
        following = answer.get("next")
        return {
            "count": api_objects.count(answer, "count"),
            "running": [
                {
                    "act": act,
                    "left": api_objects.count(one, "left"),
                    "to": text(one, "to")[:TEXT_SIZE_MAX] if "to" in one else "",
                }
                for one in objects(answer.get("running") or [])[:RUNNING_COUNT_MAX]
                if (act := text(one, "act")) in DOING
            ],
            "messages": [_message(found, node) for found in objects(answer.get("messages"))],
            "next": following if isinstance(following, int) else None,
        }
    except (AttributeError, ValueError, binascii.Error):
        raise UpstreamError("invalid messages") from None


def _message(found: Any, node: str) -> View:
    body = base64.b64decode(text(found, "body"), validate=True)
    size = api_objects.count(found, "size")
    shown = bodies.shown(body, whole=len(body) == size)
    return {
        "node": node,
        "id": text(found, "id"),
        "reason": text(found, "reason"),
        "text": text(found, "text")[:TEXT_SIZE_MAX],
        "attempts": api_objects.count(found, "attempts"),
        "client": text(found, "client")[:TEXT_SIZE_MAX],
        "timestamp_ms": api_objects.count(found, "timestamp") // 1_000_000,
        "buried_ms": api_objects.count(found, "buried") // 1_000_000,
        "size": size,
        "cut": shown.size < size,
        "kind": shown.kind,
        "body": shown.text,
    }


def client_limits(shown: View | None) -> list[int]:
    """Values of max_attempts with which clients give up first."""
    for key in shown["keys"] if shown is not None else ():
        if key["key"] == "max_attempts":
            values = {entry["value"] for entry in key["values"] if entry["value"].isdecimal()}
            return sorted(int(value) for value in values if int(value) > CLIENT_ATTEMPTS)
    return []


def wanted(action: str, topic: str, fields: Mapping[str, str]) -> Wanted:
    """What a form asks for; raises HttpError."""
    which, reason, to = (fields.get(name, "") for name in ("which", "reason", "to"))
    if reason not in ("", *REASONS):
        raise HttpError(400, "INVALID_REASON")
    if action == "move" and (not is_valid_name(to) or is_ephemeral(to) or to == topic):
        raise HttpError(400, "INVALID_TO", detail="the topic to move to is not another topic")
    ids = [name[3:] for name in fields if name.startswith("id.")]
    rate = _rate(fields.get("rate", ""))
    if which == "selected":
        if rate:
            raise HttpError(400, "INVALID_RATE", detail="selected messages take no rate")
        if not 0 < len(ids) <= ID_COUNT_MAX:
            raise HttpError(400, "NO_MESSAGES", detail="no message was selected")
        if any(split_id(id.encode("utf-8", "replace")) is None for id in ids):
            raise HttpError(400, "INVALID_IDS")
        return Wanted(action, ids, 0, "", to, 0)
    if which == "all":
        return Wanted(action, None, 0, reason, to, rate)
    number = fields.get("number", "")
    if which != "oldest" or not number.isdecimal() or not 0 < int(number[:9]) <= COUNT_MAX:
        raise HttpError(400, "INVALID_NUMBER", detail="which messages is not said")
    return Wanted(action, None, int(number[:9]), reason, to, rate)


def _rate(typed: str) -> int:
    if not typed:
        return 0
    if not typed.isdecimal() or not 0 < int(typed[:9]) <= RATE_MAX:
        raise HttpError(400, "INVALID_RATE", detail=f"the rate must be from 1 to {RATE_MAX}")
    return int(typed[:9])


async def _begin(upstream: Upstream, address: str, topic: str, channel: str, what: Wanted) -> str:
    """Begin it on one node, at a rate, in the background."""
    query = {"topic": topic, "channel": channel, "rate": str(what.rate)}
    query |= {"to": what.to} if what.action == "move" else {}
    query |= {"reason": what.reason} if what.reason else {}
    query |= {"count": str(what.count)} if what.count else {}
    answer = await upstream.nsqd_ask(address, f"/channel/{what.action}", query)
    try:
        found = api_objects.count(answer, DOING[what.action])
    except (AttributeError, ValueError):
        raise UpstreamError("invalid answer") from None
    return f"{DOING[what.action]} {found} at {what.rate} a second"


async def stop(upstream: Upstream, address: str, topic: str, channel: str, act: str) -> str:
    """End what runs in the background on one node; returns what was done."""
    query = {"topic": topic, "channel": channel, "stop": "true"}
    answer = await upstream.nsqd_ask(address, f"/channel/{act}", query)
    try:
        done, left = api_objects.count(answer, DONE[act]), api_objects.count(answer, "left")
    except (AttributeError, ValueError):
        raise UpstreamError("invalid answer") from None
    return f"{done} {DONE[act]}, {left} left"


async def act(upstream: Upstream, address: str, topic: str, channel: str, what: Wanted) -> str:
    """Do it on one node; returns what was done.  Raises UpstreamError."""
    if what.rate:
        return await _begin(upstream, address, topic, channel, what)
    query = {"topic": topic, "channel": channel}
    query |= {"to": what.to} if what.action == "move" else {}
    query |= {"reason": what.reason} if what.reason else {}
    body = json.dumps({"ids": what.ids}).encode() if what.ids is not None else b""
    done, place, end_s = 0, 0, time.monotonic() + BUSY_S
    while True:
        count = min(BATCH_COUNT, what.count - done) if what.count else BATCH_COUNT
        batch = {**query, "count": str(count), "after": str(place)}
        if what.ids is not None:
            batch = query
        try:
            answer = await upstream.nsqd_ask(address, f"/channel/{what.action}", batch, body)
        except UpstreamError as error:
            raise _partly(error, what.action, done) from None
        try:
            found = api_objects.count(answer, DONE[what.action])
            left = api_objects.count(answer, "left")
        except (AttributeError, ValueError):
            raise UpstreamError("invalid answer") from None
        done += found
        place = 0 if what.action == "move" else answer.get("next")  # what was moved is gone
        ended = what.ids is not None or found < count or place is None
        ended = ended or bool(what.count and done >= what.count)
        if ended or time.monotonic() > end_s:
            return f"{done} {DONE[what.action]}, {left} left"


def _partly(error: UpstreamError, action: str, done: int) -> UpstreamError:
    """The error, with what was done before it: the batches before, and what its body counts."""
    with suppress(AttributeError, ValueError, RecursionError):
        done += api_objects.count(json.loads(error.body), DONE[action], 0)
    shown = f"{done} {DONE[action]}" if done else ""
    return UpstreamError(error.text, error.status, error.short, done=shown)
