"""The topic log against a plain list, through appends, failures, removals and power cuts."""

from __future__ import annotations

import errno

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import UncutError
from penstock.storage.journal import encode_synced
from penstock.storage.recovery import recover_topic
from penstock.storage.topic_log import TopicLog
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX, LossyFiles
from tests.unit.storage.build import NODE_ID, batch, read_all

FOLDER = "/topics/orders~00000000000000aa"


class LogMachine(RuleBasedStateMachine):
    """Model: the indexes that must be there, and those of them that a power cut may take."""

    def __init__(self) -> None:
        super().__init__()
        self.files = LossyFiles()
        self.files.make_folder(FOLDER)
        self.files.put(f"{FOLDER}/journal", b"")
        self.log = TopicLog.create(self.files, FOLDER, 0xAA, NODE_ID, 1000, 3000)  # type: ignore[arg-type]
        self.now_ns = 0
        self.bodies: dict[int, bytes] = {}
        self.unsynced: set[int] = set()
        self.highest = 1000

    @initialize()
    def start(self) -> None:
        pass

    @rule(count=st.integers(1, 5), size=st.integers(0, 400), batches=st.integers(1, 4))
    def append(self, count: int, size: int, batches: int) -> None:
        made = []
        first = self.log.end
        for _ in range(batches):  # written ahead of their commits
            self.now_ns += 1
            one = batch(first, count, self.now_ns, bytes(size))
            try:
                self.log.write(one)
            except (OSError, UncutError):
                break
            made.append(one)
            first += count
        for one in made:
            self.log.commit(one)
            for index in range(one.first, one.first + count):
                self.bodies[index] = bytes(size)
                self.unsynced.add(index)
        if len(made) < batches:
            self.log.abandon(first + count)

    @rule(code=st.sampled_from([errno.ENOSPC, errno.EIO]), how=st.sampled_from(["append", "uncut"]))
    def failing_append(self, code: int, how: str) -> None:
        self.files.fail(how, code)
        self.append(2, 10, 2)
        self.files.failures.clear()

    @rule(fails=st.booleans())
    def sync(self, fails: bool) -> None:
        if fails:
            self.files.fail("sync", errno.EIO)
        try:
            token = self.log.sync()
        except OSError:
            return
        finally:
            self.files.failures.clear()
        self.log.synced(token)
        assert self.log.extent.unsynced_count == 0
        self.unsynced.clear()
        self.files.append(f"{FOLDER}/journal", [encode_synced(token.base, token.offset)])

    @rule(fails=st.sampled_from([None, "sync", "append", "sync_folder"]), after=st.integers(0, 2))
    def roll(self, fails: str | None, after: int) -> None:
        if fails is not None:
            self.files.fail(fails, errno.EIO, after)
        try:
            self.log.synced(self.log.roll())
        except OSError:
            return
        finally:
            self.files.failures.clear()
        self.unsynced.clear()

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(min(self.bodies), self.log.end))
        before = {r.path: r for r in self.log.segments()}
        for path in self.log.retire(low):
            record = before[path]
            assert record.end <= low and record.sealed
            for index in range(record.first, record.end):
                self.bodies.pop(index, None)
            self.files.unlink(path)

    @precondition(lambda self: any(r.sealed for r in self.log.segments()))
    @rule(data=st.data())
    def relocate(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from([r for r in self.log.segments() if r.sealed]))
        inside = [i for i in range(record.first, record.end) if i in self.bodies]
        kept = data.draw(st.lists(st.sampled_from(inside), unique=True, max_size=4))
        if not self.log.removable(record.base):  # a failed sync's copy waits for its cut
            self.sync(fails=False)
            assert self.log.removable(record.base)
        for path in self.log.relocated(self.log.relocate(record.base, kept)):
            self.files.unlink(path)
        for index in set(inside) - set(kept):
            del self.bodies[index]

    @rule(
        mode=st.sampled_from([LOSE, KEEP, PREFIX, HOLES]),
        seed=st.integers(0, 1 << 16),
        jump=st.integers(0, 50),
    )
    def crash(self, mode: str, seed: int, jump: int) -> None:
        self.files.sync_folder(FOLDER)  # the unlinks; what may be lost of them is in test_lossy.py
        self.files.crash(mode, seed)
        end = self.log.end
        found = recover_topic(self.files, FOLDER, NODE_ID, end + jump, (), 3000)  # type: ignore[arg-type]
        self.log = found.log
        assert found.corrupt_count == 0, found.notes
        assert self.log.end >= end + jump
        there = set(read_all(self.log))
        assert there <= set(self.bodies)
        assert set(self.bodies) - there <= (self.unsynced if mode != KEEP else set())
        self.bodies = {index: self.bodies[index] for index in there}
        self.unsynced &= there

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        log = self.log
        log.check()
        expected = sorted(self.bodies)
        assert log.count == len(expected)
        assert log.first == (expected[0] if expected else log.end)
        assert not expected or log.end > expected[-1]
        assert log.end >= self.highest
        self.highest = log.end
        assert [i for a, b in log.existing(0, log.end) for i in range(a, b)] == expected
        # A write may seal, and so sync, a segment on its own; the model learns of it here.
        sealed_end = max((r.end for r in log.segments() if r.sealed), default=0)
        self.unsynced = {index for index in self.unsynced if index >= sealed_end}
        assert log.extent.unsynced_count >= len(self.unsynced)
        assert log.synced_end <= min(self.unsynced, default=log.end)

    @invariant()
    def reads_what_the_model_holds(self) -> None:
        found = read_all(self.log, size_max=500)
        assert {index: frame[34:] for index, frame in found.items()} == self.bodies
        assert self.log.take_damage() == []
        for index in list(self.bodies)[:3]:
            assert (self.log.frame(index, True) or b"")[34:] == self.bodies[index]
        assert self.log.frame(self.log.end, True) == b""

    @invariant()
    def counts_are_exact(self) -> None:
        expected = sorted(self.bodies)
        middle = (self.log.first + self.log.end) // 2
        assert self.log.count_between(0, middle) == sum(i < middle for i in expected)
        assert self.log.count_between(middle, self.log.end) == sum(i >= middle for i in expected)
        assert self.log.next_index(middle) == min(
            (i for i in expected if i >= middle), default=self.log.end
        )


TestTopicLog = LogMachine.TestCase
TestTopicLog.settings = settings(
    max_examples=300,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
