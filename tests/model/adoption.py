"""What a restart may find, and the model taking it over."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.naive import Entry, Message, NaiveBroker, NaiveChannel, NaiveTopic
from tests.support.engine import Unfinished

ATTEMPTS_MAX = 65535


@dataclass(frozen=True)
class Doubt:
    """An operation that was cut off: its kind, and what it was about."""

    kind: str = ""
    topic: str = ""
    channel: str = ""
    made: NaiveTopic | None = None

    def of(self, kind: str, topic: str, channel: str = "") -> bool:
        return (self.kind, self.topic, self.channel) == (kind, topic, channel)


class Adoption:
    """One restart.  ``power_cut``: what was not synced may be gone."""

    def __init__(self, model: NaiveBroker, doubt: Doubt, *, power_cut: bool, clean: bool) -> None:
        self.model = model
        self.engine = model.engine
        self.doubt = doubt
        self.power_cut = power_cut
        self.clean = clean
        self.released: set[bytes] = set()  # by an emptying of the topic that was done by half
        pending = {body for topic in model.topics.values() for body in topic.pending}
        self.fired = {body for body, m in model.messages.items() if m.due_ns} - pending
        self.unanswered = {body for body, m in model.messages.items() if not m.acked}

    def run(self) -> None:
        model = self.model
        real = self.engine.broker.topics
        for name in {*model.topics, *real}:
            if name not in real:
                assert self.doubt.of("delete_topic", name), f"topic {name} is gone"
                del model.topics[name]
            elif name not in model.topics:
                assert self.doubt.of("create_topic", name), f"topic {name} is back"
                assert self.doubt.made is not None
                self.doubt.made.instance = real[name].instance
                model.topics[name] = self.doubt.made
        for topic in model.topics.values():
            self._exist(topic)
        for topic in model.topics.values():
            self._messages(topic)
        for message in model.messages.values():
            message.synced = message.synced or self.clean
            message.since_ns = self.engine.clock.monotonic_ns()

    def _exist(self, topic: NaiveTopic) -> None:
        real = self.engine.broker.topics[topic.name]
        assert real.instance == topic.instance, f"topic {topic.name} is another one"
        if self.doubt.of("pause_topic", topic.name):
            topic.paused = real.paused
            topic.release()
        assert real.paused == topic.paused, f"topic {topic.name}: paused {real.paused}"
        self._channels(topic)
        topic.release()

    def _messages(self, topic: NaiveTopic) -> None:
        self._pending(topic)
        found = {name: self.engine.unfinished(topic.name, name) for name in topic.channels}
        if self.power_cut:
            self._fired_again(topic)
        self._held(topic)
        for name, channel in topic.channels.items():
            self._channel(topic, name, channel, found[name])

    def _channels(self, topic: NaiveTopic) -> None:
        real = self.engine.broker.topics[topic.name].channels
        for name in {*topic.channels, *real}:
            what = f"channel {topic.name}:{name}"
            if name not in real:
                assert self.doubt.of("delete_channel", topic.name, name), f"{what} is gone"
                del topic.channels[name]
            elif name not in topic.channels:
                assert self.doubt.of("create_channel", topic.name, name), f"{what} is back"
                topic.channels[name] = NaiveChannel()
            channel = topic.channels.get(name)
            if channel is not None:
                channel.clients.clear()
                if self.doubt.of("pause_channel", topic.name, name):
                    channel.paused = real[name].paused
                emptied = self.doubt.of("empty_channel", topic.name, name)
                if emptied and real[name].defer_stamp > channel.defer_stamp:
                    channel.emptied_at = self.model.number + 1
                assert real[name].paused == channel.paused, what

    def _pending(self, topic: NaiveTopic) -> None:
        """Deferred publishes: those that are due have been fired by now."""
        for message in self.model.messages.values():
            if message.topic is topic and message.due_ns and not message.acked:
                topic.pending.setdefault(message.body, message)
        if self.power_cut:
            self._take_back(topic)
            for message in topic.pending.values():
                message.acked = message.acked and message.synced
        if self.doubt.kind in ("empty_topic", "delete_topic") and self.doubt.topic == topic.name:
            for message in topic.pending.values():
                message.acked = False
        self.model._fire()
        real = self.engine.components.deferred.tallies.count(topic.instance)
        sure = sum(message.acked for message in topic.pending.values())
        assert sure <= real <= len(topic.pending), (topic.name, real, sure, len(topic.pending))

    def _take_back(self, topic: NaiveTopic) -> None:
        """Fired, lost with the log's end, and by a clock that was set back not due any more."""
        wall_ns = self.engine.clock.wall_ns()
        logged = set(self.engine.logged(topic.name).values())
        for body, message in self.model.messages.items():
            if message.topic is not topic or message.due_ns <= wall_ns or body in logged:
                continue
            topic.pending.setdefault(body, message)
            if body in self.fired:
                message.acked = False
                message.index = None
                topic.held.pop(body, None)
                for channel in topic.channels.values():
                    channel.entries.pop(body, None)

    def _fired_again(self, topic: NaiveTopic) -> None:
        """What was fired again has another index, and goes by what was emptied meanwhile."""
        for index, body in self.engine.logged(topic.name).items():
            message = self.model.messages[body]
            if not message.due_ns or message.index in (None, index):
                continue
            message.index = None
            for channel in topic.channels.values():
                if message.number < channel.emptied_at:
                    channel.entries.pop(body, None)
                    channel.finished_ns[body] = self.engine.clock.monotonic_ns()
                    if body in topic.held:
                        topic.held[body].append(channel)

    def _held(self, topic: NaiveTopic) -> None:
        found = self.engine.held(topic.name)
        emptied = self.doubt.of("empty_topic", topic.name)
        if self.doubt.of("pause_topic", topic.name):
            # Released and not unpaused: the journal was written, nsqd.dat was not.
            topic.let_go(set(topic.held) - found)
        for body in set(topic.held) - found:
            assert emptied or self._may_be_lost(self.model.messages[body]), f"held {body!r} is lost"
            del topic.held[body]
            self.released.add(body)
        for body in found - set(topic.held):
            message = self.model.messages[body]
            assert message.topic is topic
            assert self._may_come(message), f"held {body!r} is back"
            self._exists(message)
            topic.pending.pop(body, None)
            for channel in topic.channels.values():  # it was theirs, and is fired into a pause now
                channel.entries.pop(body, None)
            topic.held[body] = topic.skipping(message)
        for name, channel in topic.channels.items():
            self._passed_over(topic, name, channel)

    def _passed_over(self, topic: NaiveTopic, name: str, channel: NaiveChannel) -> None:
        """That a channel will pass over what the topic holds is journaled like a finish."""
        real = self.engine.passed_over(topic.name, name)
        for body, skipping in topic.held.items():
            skips = any(other is channel for other in skipping)
            if skips and body not in real:
                unsafe = self.power_cut or body not in channel.finished_safe
                assert unsafe, f"{topic.name}:{name}: {body!r} is back"
                topic.held[body] = [other for other in skipping if other is not channel]
            elif body in real and not skips:
                # An emptying of the topic may be done by half.
                assert self.doubt.of("empty_topic", topic.name), f"{body!r} is passed over"
                skipping.append(channel)

    def _channel(
        self,
        topic: NaiveTopic,
        name: str,
        channel: NaiveChannel,
        found: dict[bytes, Unfinished],
    ) -> None:
        emptied = self.doubt.of("empty_channel", topic.name, name)
        for body in set(channel.entries) - set(found):
            lost = emptied or self._may_be_lost(self.model.messages[body])
            assert lost, f"{topic.name}:{name}: {body!r} is lost"
            channel.finish(body, 0)
        for body in set(found) - set(channel.entries):
            message = self.model.messages.get(body)
            assert message is not None and message.topic is topic, f"invented {body!r}"
            may_come = self._may_come(message) and message.number >= channel.emptied_at
            may_come = may_come or body in self.released
            if body in channel.finished_ns:
                may_come = may_come or self.power_cut or body not in channel.finished_safe
            assert may_come, f"{topic.name}:{name}: {body!r} is back"
            self._exists(message)
            topic.pending.pop(body, None)
            channel.entries[body] = Entry(attempts=ATTEMPTS_MAX)
            channel.finished_ns.pop(body, None)
            channel.finished_safe.discard(body)
        if (
            emptied
            and self.engine.topic(topic.name).channels[name].defer_stamp > channel.defer_stamp
        ):
            channel.emptied_at = self.model.number + 1
        for body, unfinished in found.items():
            self.model._same_index(self.model.messages[body], unfinished.index)
            self._entry(channel, body, unfinished)
        if self.clean:
            channel.finished_safe.update(channel.finished_ns)

    def _entry(self, channel: NaiveChannel, body: bytes, found: Unfinished) -> None:
        entry = channel.entries[body]
        now_ns, wall_ns = self.engine.clock.monotonic_ns(), self.engine.clock.wall_ns()
        low = 0 if self.power_cut else entry.safe[0]
        if self.clean:
            low = entry.attempts if entry.attempts < ATTEMPTS_MAX else 0
        assert low <= found.attempts <= entry.attempts, f"{body!r}: {entry} {found} (R11)"
        journaled = not self.power_cut and entry.safe == entry.marked == (
            entry.attempts,
            entry.due_ns,
        )
        if entry.due_ns > wall_ns and (self.clean or journaled):
            assert found.due_ns == entry.due_ns, f"{body!r}: {entry} {found}"
        channel.entries[body] = Entry(
            attempts=found.attempts,
            due_ns=found.due_ns,
            marked=(found.attempts, found.due_ns),
            marked_at_ns=now_ns,
            safe=(0, 0) if self.power_cut else (found.attempts, found.due_ns),
        )

    def _may_be_lost(self, message: Message) -> bool:
        if self.doubt.of("delete_topic", message.topic.name):
            return True
        if not self.power_cut:
            return not message.acked
        # To be fired again, and void since its topic was emptied.
        emptied = self.doubt.of("empty_topic", message.topic.name)
        void = message.due_ns and (emptied or message.number < message.topic.emptied_at)
        return bool(void) or not message.acked or not message.synced

    def _may_come(self, message: Message) -> bool:
        """Unanswered, or a deferred publish that is fired again because its log was lost."""
        if message.body in self.unanswered:
            return True
        fired_again = self.power_cut and message.due_ns
        return bool(fired_again) and message.number >= message.topic.emptied_at

    def _exists(self, message: Message) -> None:
        message.acked = True
        message.since_ns = self.engine.clock.monotonic_ns()
