"""Moves between topics against a naive model: every message is in one place (R24, R25).

Two topics with consumers that fail, bury, finish; moves by policy and by hand, also back and forth;
kicks, discards, deleted topics, failing disks; kills and power cuts at any step.
"""

from __future__ import annotations

import dataclasses
import errno
from collections import Counter
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.core.ticket import Ticket
from penstock.engine.channel import Channel
from penstock.engine.moves.sweep import Act, Chosen, Sweep
from penstock.settings.policy import DEFAULT, MOVE
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, Crashed
from tests.support.engine import MINUTE, SECOND, Client, Engine

POLICIES = {
    "t": dataclasses.replace(DEFAULT, max_attempts=1, on_max_attempts=MOVE, dead_topic="dead"),
    "u": dataclasses.replace(DEFAULT, max_attempts=2, max_buried=3, dead_topic="dead"),
}
CONSUMED = st.sampled_from(["t", "u"])
TARGETS = st.sampled_from(["t", "u", "dead", "other"])
COUNTS = st.sampled_from([None, 1, 2])
MODES = st.sampled_from([KEEP, KEEP, LOSE, PREFIX, HOLES])
FATES = st.one_of(
    st.none(),
    st.none(),
    st.none(),
    st.tuples(st.integers(0, 14), MODES, st.integers(1, 99)),
)
Fate = tuple[int, str, int] | None


class MovesMachine(RuleBasedStateMachine):
    """The model: bodies that must be in one place, and those that may be in none."""

    engine: Engine

    @initialize(seed=st.integers(0, 1000), file_size=st.sampled_from([400, 1 << 20]))
    def begin(self, seed: int, file_size: int) -> None:
        self.engine = Engine(seed=seed, sync_every=1, max_bytes_per_file=file_size)
        self.number = 0
        self.kept: set[bytes] = set()  # in exactly one place
        self.doubtful: set[bytes] = set()  # in one place at most
        self.clients: dict[str, Client] = {}
        for topic in POLICIES:
            assert self.engine.done(self.engine.broker.create_topic(topic)[1]) is None
        self.join()

    def join(self) -> None:
        for topic, policy in POLICIES.items():
            client = self.clients[topic] = Client(self.engine, topic, "c", ready_count=50)
            client.channel.apply_policy(policy)
        self.engine.settle()

    def channel(self, topic: str) -> Channel:
        return self.clients[topic].channel

    def run(self, fate: Fate, act: Callable[[], object]) -> None:
        """Act, and let all come to rest; or crash on the way."""
        engine = self.engine
        if fate is not None:
            engine.files.crash_at = engine.files.step_count + fate[0]
        try:
            act()
            engine.settle()
            engine.files.crash_at = -1
            if fate is None:
                return
        except Crashed:
            assert fate is not None
        for client in self.clients.values():
            client.closed = True
        engine.crash(fate[1], fate[2])
        engine.start()
        self.join()

    def answer(self, body: bytes, ticket: Ticket) -> None:
        if ticket.error is None:
            self.doubtful.discard(body)
            self.kept.add(body)

    @rule(topic=CONSUMED, count=st.integers(1, 3), fate=FATES)
    def publish(self, topic: str, count: int, fate: Fate) -> None:
        def act() -> None:
            for _ in range(count):
                self.number += 1
                body = b"%d" % self.number
                self.doubtful.add(body)
                ticket = self.engine.topic(topic).publish([body])
                ticket.add(lambda done, body=body: self.answer(body, done))

        self.run(fate, act)

    @rule(topic=CONSUMED, how=st.lists(st.sampled_from("frb."), min_size=1), fate=FATES)
    def consume(self, topic: str, how: list[str], fate: Fate) -> None:
        """Finish, requeue, bury, or keep what is in flight."""

        def act() -> None:
            client = self.clients[topic]
            messages = client.take()
            for place, message in enumerate(messages):
                what = how[place % len(how)]
                if what == "f" and client.finish(message.index) == 0:
                    self.kept.discard(message.body)
                    self.doubtful.add(message.body)  # a crash may bring it back
                elif what == "r":
                    client.requeue(message.index)
                elif what == "b":
                    client.bury(message.index)
                else:
                    client.inbox.append(message)

        self.run(fate, act)

    @rule(topic=CONSUMED, to=TARGETS, count=COUNTS, fate=FATES)
    def move(self, topic: str, to: str, count: int | None, fate: Fate) -> None:
        if to != topic:
            chosen = Chosen() if count is None else Chosen(None, count)
            moves = self.engine.components.moves
            self.run(fate, lambda: moves.move(self.channel(topic), to, chosen))

    @rule(topic=CONSUMED, act=st.sampled_from(Act), count=COUNTS, fate=FATES)
    def sweep(self, topic: str, act: Act, count: int | None, fate: Fate) -> None:
        buried = self.buried(topic)
        if act is Act.DISCARD:
            self.kept -= buried
            self.doubtful |= buried
        sweep = Sweep(self.channel(topic), act, Chosen() if count is None else Chosen(None, count))
        self.run(fate, sweep.start)
        if act is Act.DISCARD and fate is None and sweep.ticket.error is None:
            left = self.buried(topic)
            self.doubtful -= buried
            self.kept |= buried & left
            gone = buried - left
            assert not gone & self.places().keys(), "discarded for good"

    @rule(topic=st.sampled_from(["dead", "other"]), fate=FATES)
    def delete(self, topic: str, fate: Fate) -> None:
        if topic in self.engine.broker.topics:
            gone = set(self.engine.logged(topic).values())
            self.kept -= gone
            self.doubtful |= gone
            self.run(fate, lambda: self.engine.broker.delete_topic(topic))
            if fate is None:
                assert not gone & self.places().keys(), "went with their topic"
                self.doubtful -= gone

    @rule(topic=TARGETS, action=st.sampled_from(["append", "sync"]), fate=FATES)
    def fail(self, topic: str, action: str, fate: Fate) -> None:
        """The disk fails for that topic while messages are moved to it, then works again."""
        engine = self.engine
        engine.files.faults.add(f"*/{topic}~*", errno.EIO, action, times=2)
        self.run(fate, lambda: engine.advance(SECOND))
        engine.files.faults.heal()
        self.engine.advance(MINUTE)

    @rule(seconds=st.sampled_from([1, 5, 70]), fate=FATES)
    def wait(self, seconds: int, fate: Fate) -> None:
        self.run(fate, lambda: self.engine.advance(seconds * SECOND))

    def buried(self, topic: str) -> set[bytes]:
        table, logged = self.channel(topic).window.buried, self.engine.logged(topic)
        return (
            {logged[row[0]] for row in table.page(-1, table.count)} if table is not None else set()
        )

    def places(self) -> Counter[bytes]:
        """In how many places each message is."""
        found: Counter[bytes] = Counter()
        for name in self.engine.broker.topics:
            if name in POLICIES:
                found.update(self.engine.unfinished(name, "c").keys())
                found.update(self.buried(name))
            else:
                found.update(self.engine.logged(name).values())
        return found

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check()
        places = self.places()
        twice = {body: count for body, count in places.items() if count > 1}
        assert not twice, f"in several places: {twice}"
        assert not self.kept - places.keys(), f"lost: {self.kept - places.keys()}"
        known = self.kept | self.doubtful
        assert places.keys() <= known, f"came back: {places.keys() - known}"


MovesMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestMoves = MovesMachine.TestCase
