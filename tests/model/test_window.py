"""The delivery window against dicts and lists, and its journal against a replay.

The machine publishes with gaps, lets consumers come and go, answers rightly and wrongly, lets
time pass, empties and skips; after every step all counts are equal and check() holds.  At any
moment the window can be rebuilt from what drain() told so far, as a restart does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.deadlines import NEVER_NS
from penstock.core.window import Consumer, Window
from tests.support.blocks import NODE_ID, block_of, frame, read_frames, read_marks, read_runs

DONE, NOT_IN_FLIGHT, NOT_OWNER = 0, 1, 2
WAIT_NS = 10
TIMEOUT_MAX_NS = 500
ANSWER = {
    "who": st.integers(0, 99),
    "what": st.integers(0, 99),
    "node_id": st.sampled_from([NODE_ID] * 9 + [NODE_ID + 1]),
}


@dataclass
class Known:
    """What the model knows of a delivered, unfinished message."""

    state: str
    attempts: int
    due_ns: int = 0
    owner: Consumer | None = None
    deadline_ns: int = 0
    delivered_ns: int = 0


@dataclass
class Journal:
    """PROGRESS records replayed: below low and in runs is finished, marks tell attempts."""

    low: int = 0
    finished: set[int] = field(default_factory=set)
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, record: tuple[int, bytes, bytes]) -> None:
        low, runs, marks = record
        assert low >= self.low
        self.low = low
        for start, end in read_runs(runs):
            assert low <= start < end
            self.finished.update(range(start, end))
        self.marks.update(read_marks(marks))

    def unfinished(self, log: list[int]) -> list[int]:
        return [i for i in log if i >= self.low and i not in self.finished]

    def rebuild(self, log: list[int]) -> Window:
        """A window as a restart makes it: what was touched is restored, the rest is queued."""
        unfinished = self.unfinished(log)
        end = max([self.low, *(i + 1 for i in (self.finished | self.marks.keys()))])
        window = Window(self.low)
        for index in unfinished:
            if index < end:
                window.restore(index, *self.marks.get(index, (0, 0)))
        window.advance(end)
        window.queued_count = sum(index >= end for index in unfinished)
        return window


class WindowMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window = Window(0, seed=7)
        self.now_ns = 1000
        self.log: list[int] = []  # every index there is
        self.end = 0  # where the next one may lie
        self.released = 0  # below it messages may be delivered
        self.queue: list[int] = []  # not delivered, not skipped
        self.known: dict[int, Known] = {}
        # Ready messages in order; those whose deadlines were equal may come in any order.
        self.ready: list[set[int]] = []
        self.consumers: list[Consumer] = []
        self.gone: list[Consumer] = []
        self.answered: dict[int, list[int]] = {}  # id(consumer) -> sent, finished, requeued
        self.requeue_count = self.timeout_count = 0
        self.block_end = 0
        self.journal = Journal()
        self.marked: set[int] = set()
        self.told: dict[int, tuple[int, int]] = {}  # what the journal should know of attempts

    # ---- the log

    @rule(gap=st.integers(0, 3), count=st.integers(1, 6), more=st.booleans())
    def publish(self, gap: int, count: int, more: bool) -> None:
        """A batch, perhaps behind a gap; the topic may be paused and hold it back."""
        first = self.end + gap
        self.log += range(first, first + count)
        self.queue += range(first, first + count)
        self.end = first + count
        if more:
            self.release()

    @rule()
    def release(self) -> None:
        held = [index for index in self.queue if index >= self.released]
        self.released = self.end
        self.window.queued_count += len(held)

    @rule(start=st.integers(0, 12), count=st.integers(1, 6))
    def skip(self, start: int, count: int) -> None:
        first = self.window.cursor + start
        gone = [i for i in self.queue if first <= i < first + count]
        # Nobody skips what does not exist yet: its index could still be given to a message.
        end = min(first + count, self.end)
        if first >= end:
            return
        self.window.skip(first, end, sum(i < self.released for i in gone))
        self.queue = [i for i in self.queue if i not in gone]

    def load(self, size: int) -> bool:
        """Give the window a block at its cursor, of ``size`` messages, whoever skipped them."""
        while not self.window.loaded:
            ahead = [i for i in self.log if i >= self.window.cursor][:size]
            if not ahead:
                return False
            self.window.load(block_of(ahead))
            self.block_end = ahead[-1] + 1
        return True

    # ---- delivery

    @precondition(lambda self: self.consumers)
    @rule(
        who=st.integers(0, 9),
        count=st.integers(1, 8),
        size_max=st.sampled_from([1, 40, 100, 10_000]),
        block_size=st.integers(1, 12),
    )
    def deliver(self, who: int, count: int, size_max: int, block_size: int) -> None:
        consumer = self.pick(who)
        room = min(count, consumer.room)
        if not room or not self.load(block_size):
            return
        given = self.window.deliver(consumer, room, size_max, self.released, self.now_ns)
        waiting = [i for i in self.queue if i < self.released]
        if given is None:
            assert not self.window.loaded or not waiting or waiting[0] >= self.block_end
            return
        frames, sent_count = given
        sent = [self.receive(consumer, one.index, one.attempts) for one in read_frames(frames)]
        assert sent == waiting[:sent_count] and 1 <= sent_count <= room
        assert len(frames) <= size_max or sent_count == 1
        following = sent[-1] + 1
        if sent_count < room and waiting[sent_count:][:1] == [following] != [self.block_end]:
            assert len(frames) + len(frame(following)) > size_max, "stopped without a reason"
        assert consumer.in_flight_count <= consumer.ready_count  # S3-1

    def receive(self, consumer: Consumer, index: int, attempts: int) -> int:
        """A first delivery: S0-1, it is in flight when the bytes are handed out."""
        assert attempts == 1
        self.queue.remove(index)
        self.known[index] = Known("in flight", 1)
        self.sent(consumer, index)
        return index

    def sent(self, consumer: Consumer, index: int) -> None:
        known = self.known[index]
        known.state, known.owner, known.due_ns = "in flight", consumer, 0
        known.delivered_ns = self.now_ns
        known.deadline_ns = self.now_ns + consumer.msg_timeout_ns
        self.answered[id(consumer)][0] += 1

    @precondition(lambda self: self.consumers)
    @rule(who=st.integers(0, 9), count=st.integers(1, 5), scan_max=st.integers(1, 8))
    def deliver_sampled(self, who: int, count: int, scan_max: int) -> None:
        consumer = self.pick(who)
        room = min(count, consumer.room)
        if not room or not self.load(10):
            return
        before = self.window.queued_count
        given = self.window.deliver_sampled(consumer, room, scan_max, self.released, self.now_ns)
        looked_at = self.queue[: before - self.window.queued_count]
        if given is None:
            assert not looked_at
            return
        kept = [self.receive(consumer, one.index, one.attempts) for one in read_frames(given[0])]
        assert len(kept) == given[1] <= room and len(looked_at) <= scan_max
        assert kept == [i for i in looked_at if i in kept]
        assert all(i < self.released for i in looked_at)
        self.queue = [i for i in self.queue if i not in looked_at]

    @precondition(lambda self: self.consumers and self.ready)
    @rule(who=st.integers(0, 9))
    def redeliver(self, who: int) -> None:
        consumer = self.pick(who)
        if not consumer.room:
            return
        index = self.next_ready()
        known = self.known[index]
        known.attempts += 1
        copy = self.window.redeliver(consumer, frame(index), self.now_ns)
        assert copy == frame(index, attempts=known.attempts)
        self.sent(consumer, index)

    @precondition(lambda self: self.ready)
    @rule()
    def drop_ready(self) -> None:
        index = self.next_ready()
        self.window.drop_ready()
        del self.known[index]

    @precondition(lambda self: self.ready)
    @rule()
    def rotate_ready(self) -> None:
        index = self.next_ready()
        self.window.rotate_ready()
        self.make_ready({index})

    def next_ready(self) -> int:
        index = self.window.next_ready
        assert index is not None and index in self.ready[0]
        self.ready[0].remove(index)
        if not self.ready[0]:
            self.ready.pop(0)
        return index

    # ---- consumers

    @precondition(lambda self: len(self.consumers) < 5)
    @rule(ready_count=st.integers(0, 8), timeout_ns=st.integers(1, 60), rate=st.integers(0, 99))
    def join(self, ready_count: int, timeout_ns: int, rate: int) -> None:
        consumer = Consumer(None, timeout_ns, rate)
        consumer.ready_count = ready_count
        self.window.join(consumer)
        self.consumers.append(consumer)
        self.answered[id(consumer)] = [0, 0, 0]

    @precondition(lambda self: self.consumers)
    @rule(who=st.integers(0, 9), ready_count=st.integers(0, 8))
    def set_ready_count(self, who: int, ready_count: int) -> None:
        self.pick(who).ready_count = ready_count

    @precondition(lambda self: self.consumers)
    @rule(who=st.integers(0, 9), requeue=st.booleans())
    def leave(self, who: int, requeue: bool) -> None:
        """R14: at once the first time, later with a growing wait up to the consumer's timeout."""
        consumer = self.pick(who)
        back = self.window.leave(consumer, requeue, self.now_ns, WAIT_NS)
        self.consumers.remove(consumer)
        self.gone.append(consumer)
        ready = 0
        for index, known in sorted(self.known.items()):
            if known.state != "in flight" or known.owner is not consumer:
                continue
            known.owner = None
            if not requeue:
                continue
            self.requeue_count += 1
            self.marked.add(index)
            if known.attempts == 1:
                self.make_ready({index})
                ready += 1
            else:
                wait = min(WAIT_NS * 2 ** (known.attempts - 2), consumer.msg_timeout_ns)
                known.state, known.due_ns = "deferred", self.now_ns + wait
        assert back == ready
        assert consumer.in_flight_count == 0

    def pick(self, who: int) -> Consumer:
        return self.consumers[who % len(self.consumers)]

    def make_ready(self, indexes: set[int]) -> None:
        for index in indexes:
            self.known[index].state, self.known[index].due_ns = "ready", 0
        self.ready.append(indexes)

    # ---- answers

    def choose(self, who: int, what: int) -> tuple[Consumer, int]:
        """Anybody and anything: mostly a message in flight, by its owner or by others."""
        in_flight = sorted(i for i, known in self.known.items() if known.state == "in flight")
        others = [*self.known, *self.queue[:3], *self.log[:2], self.end, self.end + 9, -1]
        index = (
            in_flight[what % len(in_flight)]
            if in_flight and what < 70
            else others[what % len(others)]
        )
        owner = self.known[index].owner if index in self.known else None
        everybody = [*self.consumers, *self.gone[-2:]]
        if owner is not None and who < 70 and owner in everybody:
            return owner, index
        return everybody[who % len(everybody)], index

    def expected(self, consumer: Consumer, index: int, node_id: int) -> int:
        known = self.known.get(index)
        if known is None or known.state != "in flight" or node_id != NODE_ID:
            return NOT_IN_FLIGHT
        return DONE if known.owner is consumer else NOT_OWNER

    @precondition(lambda self: self.consumers)
    @rule(**ANSWER)
    def finish(self, who: int, what: int, node_id: int) -> None:
        consumer, index = self.choose(who, what)
        status = self.window.finish_index(consumer, index, node_id, self.now_ns)
        assert status == self.expected(consumer, index, node_id)
        if status == DONE:
            del self.known[index]
            self.answered[id(consumer)][1] += 1

    @precondition(lambda self: self.consumers)
    @rule(**ANSWER, delay_ns=st.sampled_from([0, 0, 5, 50]))
    def requeue(self, who: int, what: int, node_id: int, delay_ns: int) -> None:
        consumer, index = self.choose(who, what)
        due_ns = self.now_ns + delay_ns if delay_ns else 0
        status = self.window.requeue_index(consumer, index, node_id, due_ns)
        assert status == self.expected(consumer, index, node_id)
        if status == DONE:
            self.requeue_count += 1
            self.answered[id(consumer)][2] += 1
            self.marked.add(index)
            if delay_ns:
                self.known[index].state, self.known[index].due_ns = "deferred", due_ns
            else:
                self.make_ready({index})

    @precondition(lambda self: self.consumers)
    @rule(**ANSWER, timeout_ns=st.integers(1, 300))
    def touch(self, who: int, what: int, node_id: int, timeout_ns: int) -> None:
        consumer, index = self.choose(who, what)
        status = self.window.touch_index(
            consumer, index, node_id, self.now_ns, timeout_ns, TIMEOUT_MAX_NS
        )
        assert status == self.expected(consumer, index, node_id)
        if status == DONE:
            known = self.known[index]
            known.deadline_ns = min(self.now_ns + timeout_ns, known.delivered_ns + TIMEOUT_MAX_NS)

    # ---- time

    @rule(passed_ns=st.integers(0, 40))
    def wait(self, passed_ns: int) -> None:
        self.now_ns += passed_ns

    @rule(count_max=st.sampled_from([0, 1, 2, 1000]))
    def expire(self, count_max: int) -> None:
        """S0-6: all that is due, soonest first, up to the bound."""
        due = {
            i: known.deadline_ns
            for i, known in self.known.items()
            if known.state == "in flight" and known.deadline_ns <= self.now_ns
        }
        consumers = self.window.expire(self.now_ns, count_max)
        gone = self.moved(due, count_max)
        assert consumers == {self.known[i].owner for i in gone} - {None}
        self.timeout_count += len(gone)
        self.marked.update(gone)
        self.make_ready_by_time({i: due[i] for i in gone})

    @rule(count_max=st.sampled_from([0, 1, 2, 1000]))
    def fire(self, count_max: int) -> None:
        """Never early."""
        due = {
            i: known.due_ns
            for i, known in self.known.items()
            if known.state == "deferred" and known.due_ns <= self.now_ns
        }
        fired = self.window.fire(self.now_ns, count_max)
        gone = self.moved(due, count_max)
        assert fired == len(gone)
        self.make_ready_by_time({i: due[i] for i in gone})

    def moved(self, due: dict[int, int], count_max: int) -> set[int]:
        """Which of ``due`` the window made ready: the soonest, as many as it may."""
        gone = {i for i in due if self.window.describe(i)[0] == "ready"}
        assert sorted(due[i] for i in gone) == sorted(due.values())[:count_max]
        return gone

    def make_ready_by_time(self, gone: dict[int, int]) -> None:
        for time_ns in sorted(set(gone.values())):
            self.make_ready({i for i in gone if gone[i] == time_ns})

    # ---- emptying, journal, restart

    @rule()
    def clear(self) -> None:
        self.window.clear(self.released)
        self.queue = [i for i in self.queue if i >= self.released]
        self.known.clear()
        self.ready.clear()
        self.marked.clear()

    @rule(at_exit=st.booleans())
    def drain(self, at_exit: bool) -> None:
        if at_exit:
            self.window.mark_all()
            self.marked.update(self.known)
        self.journal.add(self.window.drain())
        for index in self.marked & self.known.keys():
            self.told[index] = (self.known[index].attempts, self.known[index].due_ns)
        self.marked.clear()
        assert not self.window.changed
        assert self.journal.unfinished(self.log) == sorted([*self.known, *self.queue])
        self.compare_rebuilt(self.journal, self.told)

    @rule()
    def snapshot(self) -> None:
        """A compacted journal says the same, and attempts of everything delivered (R11)."""
        journal = Journal()
        journal.add(self.window.snapshot())
        told = {i: (known.attempts, known.due_ns) for i, known in self.known.items()}
        assert journal.unfinished(self.log) == sorted([*self.known, *self.queue])
        assert journal.marks == {i: mark for i, mark in told.items() if mark[0]}
        self.compare_rebuilt(journal, told)

    def compare_rebuilt(self, journal: Journal, told: dict[int, tuple[int, int]]) -> None:
        window = journal.rebuild(self.log)
        window.check()
        unfinished = sorted([*self.known, *self.queue])
        assert window.unfinished_count + window.queued_count == len(unfinished)
        for index in window.unfinished(0, 1 << 60, 1 << 20):
            attempts, due_ns = told.get(index, (0, 0))
            state = "deferred" if due_ns else "ready"
            assert window.describe(index) == (state, attempts, due_ns)

    @rule()
    def restart(self) -> None:
        """A clean exit and a start from the journal: nobody is connected, nothing is lost."""
        self.drain(at_exit=True)
        self.window = self.journal.rebuild(self.log)
        self.window.queued_count = sum(self.window.cursor <= i < self.released for i in self.queue)
        self.consumers, self.gone, self.answered = [], [], {}
        self.requeue_count = self.timeout_count = 0
        self.ready = []
        restored = self.window.unfinished(0, 1 << 60, 1 << 20)
        for index in restored:
            attempts, due_ns = self.told.get(index, (0, 0))
            self.known[index] = Known("deferred" if due_ns else "ready", attempts, due_ns)
            if not due_ns:
                self.ready.append({index})
        self.queue = [i for i in self.queue if i >= self.window.cursor]
        assert sorted(self.known) == restored

    # ---- after every step

    @invariant()
    def agrees(self) -> None:
        window = self.window
        window.check()
        states = [known.state for known in self.known.values()]
        assert window.in_flight_count == states.count("in flight")
        assert window.deferred_count == states.count("deferred")
        assert window.ready_count == states.count("ready") == sum(map(len, self.ready))
        assert window.unfinished_count == len(self.known)
        assert window.queued_count == sum(i < self.released for i in self.queue)
        assert window.depth == window.queued_count + window.ready_count
        assert window.requeue_count == self.requeue_count
        assert window.timeout_count == self.timeout_count
        assert window.unfinished(0, 1 << 60, 1 << 20) == sorted(self.known)
        for index, known in self.known.items():
            assert window.describe(index) == (known.state, known.attempts, known.due_ns)

    @invariant()
    def borders_agree(self) -> None:
        """low and cursor lie where the model's messages let them: over gaps, not over messages."""
        window = self.window
        assert window.low == (min(self.known) if self.known else window.cursor)
        assert max(self.known, default=-1) < window.cursor
        assert not self.queue or window.cursor <= self.queue[0]
        assert window.cursor <= max(self.end, self.journal.low)

    @invariant()
    def times_agree(self) -> None:
        deadlines = [k.deadline_ns for k in self.known.values() if k.state == "in flight"]
        dues = [k.due_ns for k in self.known.values() if k.state == "deferred"]
        assert self.window.next_deadline_ns == min(deadlines, default=NEVER_NS)
        assert self.window.next_deferral_ns == min(dues, default=NEVER_NS)

    @invariant()
    def consumers_agree(self) -> None:
        for consumer in self.consumers:
            owned = sum(k.state == "in flight" and k.owner is consumer for k in self.known.values())
            assert consumer.in_flight_count == owned
            counts = [consumer.message_count, consumer.finish_count, consumer.requeue_count]
            assert counts == self.answered[id(consumer)]


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = settings(max_examples=200, stateful_step_count=80, deadline=None)
