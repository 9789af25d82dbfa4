"""The oldest unfinished messages of a channel on all its nodes, without consuming any.

    {"node", "id", "timestamp_ms", "attempts", "state": "queued", "in_flight" or "deferred",
     "due_ms" (deferred, else None), "size", "cut", "kind": "json", "text" or "hex", "body"}

nsqd truncates bodies to BODY_SIZE_MAX; ``bodies`` formats them.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from penstock.admin import api_objects, bodies
from penstock.admin.sample import Sample
from penstock.admin.upstream import Upstream, UpstreamError, request_all
from penstock.net.http_message import HttpError
from penstock.wire.peer_answers import objects, text

COUNT_MAX = 100
_STATES = frozenset(("queued", "in_flight", "deferred"))


async def peek(
    upstream: Upstream, sample: Sample, topic: str, channel: str, node: str, count: int
) -> tuple[list[dict[str, Any]], dict[str, UpstreamError]]:
    """The oldest unfinished messages of a channel, and the failures by node."""
    found = sample.topics.get(topic)
    known = found.channels.get(channel) if found is not None else None
    # A new channel is in no sample yet: query all nodes.
    names = known.nodes if known is not None else list(sample.nodes)
    parts = [sample.nodes[name] for name in names if node in ("", name)]
    able = {part.address: part for part in parts if part.own and part.answered}
    if not able:
        # Go's nsqd cannot read messages without consuming them.
        raise HttpError(501, "PEEK_NOT_SUPPORTED")

    async def fetch(address: str) -> list[dict[str, Any]]:
        answer = await upstream.nsqd_get(
            address,
            "/channel/peek",
            topic=topic,
            channel=channel,
            count=str(count),
            size_max=str(bodies.BODY_SIZE_MAX),
        )
        return _messages(answer, able[address].node)

    answers, failures = await request_all(able, fetch)
    failures = {address: error for address, error in failures.items() if error.status != 404}
    if not answers and not failures:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    messages = [message for several in answers.values() for message in several]
    messages.sort(key=lambda message: int(message["timestamp_ms"]))
    return messages[:count], {able[address].node: error for address, error in failures.items()}


def _messages(answer: Any, node: str) -> list[dict[str, Any]]:
    try:
        return [_message(found, node) for found in objects(answer.get("messages"))]
    except (AttributeError, ValueError, binascii.Error):
        raise UpstreamError("invalid messages") from None


def _message(found: Any, node: str) -> dict[str, Any]:
    body = base64.b64decode(text(found, "body"), validate=True)
    size = api_objects.count(found, "size")
    state = text(found, "state")
    shown = bodies.shown(body, whole=len(body) == size)
    due = found.get("due")
    return {
        "node": node,
        "id": text(found, "id"),
        "timestamp_ms": api_objects.count(found, "timestamp") // 1_000_000,
        "attempts": api_objects.count(found, "attempts"),
        "state": state if state in _STATES else "queued",
        "due_ms": due // 1_000_000 if isinstance(due, int) else None,
        "size": size,
        "cut": shown.size < size,
        "kind": shown.kind,
        "body": shown.text,
    }
