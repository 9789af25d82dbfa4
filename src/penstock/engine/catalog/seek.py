"""Places in a topic's log: where a new channel starts, and where a channel is sent (R22, R23).

A time is looked up in the files, on a disk thread.  What that finds is judged on the loop, in the
turn in which it is used: meanwhile messages may have been removed.

A place is whole if no message at or above it was removed; a time, if none appended since then was.
Messages lost to damage are reported as damage and do not count.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import NamedTuple

from penstock.core.ticket import Ticket
from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.disk import report
from penstock.engine.topic import Topic
from penstock.settings.places import AGO, EARLIEST, INDEX, LATEST, QUEUED, TIME, Place

log = logging.getLogger(__name__)


class Start(NamedTuple):
    """A place as an index: of the first message at or after it, or of the log's end."""

    at: int
    whole: bool
    nearest: int  # ``at``, or the first one from which on nothing is missing


class Search(Ticket):
    """The search for a place in the log of ``topic``; settled when it is found."""

    __slots__ = ("_found", "place", "time_ns", "topic")

    def __init__(self, topic: Topic, place: Place) -> None:
        super().__init__()
        self.topic = topic
        self.place = place
        self.time_ns = place.number
        self._found = place.number
        if place.kind not in (AGO, TIME):
            self.settle()
            return
        shared = topic.shared
        if place.kind == AGO:
            self.time_ns = max(0, shared.context.clock.wall_ns() - place.number)
        shared.changes_disk.submit(partial(topic.log.seek, self.time_ns), self._sought)

    def _sought(self, index: int | None, error: Exception | None) -> None:
        if index is None:
            report(f"topic={self.topic.name}", error)
            self.settle(error if error is not None else OSError("not read"))
        else:
            self._found = index
            self.settle()

    def start(self) -> Start:
        """The place as it is now."""
        topic, kind = self.topic, self.place.kind
        if kind in (LATEST, QUEUED):
            index = topic.end if kind == LATEST else topic.released
            return Start(index, True, index)
        safe_from = topic.safe_from
        if kind == EARLIEST:
            index = _existing(topic, safe_from)
            return Start(index, True, index)
        index = _existing(topic, self._found)
        whole = self._found >= safe_from
        if whole and kind != INDEX and safe_from:
            # Nothing that is left from before it: a message after it may have been removed too.
            before = topic.log.count_between(safe_from, index)
            whole = before > 0 or topic.removal.removed_ns < self.time_ns
        return Start(index, whole, _existing(topic, max(safe_from, self._found)))


def _existing(topic: Topic, index: int) -> int:
    return min(topic.log.next_index(index), topic.end)


def search_start(topic: BaseTopic, name: str, place: Place | None) -> Search | None:
    """Find where a new channel starts: at ``place``, or by the topic's policy if that is None.

    None if it starts as in NSQ, or the channel exists.
    """
    if not isinstance(topic, Topic) or name in topic.channels:
        return None
    place = place or topic.policy.channel_start
    return None if place.kind == QUEUED else Search(topic, place)


def open_channel(topic: BaseTopic, name: str, search: Search | None) -> tuple[Channel, Ticket]:
    """The channel ``name``; if it is new, it starts where the search leads.

    Where messages are missing there, it starts at the first one from which on none is.
    """
    if search is None or search.topic is not topic or name in topic.channels:
        return topic.create_channel(name)
    start = search.start()
    if not start.whole:
        log.warning(
            "topic=%s channel=%s: starts at index %d: messages from %s on were removed",
            *(topic.name, name, start.nearest, search.place),
        )
    return topic.create_channel(name, start=start.nearest)
