"""A broker as a user imagines it: sets of messages, and what a crash may do to them.

It knows three kinds of uncertainty, all of which a restart settles by looking at what is there:

    doubt      an operation was cut off before its answer: it may have happened or not
    unsafe     a FIN, REQ or timeout of the last moment, which the journal may not have yet
    unsynced   an acknowledged message that only a power cut can take

Everything else must be exactly as the model says (R1, R2, R6, R11, R16, R17).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.engine import MS, Client, Engine, Received

# The journal is written every 200 ms: what is older than this is in it.
JOURNAL_NS = 200 * MS
LOST_WAIT_NS = 1000 * MS
# A stepped wall clock is noticed after this at the latest.
WALL_LOOK_NS = 250 * MS


@dataclass
class Message:
    """One publish.  ``due_ns`` is 0 for a plain one."""

    body: bytes
    topic: NaiveTopic
    number: int
    due_ns: int = 0
    acked: bool = False
    synced: bool = False
    since_ns: int = 0
    index: int | None = None


@dataclass
class Entry:
    """A message that a channel has not finished."""

    client: Client | None = None
    attempts: int = 0
    deadline_ns: int = 0
    delivered_ns: int = 0
    due_ns: int = 0
    # What was last handed to the journal, when, and what is in it for certain.
    marked: tuple[int, int] = (0, 0)
    marked_at_ns: int = 0
    safe: tuple[int, int] = (0, 0)

    @property
    def waiting(self) -> bool:
        return self.client is None and not self.deadline_ns and not self.due_ns

    def mark(self, now_ns: int) -> None:
        self.marked = (self.attempts, self.due_ns)
        self.marked_at_ns = now_ns


@dataclass
class NaiveChannel:
    entries: dict[bytes, Entry] = field(default_factory=dict)
    finished_ns: dict[bytes, int] = field(default_factory=dict)
    finished_safe: set[bytes] = field(default_factory=set)
    paused: bool = False
    emptied_at: int = 0  # deferred publishes with a smaller number are skipped
    defer_stamp: int = 0  # the engine's word for it, to see whether a cut-off emptying happened
    clients: list[Client] = field(default_factory=list)

    def finish(self, body: bytes, now_ns: int) -> None:
        del self.entries[body]
        self.finished_ns[body] = now_ns
        self.finished_safe.discard(body)


@dataclass
class NaiveTopic:
    name: str
    instance: int = 0
    channels: dict[str, NaiveChannel] = field(default_factory=dict)
    # What no channel may have yet, with the channels that will pass it over.
    held: dict[bytes, list[NaiveChannel]] = field(default_factory=dict)
    pending: dict[bytes, Message] = field(default_factory=dict)
    paused: bool = False
    emptied_at: int = 0

    @property
    def frozen(self) -> bool:
        return self.paused or not self.channels

    def skipping(self, message: Message) -> list[NaiveChannel]:
        """The channels that were emptied after ``message`` was deferred (R17)."""
        channels = self.channels.values()
        return [c for c in channels if message.due_ns and message.number < c.emptied_at]

    def arrive(self, message: Message, now_ns: int) -> None:
        """A message is in the log.  Passing it over is journaled like a finish."""
        skipping = self.skipping(message)
        for channel in skipping:
            channel.finished_ns[message.body] = now_ns + WALL_LOOK_NS
        if self.frozen:
            self.held[message.body] = skipping
            return
        for channel in self.channels.values():
            if not any(channel is other for other in skipping):
                channel.entries[message.body] = Entry()

    def release(self) -> None:
        if not self.frozen:
            self.let_go(set(self.held))

    def let_go(self, bodies: set[bytes]) -> None:
        """Give held messages to the channels."""
        for body in bodies:
            skipping = self.held.pop(body)
            for channel in self.channels.values():
                if not any(channel is other for other in skipping):
                    channel.entries[body] = Entry()


class NaiveBroker:
    """The model.  Methods are told of what the engine answered, and judge what it did."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.topics: dict[str, NaiveTopic] = {}
        self.messages: dict[bytes, Message] = {}
        self.bodies: dict[tuple[str, int], bytes] = {}
        self.number = 0
        self.cut_off = False  # an operation is under way that will never be answered

    # Publishing

    def new_message(self, topic: NaiveTopic, due_ns: int = 0) -> Message:
        self.number += 1
        message = Message(b"m%d" % self.number, topic, self.number, due_ns)
        self.messages[message.body] = message
        return message

    def acked(self, message: Message) -> None:
        message.acked = True
        message.synced = self.engine.options.sync_every == 1
        message.since_ns = self.engine.clock.monotonic_ns()
        if message.due_ns:
            message.topic.pending[message.body] = message
        else:
            message.topic.arrive(message, message.since_ns)

    # Time passes

    def look(self) -> None:
        """Catch up with the clock, then judge what the clients received."""
        now_ns = self.engine.clock.monotonic_ns()
        self._fire()
        for topic in self.topics.values():
            for channel in topic.channels.values():
                for client in channel.clients:
                    for received in client.take():
                        self._received(topic, channel, client, received)
                self._expire(channel, now_ns)
        self._journaled(now_ns)

    def _fire(self) -> None:
        wall_ns = self.engine.clock.wall_ns()
        for topic in self.topics.values():
            due = [m for m in topic.pending.values() if m.due_ns <= wall_ns]
            for message in sorted(due, key=lambda m: m.due_ns):
                if message.acked or self._is_logged(message):
                    del topic.pending[message.body]
                    message.acked = True
                    topic.arrive(message, self.engine.clock.monotonic_ns())

    def _is_logged(self, message: Message) -> bool:
        return message.body in self.engine.logged(message.topic.name).values()

    def _expire(self, channel: NaiveChannel, now_ns: int) -> None:
        wall_ns = self.engine.clock.wall_ns()
        for entry in channel.entries.values():
            if entry.deadline_ns and entry.deadline_ns <= now_ns:
                entry.client = None
                entry.deadline_ns = 0
                entry.mark(now_ns)
            if entry.due_ns and entry.due_ns <= wall_ns:
                entry.due_ns = 0

    def _journaled(self, now_ns: int) -> None:
        sync_ns = self.engine.options.sync_timeout_ns
        for message in self.messages.values():
            if message.acked and message.since_ns + sync_ns + SLACK_NS < now_ns:
                message.synced = True
        for topic in self.topics.values():
            for channel in topic.channels.values():
                for entry in channel.entries.values():
                    if entry.marked_at_ns + JOURNAL_NS < now_ns:
                        entry.safe = entry.marked
                for body, at_ns in channel.finished_ns.items():
                    if at_ns + JOURNAL_NS < now_ns:
                        channel.finished_safe.add(body)

    # Deliveries

    def _received(
        self, topic: NaiveTopic, channel: NaiveChannel, client: Client, received: Received
    ) -> None:
        body = received.body
        message = self.messages.get(body)
        assert message is not None and message.topic is topic, f"invented: {received}"
        assert not message.acked or body not in topic.pending, f"early: {received}"
        self._same_index(message, received.index)
        if self.cut_off and (body in topic.held or channel.paused):
            return  # an unpause that had begun
        if not message.acked and body not in channel.entries:
            channel.entries[body] = Entry()  # visible before its answer could be seen
        assert body in channel.entries, f"finished, and delivered again: {received}"
        entry = channel.entries[body]
        if entry.deadline_ns and entry.deadline_ns <= received.now_ns:
            entry.client, entry.deadline_ns = None, 0
        assert entry.client is None and not entry.deadline_ns, f"still in flight: {received}"
        assert entry.due_ns <= received.wall_ns, f"requeued, and early: {received}"
        assert received.attempts == entry.attempts + 1, f"{entry}: {received}"
        assert not channel.paused, f"paused, and delivered: {received}"
        entry.due_ns = 0
        entry.attempts += 1
        entry.client = client
        entry.delivered_ns = received.now_ns
        entry.deadline_ns = received.now_ns + client.consumer.msg_timeout_ns
        now_ns = received.now_ns
        flights = sum(
            e.client is client and e.deadline_ns > now_ns for e in channel.entries.values()
        )
        assert flights <= client.consumer.ready_count, f"{flights} in flight: {received}"

    def _same_index(self, message: Message, index: int) -> None:
        """An index stands for one message for ever, and a message keeps its index (R1, R16)."""
        known = self.bodies.setdefault((message.topic.name, index), message.body)
        assert known == message.body, f"index {index}: {known!r} and {message.body!r}"
        assert message.index in (None, index), f"{message.body!r} came again at {index}"
        message.index = index

    # Answers

    def left(self, channel: NaiveChannel, client: Client) -> None:
        """A consumer has gone: R14."""
        now_ns, wall_ns = self.engine.clock.monotonic_ns(), self.engine.clock.wall_ns()
        channel.clients = [other for other in channel.clients if other is not client]
        for entry in channel.entries.values():
            if entry.client is client:
                entry.client, entry.deadline_ns = None, 0
                if entry.attempts > 1:
                    wait_ns = LOST_WAIT_NS << min(entry.attempts - 2, 20)
                    entry.due_ns = wall_ns + min(wait_ns, client.consumer.msg_timeout_ns)
                entry.mark(now_ns)

    # Comparing

    def check(self) -> None:
        """The engine is at rest: its counts are ours, and nobody waits who need not."""
        broker = self.engine.broker
        assert set(broker.topics) == set(self.topics)
        wall_ns = self.engine.clock.wall_ns()
        for topic in self.topics.values():
            # What is overdue and not there was never accepted.
            topic.pending = {b: m for b, m in topic.pending.items() if m.due_ns > wall_ns}
            real = broker.topics[topic.name]
            assert set(real.channels) == set(topic.channels), topic.name
            assert real.depth == len(topic.held), (topic.name, real.depth, len(topic.held))
            assert self.engine.held(topic.name) == set(topic.held)
            for index, body in self.engine.logged(topic.name).items():
                self._same_index(self.messages[body], index)
            for name, channel in topic.channels.items():
                self._check_channel(topic, channel, real.channels[name])

    def _check_channel(self, topic: NaiveTopic, channel: NaiveChannel, real: Any) -> None:
        what = f"{topic.name}:{real.name}"
        entries = channel.entries.values()
        waiting = sum(entry.waiting for entry in entries)
        assert real.depth == waiting, (what, real.depth, waiting)
        flights = sum(1 for entry in entries if entry.deadline_ns)
        assert real.in_flight_count == flights, (what, real.in_flight_count, flights)
        deferred = sum(1 for entry in entries if entry.due_ns)
        pending = [m for m in topic.pending.values() if m.number >= channel.emptied_at]
        sure = sum(m.acked for m in pending)
        low, high = deferred + sure, deferred + len(pending)
        assert low <= real.deferred_count <= high, (what, real.deferred_count, low, high)
        channel.defer_stamp = real.defer_stamp
        found = self.engine.unfinished(topic.name, real.name)
        assert set(found) == set(channel.entries), (what, set(found) ^ set(channel.entries))
        skipped = {b for b, skips in topic.held.items() if any(c is channel for c in skips)}
        assert self.engine.passed_over(topic.name, real.name) == skipped, (what, skipped)
        assert real.paused == channel.paused
        if waiting and not channel.paused:
            for client in channel.clients:
                assert not client.consumer.room, f"{what}: {waiting} wait, and a client has room"


# The sync round is every sync timeout; a sync that was under way counts for what came before it.
SLACK_NS = 50 * MS
