"""Retention against a naive model: publishers, two channels, a clock that lies, kills (R21).

The model knows for each message when it was published, by a clock that nobody sets, and which
channels have finished it.  What must hold at any time:

  - what a channel has not finished is there, or what the topic holds back;
  - what is finished by all is there as long as it is younger than `retain`, and the newest
    `retain_bytes` of it are there;
  - it is gone when it is a quarter older, if nothing has kept it meanwhile: an unfinished message
    in its segment, or a clock that was set;
  - nothing is missing at and above `whole_from`, and a kill does not change that.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.topic import Topic
from tests.crash.lossy import KEEP, KILL
from tests.support.engine import HOUR, MS, SECOND, Client, Engine
from tests.support.retention import LATE_NS, retaining

CHANNELS = ("a", "b")
BODY_SIZE = 500
# Bytes of a message in the log, with the header of its batch.
SIZE = 34 + BODY_SIZE + 56


class RetentionMachine(RuleBasedStateMachine):
    """Rules are what publishers, consumers, the clock, an admin and the machine do."""

    engine: Engine

    @initialize(
        retain_ns=st.sampled_from([0, 40 * SECOND, 90 * SECOND]),
        retain_bytes=st.sampled_from([0, 10_000]),
        file_size=st.sampled_from([1500, 6000, 1 << 20]),
        sync_every=st.sampled_from([1, 2500]),
        seed=st.integers(0, 1000),
    )
    def begin(
        self, retain_ns: int, retain_bytes: int, file_size: int, sync_every: int, seed: int
    ) -> None:
        self.engine = Engine(max_bytes_per_file=file_size, sync_every=sync_every, seed=seed)
        self.keys = {"retain_ns": retain_ns, "retain_bytes": retain_bytes}
        retaining(self.engine, "t", **self.keys)
        self.passed_ns = 0  # real time
        self.published: dict[int, int] = {}
        self.finished: dict[str, set[int]] = {name: set() for name in CHANNELS}
        self.finished_ns: dict[int, int] = {}  # by all
        self.late_ns = 0  # when retention began anew: a start, another policy
        self.clock_was_set = False
        self.offset_ns = 0  # of the wall clock
        self.offsets: dict[int, int] = {}  # when a message was published
        self.let_go: set[int] = set()  # under another policy, or a start with a clock set forward
        self.join()

    def join(self) -> None:
        self.clients = {name: Client(self.engine, "t", name, 1000) for name in CHANNELS}
        self.engine.settle()

    @property
    def topic(self) -> Topic:
        return self.engine.topic("t")

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        for _ in range(count):
            assert self.engine.publish("t", bytes(BODY_SIZE)) is None
            self.published[self.topic.end - 1] = self.passed_ns
            self.offsets[self.topic.end - 1] = self.offset_ns

    @rule(name=st.sampled_from(CHANNELS), share=st.sampled_from([1.0, 1.0, 0.5]))
    def finish(self, name: str, share: float) -> None:
        client = self.clients[name]
        client.inbox = [r for r in client.inbox if r.index not in self.finished[name]]
        client.inbox.sort(key=lambda received: received.index)
        for received in client.inbox[: int(len(client.inbox) * share)]:
            if client.finish(received.index) == 0:
                self.finished[name].add(received.index)
        for index in set.intersection(*self.finished.values()):
            self.finished_ns.setdefault(index, self.passed_ns)

    @rule(seconds=st.sampled_from([1, 3, 10, 25]))
    def wait(self, seconds: int) -> None:
        self.engine.advance(seconds * SECOND)
        self.passed_ns += seconds * SECOND

    @rule(step_ns=st.sampled_from([-HOUR, -20 * SECOND, 20 * SECOND, HOUR, 10_000 * HOUR]))
    def set_clock(self, step_ns: int) -> None:
        self.engine.clock.step_wall(step_ns)
        self.offset_ns += step_ns
        self.clock_was_set = True

    @rule(mode=st.sampled_from([KEEP, KILL]))
    def kill(self, mode: str) -> None:
        self.engine.advance(300 * MS)  # what was finished is journaled
        self.passed_ns += 300 * MS
        whole_from = self.topic.whole_from
        self.engine.crash(mode)
        self.engine.start()
        retaining(self.engine, "t", **self.keys)
        assert self.topic.whole_from >= whole_from
        # A start knows only the wall clock.
        self.let_go |= {i for i, offset_ns in self.offsets.items() if self.offset_ns > offset_ns}
        self.late_ns = self.passed_ns
        self.join()

    @rule(retain_ns=st.sampled_from([0, 20 * SECOND, 90 * SECOND]))
    def set_policy(self, retain_ns: int) -> None:
        self.keys["retain_ns"] = retain_ns
        log = self.topic.log
        self.let_go |= {i for i in self.published if not log.count_between(i, i + 1)}
        if self.clock_was_set:
            self.let_go |= self.published.keys()  # seen by the wall clock only now
        retaining(self.engine, "t", **self.keys)
        self.late_ns = self.passed_ns

    @invariant()
    def nothing_goes_early(self) -> None:
        if not hasattr(self, "keys"):
            return
        log, whole_from = self.topic.log, self.topic.whole_from
        retain_ns, retain_bytes = self.keys["retain_ns"], self.keys["retain_bytes"]
        done = set.intersection(*self.finished.values())
        newest_size = 0
        for index, at_ns in sorted(self.published.items(), reverse=True):
            there = log.count_between(index, index + 1) == 1
            assert there or index < whole_from, f"{index} is missing above {whole_from}"
            if index not in done:
                assert there, f"{index} is gone and unfinished"
                continue
            newest_size += SIZE
            young = self.passed_ns - at_ns < retain_ns
            within = newest_size <= retain_bytes
            kept = (young or not retain_ns) and (within or not retain_bytes) and (young or within)
            if kept and index not in self.let_go:
                assert there, f"{index} went early"

    @invariant()
    def nothing_stays_much_longer(self) -> None:
        if not hasattr(self, "keys"):
            return
        retain_ns = self.keys["retain_ns"]
        done = set.intersection(*self.finished.values())
        if self.clock_was_set or done < self.published.keys() or not retain_ns:
            return  # a segment with an unfinished message stays as a whole, or its stragglers do
        ready_ns = max([self.late_ns, *self.finished_ns.values()])
        if self.passed_ns - ready_ns < LATE_NS + retain_ns // 32:
            return
        for index, at_ns in self.published.items():
            if self.passed_ns - at_ns > retain_ns * 5 // 4 + LATE_NS:
                assert not self.topic.log.count_between(index, index + 1), f"{index} stays"

    @invariant()
    def the_parts_are_sound(self) -> None:
        if hasattr(self, "keys"):
            self.engine.check()


TestRetention = RetentionMachine.TestCase
TestRetention.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
