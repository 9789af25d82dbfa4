"""What tests ask of a topic's log, and nobody else does."""

from __future__ import annotations

from penstock.storage.topic_log import TopicLog


def gaps(log: TopicLog) -> list[tuple[int, int]]:
    """The ranges between the first message and the end that hold nothing."""
    found = []
    at = log.first
    for start, end in [*log.existing(at, log.end), (log.end, log.end)]:
        if start > at:
            found.append((at, start))
        at = end
    return found
