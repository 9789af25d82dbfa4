"""Settles at start what a crash has interrupted: moved messages are finished at their sources.

The logs say which messages were moved to them, from the index on that their journals state.  Those
of them that are not finished at their source are finished now, and that is journaled; until then
the logs keep the origins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import chain

from penstock.core.ticket import Ticket, after
from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.context import Context
from penstock.engine.topic import Topic
from penstock.storage.journal import ChannelState, finish_moved, replay
from penstock.storage.moved import Arrivals, route_of

log = logging.getLogger(__name__)

Restore = Callable[[Topic, ChannelState], Channel]


class RecoveredMoves:
    """What was found to have been moved to topics; all methods but the tickets' are blocking."""

    def __init__(self, context: Context, topics: Mapping[str, BaseTopic], restore: Restore) -> None:
        """``restore`` makes a channel from its state in the journal."""
        self._context = context
        self._topics = topics
        self._restore = restore
        self._found: list[tuple[Topic, Arrivals]] = []
        self._sources: list[Topic] = []
        self.tried = Ticket()

    def add(self, topic: Topic, moved: Arrivals) -> None:
        """A topic's log was read."""
        if moved.first:
            self._found.append((topic, moved))
            topic.open_move(self, moved.first)

    def settle(self) -> None:
        """All topics are there: finish the messages at their sources."""
        if not self._found:
            return
        synced = False
        for topic in self._topics.values():
            moved = self._moved_from(topic) if isinstance(topic, Topic) else {}
            if moved and not synced:
                # Before a source says that they are finished.
                self._sync_logs()
                synced = True
            if moved:
                assert isinstance(topic, Topic)
                self._finish(topic, moved)
        self._journal()

    def _moved_from(self, topic: Topic) -> dict[Channel, list[int]]:
        """Unfinished messages of a topic's channels that were moved."""
        found: dict[Channel, list[int]] = {}
        for channel in topic.channels.values():
            route = route_of(topic.instance, channel.id)
            moved = [m.by_route[route] for _, m in self._found if route in m.by_route]
            indexes = [i for i in set(chain(*moved)) if channel.holds(i)] if moved else []
            if indexes:
                found[channel] = sorted(indexes)
        return found

    def _sync_logs(self) -> None:
        for topic, _ in self._found:
            topic.log.synced(topic.log.sync())

    def _finish(self, topic: Topic, moved: Mapping[Channel, list[int]]) -> None:
        state = replay(self._context.files.read(topic.keeper.path))
        for old, indexes in moved.items():
            channel_state = state.channels.get(old.name)
            if channel_state is None or channel_state.id != old.id:
                continue  # the journal was damaged, and the channel is made again
            record = finish_moved(channel_state, indexes)
            old.close()
            channel = self._restore(topic, channel_state)
            topic.add_recovered(channel)
            topic.shared.policies.admit_channel(channel)
            topic.keeper.add(record)
            log.info(
                "topic=%s channel=%s: finished %d messages that were moved before the restart",
                topic.name,
                old.name,
                len(indexes),
            )
        self._sources.append(topic)

    def _journal(self) -> None:
        after(*[topic.sync_progress() for topic in self._sources]).add(self._journaled)

    def _journaled(self, journaled: Ticket) -> None:
        if not self.tried.done:
            self.tried.settle()
        if journaled.error is not None:
            self._context.retry(self._journal)
            return
        for topic, _ in self._found:
            topic.end_move(self)
