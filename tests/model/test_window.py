"""The delivery window against dicts and lists, and its journal against a replay.

The machine publishes with gaps, lets consumers come and go, answers rightly and wrongly, lets
time pass, empties and skips, sets limits of attempts, buries, kicks and discards; after every step
all counts are equal and check() holds.  At any moment the window can be rebuilt from what drain()
told so far, as a restart does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.buried import ATTEMPTS, BURY, EXPIRED, REASONS, Buried
from penstock.core.deadlines import NEVER_NS
from penstock.core.window import FAIL_BURY, FAIL_DROP, FAIL_MOVE, Consumer, Window
from penstock.storage.burials import Burials
from tests.support.blocks import NODE_ID, block_of, frame, read_frames, read_marks, read_runs

DONE, NOT_IN_FLIGHT, NOT_OWNER, NO_ROOM = 0, 1, 2, 3
WAIT_NS = 10
NO_ROOM_WAIT_NS = 60_000_000_000
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
    kicked: bool = False
    lost: bool = False  # a delivery ended without an answer
    alone: bool = False  # ready, to be delivered alone


@dataclass
class Limits:
    """A policy."""

    attempts_max: int = 0
    on_failed: int = FAIL_BURY
    buried_max: int = 1000
    backoff: tuple[int, int] = (0, 0)

    def wait_ns(self, attempts: int) -> int:
        least, most = self.backoff
        return min(least * 2 ** (attempts - 1), max(least, most))


@dataclass
class Journal:
    """PROGRESS records replayed: below low and in runs is finished, marks tell attempts."""

    low: int = 0
    finished: set[int] = field(default_factory=set)
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    burials: Burials = field(default_factory=Burials)

    def add(self, bodies: list[bytes], record: tuple[int, bytes, bytes]) -> None:
        for body in bodies:
            self.burials.bury(body)
        low, runs, marks = record
        self.low = max(self.low, low)
        for start, end in read_runs(runs):
            assert low <= start < end
            self.finished.update(range(start, end))
        self.burials.finish(low, read_runs(runs))
        self.marks.update(read_marks(marks))

    def unbury(self, runs: bytes, kicked: bool) -> None:
        for index in self.burials.unbury(read_runs(runs), kicked=kicked):
            self.marks.pop(index, None)

    def unfinished(self, log: list[int]) -> list[int]:
        kicked = set(self.burials.kicked())
        return [i for i in log if i in kicked or (i >= self.low and i not in self.finished)]

    def rebuild(self, log: list[int]) -> Window:
        """A window as a restart makes it: what was touched is restored, the rest is queued."""
        unfinished = self.unfinished(log)
        kicked = self.burials.kicked()
        end = max([self.low, *(i + 1 for i in (self.finished | self.marks.keys()))])
        window = Window(min([self.low, *kicked]))
        buried = Buried()
        for body in self.burials.table.snapshot():
            buried.load(body)
        window.restore_buried(buried)
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
        self.limits = Limits()
        self.buried: dict[int, tuple[str, int, int]] = {}  # reason, attempts, time
        self.buried_total = dict.fromkeys(REASONS.values(), 0)
        self.kicked_count = self.dropped_count = self.no_room_count = 0
        self.lone: list[set[int]] = []  # as ready, for those to be delivered alone

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
            known.lost = True
            wait = 0
            if known.attempts > 1:
                wait = min(WAIT_NS * 2 ** (known.attempts - 2), consumer.msg_timeout_ns)
            wait = max(wait, self.limits.wait_ns(known.attempts))
            ready += self.fail(index, self.now_ns + wait if wait else 0)
        assert back == ready
        assert consumer.in_flight_count == 0

    def pick(self, who: int) -> Consumer:
        return self.consumers[who % len(self.consumers)]

    def make_ready(self, indexes: set[int]) -> None:
        lone = set()
        for index in indexes:
            known = self.known[index]
            known.state, known.due_ns = "ready", 0
            known.alone = self.must_be_alone(known)
            if known.alone:
                lone.add(index)
        if lone:
            self.lone.append(lone)
        if indexes - lone:
            self.ready.append(indexes - lone)

    def must_be_alone(self, known: Known) -> bool:
        limit = self.limits.attempts_max
        return limit > 0 and known.lost and known.attempts + 1 >= limit

    # ---- failures, buried messages

    def fail(self, index: int, due_ns: int) -> bool:
        """A delivery failed; whether the message is ready again."""
        known, limits = self.known[index], self.limits
        if limits.attempts_max and known.attempts >= limits.attempts_max:
            if limits.on_failed == FAIL_DROP:
                self.dropped_count += 1
                del self.known[index]
                return False
            if len(self.buried) < limits.buried_max:
                self.bury_as(index, ATTEMPTS)
                return False
            self.no_room_count += 1
            due_ns = max(due_ns, self.now_ns + NO_ROOM_WAIT_NS)
        self.marked.add(index)
        if due_ns:
            known.state, known.due_ns = "deferred", due_ns
            return False
        self.make_ready({index})
        return True

    def bury_as(self, index: int, reason: int, attempts: int | None = None) -> None:
        known = self.known.pop(index, None)
        if attempts is None:
            assert known is not None
            attempts = known.attempts
        self.buried[index] = (REASONS[reason], attempts, self.now_ns)
        self.buried_total[REASONS[reason]] += 1

    @rule(
        attempts_max=st.sampled_from([0, 1, 2, 2, 3, 4]),
        on_failed=st.sampled_from([FAIL_BURY, FAIL_BURY, FAIL_DROP, FAIL_MOVE]),
        buried_max=st.sampled_from([2, 1000, 1000]),
        backoff=st.sampled_from([(0, 0), (5, 20), (7, 1)]),
    )
    def set_policy(
        self, attempts_max: int, on_failed: int, buried_max: int, backoff: tuple[int, int]
    ) -> None:
        self.limits = Limits(attempts_max, on_failed, buried_max, backoff)
        self.window.set_policy(attempts_max, on_failed, buried_max, *backoff)
        lone, self.lone = self.lone, []
        for indexes in lone:
            self.make_ready(indexes)

    @precondition(lambda self: self.ready)
    @rule()
    def set_apart(self) -> None:
        """Messages that were ready before the limit was set."""
        index = self.next_ready()
        alone = self.must_be_alone(self.known[index])
        assert self.window.set_apart() == alone
        if alone:
            self.make_ready({index})
        else:
            self.ready.insert(0, {index})

    @precondition(lambda self: self.consumers)
    @rule(**ANSWER)
    def bury(self, who: int, what: int, node_id: int) -> None:
        consumer, index = self.choose(who, what)
        expected = self.expected(consumer, index, node_id)
        if expected == DONE and len(self.buried) >= self.limits.buried_max:
            expected = NO_ROOM
            self.no_room_count += 1
        assert self.window.bury_index(consumer, index, node_id, self.now_ns, "no") == expected
        if expected == DONE:
            self.bury_as(index, BURY)

    @precondition(lambda self: self.ready)
    @rule()
    def bury_ready(self) -> None:
        full = len(self.buried) >= self.limits.buried_max
        assert self.window.bury_ready(EXPIRED, self.now_ns) != full
        if full:
            self.no_room_count += 1
            return
        (index,) = set().union(*self.ready) & set(self.window.buried.indexes())
        assert index in self.ready[0]
        self.ready[0].remove(index)
        if not self.ready[0]:
            self.ready.pop(0)
        self.bury_as(index, EXPIRED)

    @precondition(lambda self: any(i < self.released for i in self.queue))
    @rule()
    def bury_fresh(self) -> None:
        full = len(self.buried) >= self.limits.buried_max
        assert self.window.bury_fresh(self.queue[0], EXPIRED, self.now_ns) != full
        if full:
            self.no_room_count += 1
        else:
            self.bury_as(self.queue.pop(0), EXPIRED, 0)

    @precondition(lambda self: self.buried)
    @rule(
        start=st.integers(0, 40),
        count=st.integers(1, 8),
        count_max=st.integers(1, 8),
        reason=st.sampled_from([0, 0, ATTEMPTS, BURY, EXPIRED]),
        kicking=st.booleans(),
    )
    def unbury(self, start: int, count: int, count_max: int, reason: int, kicking: bool) -> None:
        end = start + count
        self.drain(at_exit=False)
        wanted = [
            i
            for i in sorted(self.buried)
            if start <= i < end
            and reason in (0, *(r for r in REASONS if REASONS[r] == self.buried[i][0]))
        ]
        take = self.window.kick if kicking else self.window.discard
        taken, after, runs = take(start, end, count_max, reason)
        wanted, left = wanted[:count_max], wanted[count_max:]
        assert taken == len(wanted)
        assert after <= left[0] if left else after <= end
        self.journal.unbury(runs, kicking)
        for index in wanted:
            del self.buried[index]
            if not kicking:
                continue
            self.kicked_count += 1
            self.told.pop(index, None)
            if index < self.window.cursor:
                self.known[index] = Known("ready", 0, kicked=True)
                self.marked.add(index)
                self.make_ready({index})
            else:
                self.queue = sorted([*self.queue, index])

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
        status = self.expected(consumer, index, node_id)
        found = self.window.requeue_index(consumer, index, node_id, due_ns, self.now_ns)
        assert found == status
        if status == DONE:
            self.requeue_count += 1
            self.answered[id(consumer)][2] += 1
            wait = self.limits.wait_ns(self.known[index].attempts)
            if wait and not due_ns:
                due_ns = self.now_ns + wait
            self.fail(index, due_ns)

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
        consumers = self.window.expire(self.now_ns, count_max, self.now_ns)
        gone = {i for i in due if (self.window.describe(i) or ("gone",))[0] != "in flight"}
        assert sorted(due[i] for i in gone) == sorted(due.values())[:count_max]
        assert consumers == {self.known[i].owner for i in gone} - {None}
        self.timeout_count += len(gone)
        ready = {}
        for index in sorted(gone, key=lambda i: due[i]):
            known = self.known[index]
            known.lost, known.owner = True, None
            wait = self.limits.wait_ns(known.attempts)
            full = known.attempts >= self.limits.attempts_max > 0
            if wait or full:
                self.fail(index, self.now_ns + wait if wait else 0)
            else:
                self.marked.add(index)
                ready[index] = due[index]
        self.make_ready_by_time(ready)

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
        self.lone.clear()
        self.marked.clear()

    @rule(at_exit=st.booleans())
    def drain(self, at_exit: bool) -> None:
        if at_exit:
            self.window.mark_all()
            self.marked.update(self.known)
            for known in self.known.values():
                if known.attempts >= self.limits.attempts_max > 0:
                    known.attempts = self.limits.attempts_max - 1  # this exit is no failure
        self.journal.add(self.window.drain_buried(), self.window.drain())
        for index in self.marked & self.known.keys():
            self.told[index] = self.mark_of(self.known[index])
        self.marked.clear()
        assert not self.window.changed
        assert self.journal.unfinished(self.log) == sorted([*self.known, *self.queue])
        self.compare_rebuilt(self.journal, self.told)

    def mark_of(self, known: Known) -> tuple[int, int]:
        """Attempts and due time in the journal: a last attempt in flight has not failed yet."""
        attempts = known.attempts
        if known.state == "in flight" and attempts >= self.limits.attempts_max > 0:
            attempts = self.limits.attempts_max - 1
        return attempts, known.due_ns

    @rule()
    def snapshot(self) -> None:
        """A compacted journal says the same, and attempts of everything delivered (R11)."""
        journal = Journal()
        buried = self.window.buried
        # What was buried since the last drain() is in the snapshot, and is not drained again.
        for body in self.window.drain_buried():
            self.journal.burials.bury(body)
        journal.add(list(buried.snapshot()) if buried else [], self.window.snapshot())
        told = {i: self.mark_of(known) for i, known in self.known.items()}
        assert journal.unfinished(self.log) == sorted([*self.known, *self.queue])
        # The bits of due_ns are inverted for what was kicked.
        assert journal.marks == {
            i: (mark[0], ~mark[1] if self.known[i].kicked else mark[1])
            for i, mark in told.items()
            if mark[0] or self.known[i].kicked
        }
        self.compare_rebuilt(journal, told)

    def compare_rebuilt(self, journal: Journal, told: dict[int, tuple[int, int]]) -> None:
        window = journal.rebuild(self.log)
        window.check()
        unfinished = sorted([*self.known, *self.queue])
        assert window.unfinished_count + window.queued_count == len(unfinished)
        self.compare_buried(window)
        for index in window.unfinished(0, 1 << 60, 1 << 20):
            attempts, due_ns = told.get(index, (0, 0))
            state = "deferred" if due_ns else "ready"
            assert window.describe(index) == (state, attempts, due_ns)

    def compare_buried(self, window: Window) -> None:
        found = window.buried.page(-1, 1000) if window.buried is not None else []
        assert {one[0]: (one[1], one[3], one[4]) for one in found} == self.buried

    @rule()
    def restart(self) -> None:
        """A clean exit and a start from the journal: nobody is connected, nothing is lost."""
        self.drain(at_exit=True)
        self.window = self.journal.rebuild(self.log)
        self.window.queued_count = sum(self.window.cursor <= i < self.released for i in self.queue)
        self.consumers, self.gone, self.answered = [], [], {}
        self.requeue_count = self.timeout_count = 0
        self.kicked_count = self.dropped_count = self.no_room_count = 0
        self.buried_total = dict.fromkeys(REASONS.values(), 0)
        self.limits = Limits()
        self.ready, self.lone = [], []
        restored = self.window.unfinished(0, 1 << 60, 1 << 20)
        for index in restored:
            attempts, due_ns = self.told.get(index, (0, 0))
            state = "deferred" if due_ns else "ready"
            kicked = self.journal.marks.get(index, (0, 0))[1] < 0
            self.known[index] = Known(state, attempts, due_ns, lost=attempts > 0, kicked=kicked)
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
        lone_count = sum(map(len, self.lone))
        assert window.ready_count == states.count("ready") == lone_count + sum(map(len, self.ready))
        assert window.lone_count == lone_count
        assert window.next_lone is None or window.next_lone in self.lone[0]
        assert window.unfinished_count == len(self.known)
        assert window.queued_count == sum(i < self.released for i in self.queue)
        assert window.depth == window.queued_count + window.ready_count
        assert window.requeue_count == self.requeue_count
        assert window.timeout_count == self.timeout_count
        assert window.unfinished(0, 1 << 60, 1 << 20) == sorted(self.known)
        for index, known in self.known.items():
            assert window.describe(index) == (known.state, known.attempts, known.due_ns)

    @invariant()
    def burials_agree(self) -> None:
        window = self.window
        self.compare_buried(window)
        assert window.buried_count == len(self.buried)
        assert window.buried_total == self.buried_total
        assert window.kicked_count == self.kicked_count
        assert window.dropped_count == self.dropped_count
        assert window.no_room_count == self.no_room_count

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
