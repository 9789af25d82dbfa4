"""Bounds against a naive model: publishers, channels that come and go, kills (R20).

The model knows what each channel has not finished, what is buried, what the topic holds back, and
which deferred messages are due and wait.  What must hold after each step:

  refuse        a publish is refused exactly if the fullest channel has `max_messages`, with what
                the topic holds back and what waits; with `max_bytes` it is accepted only below it,
                and refused only if the log has as many bytes;
  drop-oldest   nothing is refused; what is gone are the oldest messages, on all channels alike,
                and counted; no more than needed, to a file;
  both          what was accepted and not dropped is there, and nothing else, over kills too;
                what retention alone keeps is no burden; nothing is missing above `whole_from`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.engine.moves.sweep import Act, take_some
from penstock.engine.topic import Topic
from penstock.errors import TopicFullError
from tests.crash.lossy import KILL
from tests.support.engine import HOUR, MS, SECOND, Client, Engine

NAMES = st.sampled_from(["a", "b"])
BODY_SIZE = 200
BATCH_COUNT_MAX = 4
FOOTER_SIZE_MAX = 512
# After each step: a topic looks for room once a second, and finishes are journaled.
STEP_NS = 1200 * MS
# Never at the end of a step, so that it is certain whether it is due.
DELAY_NS = 2550 * MS


class BoundsMachine(RuleBasedStateMachine):
    engine: Engine

    @initialize(
        count_max=st.sampled_from([0, 1, 3, 8, 30]),
        size_max=st.sampled_from([0, 0, 2000, 6000]),
        overflow=st.sampled_from(["refuse", "drop-oldest"]),
        retain=st.sampled_from(["0", "10s", "1h"]),
        seed=st.integers(0, 1000),
    )
    def begin(self, count_max: int, size_max: int, overflow: str, retain: str, seed: int) -> None:
        self.engine = Engine(seed=seed)
        self.count_max, self.size_max = count_max or 1 << 60, size_max or 1 << 60
        self.dropping = overflow == "drop-oldest"
        topic, created = self.engine.broker.create_topic("t")
        assert self.engine.done(created) is None
        keys: dict[str, object] = {"max_messages": count_max, "max_bytes": size_max}
        keys |= {"overflow": overflow, "retain": retain}
        assert self.engine.done(self.engine.components.policies.set_topic(topic, keys)) is None
        self.clients: dict[str, Client] = {}
        self.unfinished: dict[str, set[bytes]] = {}
        self.buried: dict[str, set[bytes]] = {}
        self.skipped: dict[str, set[bytes]] = {}  # deferred before the channel was emptied (R17)
        self.dropped: dict[str, int] = {}  # counted by the channel since the last start
        self.held: set[bytes] = set()
        self.deferred: dict[bytes, int] = {}  # by when they are due
        self.index: dict[bytes, int] = {}
        self.number = 0
        self.paused = False

    # ---- what it knows

    @property
    def topic(self) -> Topic:
        return self.engine.topic("t")

    def bodies(self, count: int) -> list[bytes]:
        self.number += count
        return [b"%0*d" % (BODY_SIZE, n) for n in range(self.number - count, self.number)]

    @property
    def due(self) -> list[bytes]:
        now_ns = self.engine.clock.wall_ns()
        return sorted(body for body, due_ns in self.deferred.items() if due_ns <= now_ns)

    @property
    def load(self) -> int:
        """Without what waits for room."""
        return max(map(len, self.unfinished.values()), default=0) + len(self.held)

    def arrive(self, bodies: Iterable[bytes]) -> None:
        self.held.update(bodies)
        self.release()

    def release(self) -> None:
        if self.unfinished and not self.paused:
            for name, unfinished in self.unfinished.items():
                unfinished |= self.held - self.skipped[name]
            self.held = set()

    def settle(self) -> None:
        """Let time pass, then compare."""
        self.engine.advance(STEP_NS)
        for body in self.due:
            if not self.dropping and self.load >= self.count_max:
                break
            del self.deferred[body]
            self.arrive([body])
        for index, body in self.engine.logged("t").items():
            self.index[body] = index
        if self.dropping:
            self.see_dropped()
        for name, expected in self.unfinished.items():
            assert set(self.engine.unfinished("t", name)) == expected, name
            window = self.topic.channels[name].window
            assert {self.index[body] for body in self.buried[name]} == (
                set(window.buried.indexes()) if window.buried is not None else set()
            )
        assert self.engine.held("t") == self.held
        if not self.dropping:
            waiting = self.topic.policy_stats()["waiting_count"]
            assert waiting == len(self.due)
        if self.count_max < 1 << 60:
            assert self.topic.bound.unfinished_count == self.load + len(self.due)
        log, whole_from = self.topic.log, self.topic.whole_from
        assert all(log.count_between(i, i + 1) for i in self.index.values() if i >= whole_from), (
            "missing above whole_from"
        )
        self.engine.check()

    def see_dropped(self) -> None:
        """What is gone are the oldest messages, of all channels alike."""
        kept = {name: set(self.engine.unfinished("t", name)) for name in self.unfinished}
        gone = [
            body for name, expected in self.unfinished.items() for body in expected - kept[name]
        ]
        gone += self.held - self.engine.held("t")
        if not gone:
            return
        end = max(self.index.get(body, 0) for body in gone) + 1
        for name, expected in self.unfinished.items():
            old = {body for body in expected if self.index.get(body, 0) < end}
            assert kept[name] == expected - old, "not the oldest ones"
            expected -= old
            self.dropped[name] += len(old)
        old = {body for body in self.held if self.index.get(body, 0) < end}
        for name in self.dropped.keys() & self.unfinished.keys():
            self.dropped[name] += len(old - self.skipped[name])
        self.held -= old
        self.within(end)

    def within(self, end: int) -> None:
        """After a drop of what is below ``end``: it was needed, and is enough."""
        log = self.topic.log
        if log.next_index(end) >= log.files[-1].first:
            return  # only the newest file is left
        assert self.load <= self.count_max
        footers_size = FOOTER_SIZE_MAX * len(log.files)  # of files that were sealed after it
        assert self.topic.unfinished_size <= self.size_max + footers_size
        file_count = self.count_max // 8 + 2 * BATCH_COUNT_MAX
        assert self.load > self.count_max - file_count or self.size_max < 1 << 60

    # ---- publishers

    @rule(count=st.integers(1, BATCH_COUNT_MAX))
    def publish(self, count: int) -> None:
        bodies = self.bodies(count)
        full = self.load + len(self.due) >= self.count_max
        size = BODY_SIZE * len(set().union(self.held, *self.unfinished.values()))
        error = self.engine.publish("t", *bodies)
        if error is None:
            assert self.dropping or (not full and size < self.size_max)
            self.arrive(bodies)
        else:
            assert isinstance(error, TopicFullError) and not self.dropping
            if error.key == "max_bytes":
                assert not full and self.topic.log.size >= self.size_max
            else:
                assert full
        self.settle()

    @precondition(lambda self: self.size_max == 1 << 60)
    @rule()
    def defer(self) -> None:
        (body,) = self.bodies(1)
        full = self.load + len(self.due) >= self.count_max
        error = self.engine.defer("t", DELAY_NS, body)
        assert isinstance(error, TopicFullError) == (full and not self.dropping)
        if error is None:
            self.deferred[body] = self.engine.clock.wall_ns() + DELAY_NS
        self.settle()

    # ---- consumers

    @rule(name=NAMES, act=st.sampled_from(["finish", "finish", "bury", "requeue"]), n=st.integers())
    def answer(self, name: str, act: str, n: int) -> None:
        found = self.engine.unfinished("t", name) if name in self.clients else {}
        flying = sorted(body for body, each in found.items() if each.state == "in flight")
        for body in flying[: 1 + n % 4]:
            client, index = self.clients[name], found[body].index
            if act == "requeue":
                assert client.requeue(index, delay_ns=HOUR) == 0
                continue
            assert (client.finish if act == "finish" else client.bury)(index) == 0
            self.unfinished[name].discard(body)
            if act == "bury":
                self.buried[name].add(body)
        self.settle()

    @rule(name=NAMES, count=st.integers(1, 6))
    def kick(self, name: str, count: int) -> None:
        if name in self.clients:
            kicked = sorted(self.buried[name], key=self.index.__getitem__)[:count]
            taken, _ = take_some(self.topic.channels[name], Act.KICK, 0, count)
            assert taken == len(kicked)
            self.buried[name] -= set(kicked)
            self.unfinished[name] |= set(kicked)
        self.settle()

    # ---- administrators

    @rule(name=NAMES)
    def create(self, name: str) -> None:
        if name not in self.clients:
            self.clients[name] = Client(self.engine, "t", name, 1000, HOUR)
            self.unfinished[name], self.buried[name] = set(), set()
            self.skipped[name], self.dropped[name] = set(), 0
            self.release()
        self.settle()

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.clients:
            self.clients.pop(name).close()
            assert self.engine.done(self.topic.delete_channel(name)) is None
            del self.unfinished[name], self.buried[name]
        self.settle()

    @rule(name=NAMES, back=st.booleans())
    def seek(self, name: str, back: bool) -> None:
        if name in self.clients:
            start = self.topic.log.first if back else self.topic.released
            again = {
                body
                for body, index in self.index.items()
                if start <= index < self.topic.released
                and self.topic.log.count_between(index, index + 1)
            }
            channel = self.topic.channels[name]
            assert self.engine.done(self.topic.rewind(channel, start)) is None
            self.unfinished[name] = again
            self.skipped[name] -= self.held
            self.buried[name] = {b for b in self.buried[name] if self.index[b] < start}
        self.settle()

    @rule(name=NAMES)
    def empty(self, name: str) -> None:
        if name in self.clients:
            assert self.engine.done(self.topic.channels[name].empty()) is None
            self.unfinished[name].clear()
            self.skipped[name].update(self.deferred)
        self.settle()

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        assert self.engine.done(self.topic.pause(paused)) is None
        self.paused = paused
        self.release()
        self.settle()

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        for name, count in self.dropped.items():
            if name in self.unfinished:
                assert self.topic.channels[name].dropped_count == count
        if crash:
            self.engine.crash(KILL)
        else:
            self.engine.exit()
        self.engine.start()
        self.clients = {n: Client(self.engine, "t", n, 1000, HOUR) for n in self.unfinished}
        self.dropped = dict.fromkeys(self.unfinished, 0)
        self.engine.advance(2 * SECOND)
        self.settle()


TestBounds = BoundsMachine.TestCase
TestBounds.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
