"""Queries on a topic's log that only tests need."""

from __future__ import annotations

from penstock.storage.topic_log import TopicLog


def gaps(log: TopicLog) -> list[tuple[int, int]]:
    """The ranges without messages between the first message and the end."""
    found = []
    at = log.first
    for start, end in [*log.existing(at, log.end), (log.end, log.end)]:
        if start > at:
            found.append((at, start))
        at = end
    return found
