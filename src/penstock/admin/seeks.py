"""What a seek of a channel would do, node by node (nsqd's dry run).

{"node", "from", "to", "messages", "in_flight", "deferred", "buried", "whole"}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.admin.upstream import Upstream, UpstreamError, request_all
from penstock.net.http_message import HttpError
from penstock.settings.places import INDEX, NOUN, QUEUED, parse_place

_NUMBERS = ("from", "to", "messages", "in_flight", "deferred", "buried")


def checked_place(text: str, node: str, *, start: bool = False) -> str:
    """A place as typed; ``start``: of a new channel, where nothing is a place too.

    ``node``: the only one it is for; empty: all that have the topic.
    """
    text = text.strip()
    if start and text in ("", QUEUED):
        return text
    try:
        place = parse_place(text)
    except ValueError:
        raise HttpError(400, "INVALID_PLACE", detail=f"the place must be {NOUN}") from None
    if place.kind == QUEUED:
        raise HttpError(400, "INVALID_PLACE", detail=f"the place must be {NOUN}")
    if place.kind == INDEX and not node:
        raise HttpError(400, "INVALID_PLACE", detail="an index belongs to one node: choose it")
    return text


async def plan(
    upstream: Upstream, addresses: Iterable[str], query: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, UpstreamError]]:
    """The answers of all nodes to a dry run, and the failures by address."""

    async def ask(address: str) -> dict[str, Any]:
        answer = await upstream.nsqd_ask(address, "/channel/seek", {**query, "dry_run": "true"})
        return _row(address, answer)

    answers, failures = await request_all(addresses, ask)
    return list(answers.values()), failures


def _row(address: str, answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict) or not all(type(answer.get(key)) is int for key in _NUMBERS):
        raise UpstreamError("the response is not that of a seek")
    return {"node": address, **{key: answer[key] for key in _NUMBERS}} | {
        "whole": answer.get("whole") is True
    }
