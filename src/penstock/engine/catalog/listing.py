"""What nsqd.dat may list of a topic: only what its journal already has.

nsqd.dat and the journal are compared at start; a channel that is only in nsqd.dat was lost from the
journal.  So that this is never the result of kill -9:

Rule 1: a new topic or channel is listed after its record is in the journal's file.
Rule 2: a deleted channel stays in the journal, as gone, until nsqd.dat no longer lists it.
Rule 3: a pause is listed after its record is synced: the record has the index where the topic
        stopped, and a power cut must not leave the pause without it.
Rule 4: a new channel that starts after the log's first message is listed after its record is
        synced.  A channel that is only in nsqd.dat starts at the first message, which may have been
        emptied.
"""

from __future__ import annotations

from penstock.core.ticket import Ticket
from penstock.engine.base import BaseTopic
from penstock.engine.catalog.registry import Registry
from penstock.engine.channel import Channel


class Listing:
    """The order of a topic's journal and nsqd.dat."""

    def __init__(self, topic: BaseTopic, registry: Registry) -> None:
        self._topic = topic
        self._registry = registry
        self.journaled = False  # the topic's own record is written
        self.paused = False  # as listed in nsqd.dat
        self._fresh: set[Channel] = set()  # not in the journal's file yet
        self._unsaved: list[Channel] = []  # those not included in a save yet
        self._gone: dict[int, bytes] = {}  # by id; nsqd.dat may still list them

    def holds(self, channel: Channel) -> bool:
        """Whether nsqd.dat may list ``channel``."""
        return channel not in self._fresh

    def made(self, channel: Channel) -> None:
        self._fresh.add(channel)
        self._unsaved.append(channel)

    def needs_sync(self, first: int) -> bool:
        """Whether nsqd.dat has to wait for the journal's sync (Rules 3 and 4)."""
        late = any(channel.window.low > first for channel in self._unsaved)
        return late or self._topic.paused

    def gone(self, id: int, record: bytes) -> None:
        """A channel was deleted; ``record`` journals both its creation and its deletion."""
        self._gone[id] = record

    def gone_records(self) -> list[bytes]:
        """Records that a snapshot of the journal must include."""
        return list(self._gone.values())

    def save(self, journaled: Ticket) -> Ticket:
        """Write nsqd.dat after ``journaled``, the ticket of the journal's write.

        If ``needs_sync``, it must be the ticket of the sync.
        """
        ticket = Ticket()
        paused = self._topic.paused
        saved, self._unsaved = self._unsaved, []
        gone = list(self._gone)

        def list_all(written: Ticket) -> None:
            if written.error is not None:
                self._unsaved += saved
                ticket.settle(written.error)
                return
            topic = self._topic
            self.journaled = True
            if paused == topic.paused:
                self.paused = paused
            for channel in saved:
                self._fresh.discard(channel)
                self._registry.note_channel(topic, channel.name)
            self._registry.save(topic).add(listed)

        def listed(written: Ticket) -> None:
            if written.error is None:
                for id in gone:
                    self._gone.pop(id, None)
            ticket.settle(written.error)

        journaled.add(list_all)
        return ticket
