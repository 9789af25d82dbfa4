"""The broker: all topics; creating and deleting them; starting and stopping.

One thread, the event loop, owns everything here.  engine/topic.py has what a topic does with its
messages; engine/turn.pyx and engine/rounds.py decide when.  The other components of a running
broker are in engine/components.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.core.appender import Appender
from penstock.core.ticket import Ticket, after, settled
from penstock.engine.base import BaseTopic
from penstock.engine.catalog.creation import Creation
from penstock.engine.catalog.deletion import Deletion
from penstock.engine.deferred.queue import FOREVER
from penstock.engine.ephemeral import EphemeralTopic
from penstock.engine.shared import Shared, random_number
from penstock.engine.topic import Topic
from penstock.storage.journal import Journal
from penstock.storage.topic_log import TopicLog
from penstock.wire.names import is_ephemeral

log = logging.getLogger(__name__)


class Broker:
    """Topics by name; ``add_channels`` creates the channels of matching patterns in a new topic."""

    def __init__(
        self,
        shared: Shared,
        topics: dict[str, BaseTopic],
        by_instance: dict[int, BaseTopic],
        add_channels: Callable[[Topic], None],
    ) -> None:
        context = self._context = shared.context
        self._shared = shared
        self._hooks = shared.hooks
        self._supervisor = context.supervisor
        self._deferred = shared.deferred
        self._by_instance = by_instance
        self._add_pattern_channels = add_channels
        self.topics = topics
        self.appenders: dict[bytes, Appender] = {}  # of the topics that clients may publish to
        self.draining = False  # publishes and new topics of clients are refused
        self.start_time = context.clock.wall_ns() // 1_000_000_000
        disk = shared.changes_disk
        self._creation = Creation(context, shared.health, disk, self._drop)
        self._deletion = Deletion(context.data, disk, shared.registry, self._forget)
        shared.hooks.on_deserted = self._forget

    @property
    def exiting(self) -> bool:
        """Shutdown has begun: nothing new is accepted."""
        return self._supervisor.exiting

    # ---- topics

    def create_topic(self, name: str) -> tuple[BaseTopic, Ticket]:
        """The topic ``name``, created if missing; the ticket is settled when it is durable (R6)."""
        topic = self.topics.get(name)
        if topic is not None:
            if topic.created.error is not None and isinstance(topic, Topic):
                topic.created = topic.save()  # the disk may have recovered since
            return topic, topic.created
        base = self._shared.identity.next_base()
        node_id = self._context.options.node_id
        if is_ephemeral(name):
            topic = EphemeralTopic(self._shared, name, node_id, base)
            self._shared.policies.admit_topic(topic)
            self._query_channels(topic)
            self.add_topic(topic)
            return topic, settled()
        instance = random_number()
        folder = self._context.data.topic_folder(name, instance)
        files, segment_size = self._context.files, self._context.options.max_bytes_per_file
        durable = Topic(
            self._shared,
            name,
            TopicLog(files, folder, instance, node_id, [], base, segment_size),
            Journal(files, f"{folder}/journal", 0),
            instance,
        )
        durable.created = Ticket()
        self._shared.policies.admit_topic(durable)
        self._query_channels(durable)
        self.add_topic(durable)
        self._add_pattern_channels(durable)
        self._creation.add(durable)
        return durable, durable.created

    def _query_channels(self, topic: BaseTopic) -> None:
        if self._hooks.query_channels(topic):
            topic.await_channels()

    def add_topic(self, topic: BaseTopic) -> None:
        """Add a topic that is new or was recovered."""
        self.topics[topic.name] = topic
        if not self.draining:
            self.appenders[topic.name.encode()] = topic.appender
        self._by_instance[topic.instance] = topic
        log.info("topic=%s: created", topic.name)
        self._shared.changed(topic.name)
        self._hooks.on_change(topic, True)

    def delete_topic(self, name: str) -> Ticket:
        """Delete a topic and its messages; KeyError if it does not exist."""
        topic = self.topics[name]
        if isinstance(topic, Topic):
            return topic.deletion or self._deletion.start(topic)
        self._forget(topic)
        return settled()

    def _forget(self, topic: BaseTopic) -> None:
        """Free the name of a deleted topic and void its deferred messages."""
        self._drop(topic)
        self._deferred.purge(topic.instance, FOREVER)
        log.info("topic=%s: deleted", topic.name)

    def _drop(self, topic: BaseTopic) -> None:
        del self.topics[topic.name]
        self.appenders.pop(topic.name.encode(), None)  # a stop has cleared them already
        del self._by_instance[topic.instance]
        self._shared.identity.reached(topic.appender.next_index)
        topic.close()
        self._shared.changed(topic.name)
        self._hooks.on_change(topic, False)

    # ---- draining

    def refuse_publishes(self, refused: bool) -> None:
        """Refuse what clients publish; what is being written is stored and answered.

        It costs nothing per message: a topic whose appender is not listed is looked up by
        nsqd/commands.py, which refuses.
        """
        if refused == self.draining:
            return
        self.draining = refused
        if refused:
            self.appenders.clear()
        else:
            topics = self.topics.values()
            self.appenders.update({topic.name.encode(): topic.appender for topic in topics})
        self._hooks.on_draining(refused)

    # ---- start and end

    def start(self) -> None:
        """Start delivery; the broker is recovered."""
        for topic in list(self.topics.values()):
            # The last process ended before it knew the channels of a new topic.
            if topic.awaiting_channels and not self._hooks.query_channels(topic):
                topic.know_channels(())
        self._shared.turn.start()

    def refuse_all(self) -> None:
        """Shutdown has begun: refuse publishes and subscriptions, write what is pending."""
        self._supervisor.exiting = True
        self.appenders.clear()
        self._shared.turn.stop()
        for topic in self.topics.values():
            self._supervisor.guard(topic.name, topic.flush)
            topic.appender.closed = True
        self._supervisor.guard("deferred", self._deferred.writer.flush)

    def save_all(self) -> Ticket:
        """Save all state; the ticket is settled when it is on disk.

        A defect in one topic becomes an error of the ticket; the other topics are still saved.
        """
        tickets = [self._shared.registry.save_all()]
        for topic in self.topics.values():
            if isinstance(topic, Topic):
                tickets.append(self._save_exit(topic))
        # Damage is saved last: closing the deferred queue may report some.
        return after(*tickets, self._deferred.finish(self._shared.damage.save))

    def _save_exit(self, topic: Topic) -> Ticket:
        ticket = Ticket()

        def save(_: Ticket) -> None:
            if topic.closed:  # deleted
                ticket.settle()
                return
            try:
                after(*topic.save_exit()).add(lambda saved: ticket.settle(saved.error))
            except Exception as error:
                self._supervisor.defect(topic.name)
                ticket.settle(error)

        # A deletion may be renaming its folder; if that fails, the topic stays.
        (topic.deletion or settled()).add(save)
        return ticket
