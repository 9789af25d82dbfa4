"""The whole engine against a naive broker, through kills, power cuts and clean restarts.

Clients, disk and clocks are the test's (tests/support/engine.py); what the disk is asked to do
is done in any order.  Every operation may be the last one before the end: the machine then stops at
some step of it, and the restart must find a state that the model allows.

At least once, no invention, nothing early, no index twice, counts that are right: R1, R2, R6, R11,
R14, R16, R17; A-3, A-4, S2-1, S2-2, S4-3, S4-4, S4-5, S4-6, S4-7, D-1, D-2, D-8, D-10, D-11, D-12,
D-13, D-17.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.core.ticket import Ticket
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, Crashed
from tests.model.adoption import Adoption, Doubt
from tests.model.naive import NaiveBroker, NaiveChannel, NaiveTopic
from tests.support.engine import HOUR, MINUTE, MS, SECOND, Client, Engine

TOPICS = st.sampled_from(["t", "t", "u"])
CHANNELS = st.sampled_from(["a", "a", "b"])
# How an operation ends: well, or by a crash after some steps of the disk.
MODES = st.sampled_from([KEEP, KEEP, LOSE, PREFIX, HOLES])
FATES = st.one_of(
    st.none(),
    st.none(),
    st.none(),
    st.none(),
    st.tuples(st.integers(0, 12), MODES, st.integers(1, 99)),
)
Fate = tuple[int, str, int] | None


Operation = Callable[["BrokerMachine", str, str, Fate], None]
OPERATIONS: dict[str, Operation] = {
    "create topic": lambda machine, topic, _, fate: machine._create_topic(topic, fate),
    "create channel": lambda machine, *which: machine._create_channel(*which),
    "create channel too": lambda machine, *which: machine._create_channel(*which),
    "delete channel": lambda machine, *which: machine._delete_channel(*which),
    "delete topic": lambda machine, topic, _, fate: machine._delete_topic(topic, fate),
    "pause topic": lambda machine, topic, _, fate: machine._pause_topic(topic, True, fate),
    "unpause topic": lambda machine, topic, _, fate: machine._pause_topic(topic, False, fate),
    "pause channel": lambda machine, t, c, fate: machine._pause_channel(t, c, True, fate),
    "unpause channel": lambda machine, t, c, fate: machine._pause_channel(t, c, False, fate),
    "empty topic": lambda machine, topic, _, fate: machine._empty_topic(topic, fate),
    "empty channel": lambda machine, *which: machine._empty_channel(*which),
}


class BrokerMachine(RuleBasedStateMachine):
    """Rules are what users, consumers, disks and clocks do."""

    engine: Engine
    model: NaiveBroker
    sound = False

    @initialize(
        seed=st.integers(0, 1000),
        sync_every=st.sampled_from([1, 2, 2500]),
        file_size=st.sampled_from([300, 2000, 1 << 20]),
    )
    def begin(self, seed: int, sync_every: int, file_size: int) -> None:
        self.engine = Engine(
            seed=seed,
            sync_every=sync_every,
            sync_timeout_ns=400 * MS,
            max_bytes_per_file=file_size,
        )
        self.model = NaiveBroker(self.engine)
        self.clients: list[Client] = []
        self._create_topic("t", None)
        self._create_channel("t", "a", None)

    # How things end

    def do(
        self,
        fate: Fate,
        doubt: Doubt,
        start: Callable[[], Ticket | None],
        ended: Callable[[], None],
    ) -> None:
        """Run an operation to its answer and tell the model, or crash on the way."""
        self.sound = False
        if fate is not None:
            self.engine.files.crash_at = self.engine.files.step_count + fate[0]
        try:
            ticket = start()
            self.engine.settle()
            self.engine.files.crash_at = -1
            assert ticket is None or (ticket.done and ticket.error is None), ticket
        except Crashed:
            assert fate is not None
            self.model.cut_off = True
            self.model.look()
            self.model.cut_off = False
            self.end(fate[1], fate[2], doubt)
            return
        ended()
        self.rest()
        if fate is not None:
            self.end(fate[1], fate[2], Doubt())

    def rest(self) -> None:
        self.sound = False
        self.model.look()
        self.engine.check()
        self.model.check()
        self.sound = True

    def end(self, mode: str, seed: int, doubt: Doubt) -> None:
        """The process or the machine stops, and starts again."""
        left = self._all_leave()
        self.engine.crash(mode, seed)
        self.engine.start()
        Adoption(self.model, doubt, power_cut=mode != KEEP, clean=False).run()
        self.rest()
        self._come_back(left)

    def _come_back(self, clients: list[Client]) -> None:
        for client in clients:
            timeout_ns = client.consumer.msg_timeout_ns
            self._subscribe(*client.name, client.consumer.ready_count, timeout_ns)

    def _all_leave(self) -> list[Client]:
        left, self.clients = self.clients, []
        for topic in self.model.topics.values():
            for channel in topic.channels.values():
                channel.clients.clear()
                for entry in channel.entries.values():
                    entry.client, entry.deadline_ns = None, 0
        return left

    @rule(mode=st.one_of(MODES, st.just("clean")), seed=st.integers(1, 99))
    def restart(self, mode: str, seed: int) -> None:
        if mode != "clean":
            self.end(mode, seed, Doubt())
            return
        self.engine.exit()
        left = self._all_leave()
        self.engine.start()
        Adoption(self.model, Doubt(), power_cut=False, clean=True).run()
        self.rest()
        self._come_back(left)

    # Topics and channels

    @rule(what=st.sampled_from(sorted(OPERATIONS)), topic=TOPICS, channel=CHANNELS, fate=FATES)
    def operate(self, what: str, topic: str, channel: str, fate: Fate) -> None:
        OPERATIONS[what](self, topic, channel, fate)

    def _topic(self, name: str) -> NaiveTopic | None:
        return self.model.topics.get(name)

    def _channel(self, topic: str, name: str) -> NaiveChannel | None:
        found = self.model.topics.get(topic)
        return found.channels.get(name) if found is not None else None

    def _made(self, topic: NaiveTopic) -> None:
        topic.instance = self.engine.broker.topics[topic.name].instance
        self.model.topics[topic.name] = topic

    def _create_topic(self, name: str, fate: Fate) -> None:
        if self._topic(name) is None:
            topic = NaiveTopic(name)
            self.do(
                fate,
                Doubt("create_topic", name, made=topic),
                lambda: self.engine.broker.create_topic(name)[1],
                lambda: self._made(topic),
            )

    def _create_channel(self, topic: str, name: str, fate: Fate) -> None:
        found = self._topic(topic)
        if found is None or name in found.channels:
            return

        def created() -> None:
            found.channels[name] = NaiveChannel()
            found.release()

        self.do(
            fate,
            Doubt("create_channel", topic, name),
            lambda: self.engine.broker.topics[topic].create_channel(name)[1],
            created,
        )

    def _delete_channel(self, topic: str, name: str, fate: Fate) -> None:
        found = self._topic(topic)
        if found is None or name not in found.channels:
            return
        self._forget_clients(topic, name)
        self.do(
            fate,
            Doubt("delete_channel", topic, name),
            lambda: self.engine.broker.topics[topic].delete_channel(name),
            lambda: found.channels.__delitem__(name),
        )

    def _delete_topic(self, topic: str, fate: Fate) -> None:
        if self._topic(topic) is None:
            return
        for name in self.model.topics[topic].channels:
            self._forget_clients(topic, name)
        self.do(
            fate,
            Doubt("delete_topic", topic),
            lambda: self.engine.broker.delete_topic(topic),
            lambda: self.model.topics.__delitem__(topic),
        )

    def _forget_clients(self, topic: str, channel: str) -> None:
        self.clients = [c for c in self.clients if c.name != (topic, channel)]
        self.model.topics[topic].channels[channel].clients.clear()

    def _pause_topic(self, topic: str, paused: bool, fate: Fate) -> None:
        found = self._topic(topic)
        if found is None:
            return

        def done() -> None:
            found.paused = paused
            found.release()

        self.do(
            fate,
            Doubt("pause_topic", topic),
            lambda: self.engine.broker.topics[topic].pause(paused),
            done,
        )

    def _pause_channel(self, topic: str, name: str, paused: bool, fate: Fate) -> None:
        channel = self._channel(topic, name)
        if channel is None:
            return

        def done() -> None:
            channel.paused = paused

        self.do(
            fate,
            Doubt("pause_channel", topic, name),
            lambda: self.engine.broker.topics[topic].channels[name].pause(paused),
            done,
        )

    def _empty_topic(self, topic: str, fate: Fate) -> None:
        found = self._topic(topic)
        if found is None:
            return

        def done() -> None:
            found.held.clear()
            found.pending.clear()
            found.emptied_at = self.model.number + 1

        self.do(
            fate,
            Doubt("empty_topic", topic),
            lambda: self.engine.broker.topics[topic].empty(),
            done,
        )

    def _empty_channel(self, topic: str, name: str, fate: Fate) -> None:
        channel = self._channel(topic, name)
        if channel is None:
            return

        def done() -> None:
            channel.entries.clear()
            channel.finished_ns.clear()
            channel.emptied_at = self.model.number + 1

        self.do(
            fate,
            Doubt("empty_channel", topic, name),
            lambda: self.engine.broker.topics[topic].channels[name].empty(),
            done,
        )

    # Publishing

    @rule(name=TOPICS, count=st.integers(1, 4), fate=FATES)
    def publish(self, name: str, count: int, fate: Fate) -> None:
        self._publish(name, count, 0, fate)

    @rule(
        name=TOPICS,
        count=st.integers(1, 3),
        delay_ns=st.sampled_from(
            [MS, 150 * MS, 900 * MS, 3 * SECOND, 59 * SECOND, 61 * SECOND, 2 * HOUR]
        ),
        fate=FATES,
    )
    def defer(self, name: str, count: int, delay_ns: int, fate: Fate) -> None:
        self._publish(name, count, delay_ns, fate)

    def _publish(self, name: str, count: int, delay_ns: int, fate: Fate) -> None:
        topic = self._topic(name)
        fresh = NaiveTopic(name) if topic is None else None
        doubt = Doubt("publish", name) if fresh is None else Doubt("create_topic", name, made=fresh)
        due_ns = self.engine.clock.wall_ns() + delay_ns if delay_ns else 0
        messages = [self.model.new_message(topic or fresh, due_ns) for _ in range(count)]

        def start() -> Ticket:
            real = self.engine.broker.create_topic(name)[0]
            if not delay_ns:
                return real.publish([message.body for message in messages])
            tickets = [real.defer(m.body, delay_ns) for m in messages]
            return tickets[-1]

        def done() -> None:
            if fresh is not None:
                self._made(fresh)
            for message in messages:
                self.model.acked(message)

        self.do(fate, doubt, start, done)

    # Consumers

    @rule(
        topic=TOPICS,
        name=CHANNELS,
        ready_count=st.integers(0, 4),
        timeout_ns=st.sampled_from([SECOND, 5 * SECOND, MINUTE]),
    )
    def subscribe(self, topic: str, name: str, ready_count: int, timeout_ns: int) -> None:
        self._subscribe(topic, name, ready_count, timeout_ns)

    def _subscribe(self, topic: str, name: str, ready_count: int, timeout_ns: int) -> None:
        channel = self._channel(topic, name)
        if channel is not None and len(channel.clients) < 3:
            client = Client(self.engine, topic, name, ready_count, timeout_ns)
            self.clients.append(client)
            channel.clients.append(client)
            self.engine.settle()
            self.rest()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), ready_count=st.integers(0, 6))
    def ready(self, data: st.DataObject, ready_count: int) -> None:
        data.draw(st.sampled_from(self.clients)).ready(ready_count)
        self.engine.settle()
        self.rest()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        channel = self._channel(*client.name)
        assert channel is not None
        self.model.left(channel, client)
        client.close()
        self.engine.settle()
        self.rest()

    def _flights(self) -> list[tuple[Client, NaiveChannel, bytes]]:
        return [
            (entry.client, channel, body)
            for topic in self.model.topics.values()
            for channel in topic.channels.values()
            for body, entry in channel.entries.items()
            if entry.client is not None
        ]

    @precondition(lambda self: self._flights())
    @rule(data=st.data())
    def finish_one(self, data: st.DataObject) -> None:
        self.finish(data, 1)

    @precondition(lambda self: self._flights())
    @rule(data=st.data(), count=st.integers(2, 8))
    def finish(self, data: st.DataObject, count: int) -> None:
        flights = self._flights()
        for _ in range(min(count, len(flights))):
            client, channel, body = flights.pop(data.draw(st.integers(0, len(flights) - 1)))
            index = self.model.messages[body].index
            assert index is not None
            assert client.finish(index) == 0, body
            assert client.finish(index) == 1, "finished twice"
            channel.finish(body, self.engine.clock.monotonic_ns())
        self.engine.settle()
        self.rest()

    @precondition(lambda self: self._flights())
    @rule(data=st.data(), delay_ns=st.sampled_from([0, 0, 100 * MS, 2 * SECOND, HOUR]))
    def requeue(self, data: st.DataObject, delay_ns: int) -> None:
        client, channel, body = data.draw(st.sampled_from(self._flights()))
        index = self.model.messages[body].index
        assert index is not None
        assert client.requeue(index, delay_ns) == 0
        entry = channel.entries[body]
        entry.client, entry.deadline_ns = None, 0
        entry.due_ns = self.engine.clock.wall_ns() + delay_ns if delay_ns else 0
        entry.mark(self.engine.clock.monotonic_ns())
        self.engine.settle()
        self.rest()

    @precondition(lambda self: self._flights())
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        client, channel, body = data.draw(st.sampled_from(self._flights()))
        index = self.model.messages[body].index
        assert index is not None
        assert client.touch(index) == 0
        entry = channel.entries[body]
        limit_ns = entry.delivered_ns + self.engine.options.max_msg_timeout_ns
        now_ns = self.engine.clock.monotonic_ns()
        entry.deadline_ns = min(now_ns + client.consumer.msg_timeout_ns, limit_ns)
        self.engine.settle()
        self.rest()

    # Time

    @rule(duration_ns=st.sampled_from([MS, 50 * MS, 250 * MS, 700 * MS, 1500 * MS, 6 * SECOND]))
    def advance(self, duration_ns: int) -> None:
        self.engine.advance(duration_ns, self.model.look)
        self.rest()

    @rule(
        sleep_ns=st.sampled_from([0, 0, MINUTE, HOUR + MINUTE]),
        step_ns=st.sampled_from([0, 0, -HOUR, -5 * SECOND, 5 * SECOND, HOUR]),
    )
    def jump(self, sleep_ns: int, step_ns: int) -> None:
        """The machine sleeps, and what fell due meanwhile comes at once; the clock is set (R4)."""
        self.engine.sleep(sleep_ns)
        self.model.look()
        self.engine.clock.step_wall(step_ns)
        self.engine.advance(300 * MS, self.model.look)
        self.rest()

    def teardown(self) -> None:
        """Everything that is left is delivered, once each, and finished."""
        if not self.sound:
            return  # a rule has failed: its error says more
        for client in self.clients:
            channel = self._channel(*client.name)
            assert channel is not None
            self.model.left(channel, client)
            client.close()
        self.engine.settle()
        for topic in self.model.topics.values():
            if topic.paused:
                assert self.engine.done(self.engine.broker.topics[topic.name].pause(False)) is None
                topic.paused = False
                topic.release()
            for name, channel in topic.channels.items():
                real = self.engine.broker.topics[topic.name].channels[name]
                assert self.engine.done(real.pause(False)) is None
                channel.paused = False
                channel.clients.append(Client(self.engine, topic.name, name, 2500))
        pending = [m.due_ns for topic in self.model.topics.values() for m in topic.pending.values()]
        deferred = [
            entry.due_ns
            for topic in self.model.topics.values()
            for channel in topic.channels.values()
            for entry in channel.entries.values()
        ]
        last_ns = max([0, *pending, *deferred])
        self.engine.sleep(max(MS, last_ns - self.engine.clock.wall_ns()))
        self.engine.advance(SECOND, self.model.look)
        self.rest()
        for topic in self.model.topics.values():
            assert not topic.pending
            for channel in topic.channels.values():
                assert all(entry.client for entry in channel.entries.values())


BrokerTest = BrokerMachine.TestCase
BrokerTest.settings = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
