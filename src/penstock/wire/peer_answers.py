"""Parses the HTTP answers of nsqlookupd and nsqd: nodes, names, and the topics of /stats.

Everything here takes decoded JSON.  A ValueError says what is wrong with an answer; the caller adds
which daemon sent it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from penstock.wire.address import join_address

ACCEPT = {"Accept": "application/vnd.nsq; version=1.0"}

Object = dict[str, Any]


def decode(body: bytes) -> Any:
    """The JSON of a body; before version 1 of NSQ answers were under ``data``."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError(f"an invalid answer: {body[:80]!r}") from None
    wrapped = isinstance(answer, dict) and "status_code" in answer and "data" in answer
    return answer["data"] if wrapped else answer


def objects(value: Any) -> list[Object]:
    """A list of objects, which may be null."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("not a list of objects")
    return value


def members(answer: Any, name: str) -> list[Object]:
    """The objects under ``name``, which is required."""
    if not isinstance(answer, dict) or name not in answer:
        raise ValueError(f"an answer without {name}")
    return objects(answer[name])


def text(holder: Mapping[str, Any], name: str) -> str:
    value = holder.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


# nsqlookupd


def names_in(answer: Any, name: str) -> list[str]:
    """The topics of /topics or the channels of /channels."""
    names = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(names, list) or not all(type(item) is str for item in names):
        raise ValueError(f"an answer without a list of {name}")
    return names


def addresses_in(answer: Any, port: str) -> list[str]:
    """The nodes of /lookup or /nodes: their ``tcp_port`` or ``http_port``."""
    try:
        return [
            join_address(text(node, "broadcast_address"), int(node[port]))
            for node in members(answer, "producers")
        ]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"an invalid answer: {answer!r:.80}") from None


# nsqd


def stats_query(topic: str = "", channel: str = "", **more: str) -> dict[str, str]:
    """The parameters of GET /stats, without clients unless ``more`` says otherwise."""
    query = {"format": "json", "topic": topic, "channel": channel, "include_clients": "false"}
    return {name: value for name, value in {**query, **more}.items() if value}


def topics_in(stats: Any) -> list[tuple[str, Object]]:
    """The topics of /stats, by name."""
    return [(text(topic, "topic_name"), topic) for topic in members(stats, "topics")]


def channels_in(
    stats: Any, topics: Collection[str] | None = None, channel: str = ""
) -> Iterator[tuple[str, str, Object]]:
    """(topic, name, channel) of /stats: all of them, or those of ``topics`` named ``channel``."""
    for topic, found in topics_in(stats):
        if topics is not None and topic not in topics:
            continue
        for each in objects(found.get("channels")):
            name = text(each, "channel_name")
            if not channel or name == channel:
                yield topic, name, each
