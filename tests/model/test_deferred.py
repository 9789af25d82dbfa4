"""The deferred queue against a dictionary: crashes, clock steps, purges, failing disks."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.core.ticket import Ticket
from penstock.engine.deferred import writer
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX
from tests.support.deferred_harness import HOUR, MINUTE, SECOND, Logged, World

DELAYS = [0, 1, SECOND, 59 * SECOND, 61 * SECOND, 5 * MINUTE, HOUR, HOUR + 1, 5 * HOUR, 50 * HOUR]
STEPS = [1, SECOND, 30 * SECOND, 3 * MINUTE, HOUR, 7 * HOUR]


@dataclass
class Message:
    """What the model knows of one message."""

    instance: int
    due_ns: int
    written: bool = False  # its ticket said so
    synced: bool = False
    maybe: bool = False  # a crash or a failure came in between: it may or may not exist
    void: bool = False
    logged: bool = False
    failed: bool = False  # to be fired at least once: its place in the order is gone


class DeferredMachine(RuleBasedStateMachine):
    """Whatever happens: never early, never twice, and nothing that was answered is lost (R16)."""

    @initialize(sync_every=st.sampled_from([1, 2500]), near=st.sampled_from([4, 7, 1000]))
    def begin(self, sync_every: int, near: int) -> None:
        self.world = World(sync_every=sync_every, near_count_max=near, piece_size=512)
        self.synced_at_once = sync_every == 1
        self.messages: dict[int, Message] = {}

    # Rules

    @rule(
        delays=st.lists(st.sampled_from(DELAYS), min_size=1, max_size=6),
        instance=st.integers(1, 2),
        flush=st.booleans(),
    )
    def defer(self, delays: list[int], instance: int, flush: bool) -> None:
        for delay_ns in delays:
            due_ns = self.world.now_ns + delay_ns
            ticket, stamp = self.world.defer_stamped(delay_ns, b"%d" % delay_ns, instance)
            self.messages[stamp] = Message(instance, due_ns)
            ticket.add(lambda settled, stamp=stamp: self._answered(stamp, settled))
        if flush:
            self.world.queue.writer.flush()

    def _answered(self, stamp: int, ticket: Ticket) -> None:
        message = self.messages[stamp]
        if ticket.error is None:
            message.written = True
            message.synced = self.synced_at_once
        else:
            message.maybe = True

    @rule()
    def flush(self) -> None:
        self.world.queue.writer.flush()

    @rule(count=st.integers(1, 20))
    def disk(self, count: int) -> None:
        for _ in range(count):
            self.world.disk.step()

    @rule()
    def sync(self) -> None:
        written = [message for message in self.messages.values() if message.written]

        def done(error: BaseException | None) -> None:
            if error is None:
                for message in written:
                    message.synced = True

        world = self.world
        if not any(file.syncing for file in world.queue.table.files.values()):
            world.queue.writer.syncing.sync(done)

    @rule(step_ns=st.sampled_from(STEPS))
    def wait(self, step_ns: int) -> None:
        self.world.clock.advance(step_ns)

    @rule(step_ns=st.sampled_from([-HOUR, -MINUTE, -SECOND, MINUTE, 20 * HOUR]))
    def step_clock(self, step_ns: int) -> None:
        self.world.clock.step_wall(step_ns)

    @rule(
        count_max=st.integers(1, 5), size_max=st.sampled_from([1, 200, 10**6]), fail=st.booleans()
    )
    def fire(self, count_max: int, size_max: int, fail: bool) -> None:
        world = self.world
        taken = world.queue.take(world.now_ns, count_max, size_max)
        assert len(taken) <= count_max
        fresh = [due.due_ns for due in taken if not self.messages[due.stamp].failed]
        assert fresh == sorted(fresh)
        if fail:
            for due in taken:
                self.messages[due.stamp].failed = True
            world.queue.failed(taken)
            return
        for due in taken:
            message = self.messages[due.stamp]
            assert due.due_ns == message.due_ns and due.body and due.instance == message.instance
            assert due.due_ns <= world.now_ns, "early"
            assert not message.logged, "twice"
            assert not message.void, "void"
            message.logged = True
            world.log.append(Logged(due))
        world.queue.fired(taken)

    @rule(part=st.booleans(), forget=st.booleans())
    def checkpoint(self, part: bool, forget: bool) -> None:
        world = self.world
        fired = world.queue.checkpoints.due()
        if part:
            fired = fired[::2]
        topics = {item.instance for item in fired}
        for logged in world.log:
            logged.synced = logged.synced or logged.due.instance in topics
        world.queue.checkpoints.write(fired)
        if forget:
            world.forget_origins()

    @rule(instance=st.integers(1, 2))
    def purge(self, instance: int) -> None:
        world = self.world
        stamp = next(world.stamps)
        world.void[instance] = stamp
        world.queue.cut(instance, stamp)
        world.queue.purge(instance, stamp)
        for message in self.messages.values():
            if message.instance == instance and not message.logged:
                message.void = True

    @rule(cold=st.booleans())
    def cool(self, cold: bool) -> None:
        self.world.files.cold = cold

    @rule(
        action=st.sampled_from(["append", "short", "uncut", "sync", "pread", "unlink", "truncate"]),
        after=st.integers(0, 3),
    )
    def break_disk(self, action: str, after: int) -> None:
        self.world.files.fail(action, errno.EIO, after)

    @rule(mode=st.sampled_from([KEEP, KEEP, LOSE, PREFIX, HOLES]), seed=st.integers(0, 1000))
    def crash(self, mode: str, seed: int) -> None:
        world = self.world
        world.restart(mode, seed)
        logged = {item.due.stamp for item in world.log}
        for stamp, message in self.messages.items():
            message.logged = stamp in logged
            if not message.written or (mode != KEEP and not message.synced):
                message.maybe = True
            # A message that was void when it was taken stays so, since the void stamp is journaled.
            message.void = message.void or (
                not message.logged and stamp < world.void.get(message.instance, 0)
            )

    # What always holds

    @invariant()
    def parts_agree(self) -> None:
        if hasattr(self, "world"):
            self.world.queue.check()

    @invariant()
    def nothing_is_called_damaged(self) -> None:
        """Neither a power cut nor a failing disk damages what was synced."""
        if hasattr(self, "world"):
            assert self.world.damages == []

    @precondition(lambda self: hasattr(self, "world") and self.world.queue.loader.counted)
    @invariant()
    def counts_are_true(self) -> None:
        queue = self.world.queue
        for instance in (1, 2):
            alive = [
                message
                for message in self.messages.values()
                if message.instance == instance and not message.void and not message.logged
            ]
            sure = sum(message.written and not message.maybe for message in alive)
            # One that is not answered may be on its way, or wait for the counts to be synced.
            maybe = sum(message.maybe or not message.written for message in alive)
            assert sure <= queue.tallies.count(instance) <= sure + maybe
        assert queue.tallies.total == queue.tallies.count(1) + queue.tallies.count(2)
        assert queue.tallies.total == sum(
            sum(queue.due_hours(instance).values()) for instance in (1, 2)
        )

    def teardown(self) -> None:
        """With a disk that works and time enough, everything comes to its end."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.files.failures.clear()
        world.files.cold = False
        world.queue.writer.flush()
        world.disk.drain()
        for _ in range(12):
            world.clock.advance(30 * HOUR)
            while taken := world.take(50):
                for due in taken:
                    message = self.messages[due.stamp]
                    assert not message.logged, "twice"
                    assert not message.void, "void"
                    message.logged = True
                world.log.extend(Logged(due) for due in taken)
                world.queue.fired(taken)
            world.checkpoint()
        for stamp, message in self.messages.items():
            if message.written and not message.maybe and not message.void:
                assert message.logged, f"lost {stamp}: {message}"
        assert world.queue.tallies.total == 0 and len(world.queue.table.files) == 0
        left = [name for name in world.file_names() if name.endswith((".slot", ".fired"))]
        assert left == []


@pytest.fixture(autouse=True)
def small_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "HOUR_COUNT_MAX", 5)
    monkeypatch.setattr(writer, "FILE_SIZE_MAX", 1000)


def test_messages_that_were_read_from_disk_are_taken_in_order() -> None:
    """One was being read when the clock was set back; the other was accepted after that."""
    machine = DeferredMachine()
    machine.begin(sync_every=1, near=4)
    machine.defer(delays=[0], flush=True, instance=1)
    machine.cool(cold=True)
    machine.disk(count=1)
    machine.fire(count_max=1, size_max=1, fail=False)
    machine.step_clock(step_ns=-HOUR)
    machine.defer(delays=[0], flush=True, instance=1)
    machine.cool(cold=False)
    machine.disk(count=3)
    machine.step_clock(step_ns=20 * HOUR)
    machine.fire(count_max=2, size_max=1, fail=False)
    machine.teardown()


TestDeferred = DeferredMachine.TestCase
TestDeferred.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
