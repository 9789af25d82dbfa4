"""Nsqd's compiled turn against a naive broker: packets cut anywhere, turns and disk in any order.

Clients, poller, writer and channels are nsqd's; the test has the other ends of the sockets, the
disk and the clocks (tests/support/turns.py).  Each publish is answered once and in order; what was
answered OK is delivered until it is finished, also after a kill; nothing is invented (R1, R6, R27,
R28).
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.core.appender import INDEX_BITS
from tests.crash.lossy import KEEP, LOSE
from tests.support.bodies import sized
from tests.support.engine import MS
from tests.support.turns import Peer, TurnEngine

ANSWERS = st.sampled_from(["FIN", "FIN", "FIN", "REQ", "TOUCH"])
ERRORS = {b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"}
CUTS = st.lists(st.integers(1, 60), max_size=6)


@dataclass(eq=False)
class Producer:
    peer: Peer
    unanswered: deque[list[bytes]] = field(default_factory=deque)


@dataclass(eq=False)
class Consumer:
    peer: Peer
    in_flight: dict[bytes, bytes] = field(default_factory=dict)  # body by id


class TurnMachine(RuleBasedStateMachine):
    engine: TurnEngine

    @initialize(seed=st.integers(1, 1000), sync_every=st.sampled_from([1, 2500]))
    def begin(self, seed: int, sync_every: int) -> None:
        self.engine = TurnEngine(seed=seed, sync_every=sync_every, max_bytes_per_file=4000)
        self.lost_at_end = LOSE if sync_every == 1 else KEEP
        topic, _ = self.engine.broker.create_topic("t")
        topic.create_channel("c")
        self.engine.settle()
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.count = 0
        self.sent: set[bytes] = set()
        self.stored: set[bytes] = set()
        self.owners: dict[bytes, Consumer] = {}  # who got it last, by id
        # Those that must not be delivered again; after a kill, some of the others may be.
        self.finished: set[bytes] = set()
        self.ever_finished: set[bytes] = set()
        self.failed_ids: set[bytes] = set()  # of the FINs of one answer
        self.produce()
        self.consume(7)

    # What clients do

    @rule()
    def produce(self) -> None:
        self.producers.append(Producer(self.connect(b"  V2NOP\n")))

    @rule(ready=st.sampled_from([1, 2, 7, 2500]))
    def consume(self, ready: int) -> None:
        self.consumers.append(Consumer(self.connect(b"  V2SUB t c\nRDY %d\n" % ready)))

    def connect(self, first: bytes) -> Peer:
        peer = self.engine.connect()
        peer.send(first)
        return peer

    @precondition(lambda self: self.producers)
    @rule(
        who=st.integers(0, 99),
        batches=st.lists(st.integers(1, 4), min_size=1, max_size=8),
        cuts=CUTS,
        size=st.integers(0, 300),
    )
    def publish(self, who: int, batches: list[int], cuts: list[int], size: int) -> None:
        producer = self.producers[who % len(self.producers)]
        data = b""
        for count in batches:
            bodies = [self.body(size) for _ in range(count)]
            producer.unanswered.append(bodies)
            if count == 1:
                data += b"PUB t\n" + sized(bodies[0])
            else:
                data += b"MPUB t\n" + sized(struct.pack(">I", count) + b"".join(map(sized, bodies)))
        self.send(producer.peer, data, cuts)

    def body(self, size: int) -> bytes:
        self.count += 1
        body = b"%d:" % self.count + b"x" * size
        self.sent.add(body)
        return body

    def send(self, peer: Peer, data: bytes, cuts: list[int]) -> None:
        """In packets of these sizes, with turns between them."""
        for cut in cuts:
            peer.send(data[:cut])
            data = data[cut:]
            self.engine.settle()
        peer.send(data)

    @precondition(lambda self: self.consumers)
    @rule(who=st.integers(0, 99), answers=st.lists(ANSWERS, min_size=1, max_size=20), cuts=CUTS)
    def answer(self, who: int, answers: list[str], cuts: list[int]) -> None:
        self.settle()
        consumer = self.consumers[who % len(self.consumers)]
        data = b""
        late: dict[bytes, bytes] = {}
        for answer, (id, body) in zip(answers, list(consumer.in_flight.items()), strict=False):
            data += b"%s %s%s\n" % (answer.encode(), id, b" 0" if answer == "REQ" else b"")
            if answer != "TOUCH":
                del consumer.in_flight[id]
            if answer == "FIN" and not self.in_flight(id, consumer):
                late[id] = body
            elif answer == "FIN":
                self.finish(body)
        self.failed_ids.clear()
        self.send(consumer.peer, data, cuts)
        self.settle()
        assert self.failed_ids <= late.keys()
        # A message that had timed out may have been delivered again before its FIN was received, to
        # this consumer or to another.
        for id in late.keys() - self.failed_ids:
            consumer.in_flight.pop(id, None)
            self.finish(late[id])

    def finish(self, body: bytes) -> None:
        self.finished.add(body)
        self.ever_finished.add(body)

    def in_flight(self, id: bytes, consumer: Consumer) -> bool:
        window = self.engine.topic("t").channels["c"].window
        found = window.describe(int(id, 16) & (1 << INDEX_BITS) - 1)
        return found is not None and found[0] == "in flight" and self.owners[id] is consumer

    @precondition(lambda self: self.producers or self.consumers)
    @rule(who=st.integers(0, 99))
    def leave(self, who: int) -> None:
        everyone: list[Producer | Consumer] = [*self.producers, *self.consumers]
        one = everyone[who % len(everyone)]
        one.peer.close()
        if isinstance(one, Producer):
            self.producers.remove(one)
        else:
            self.consumers.remove(one)

    # What time and machines do

    @rule()
    def settle(self) -> None:
        self.engine.settle()
        for producer in self.producers:
            for kind, contents in producer.peer.take():
                assert (kind, contents) == (0, b"OK")
                self.stored.update(producer.unanswered.popleft())
            assert not producer.unanswered and not producer.peer.closed
        for consumer in self.consumers:
            for kind, contents in consumer.peer.take():
                self.received(consumer, kind, contents)
            assert not consumer.peer.closed

    def received(self, consumer: Consumer, kind: int, contents: bytes) -> None:
        if kind == 0:
            assert contents == b"OK"  # of SUB
        elif kind == 1:
            # The message timed out before its answer.
            code, command, id, *_ = contents.split(b" ")
            assert code in ERRORS
            if command == b"FIN":
                self.failed_ids.add(id)
        else:
            id, body = contents[10:26], contents[26:]
            assert body in self.sent and body not in self.finished
            consumer.in_flight[id] = body
            self.owners[id] = consumer

    @rule(seconds=st.sampled_from([0.01, 1.0, 20.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.settle()
        left_ns = round(seconds * 1e9)
        while left_ns > 0:
            step_ns = min(left_ns, 10_000 * MS)
            self.engine.advance(step_ns)
            self.settle()  # answers heartbeats
            left_ns -= step_ns

    @rule()
    def kill(self) -> None:
        self.settle()
        self.engine.stop()
        self.engine.crash(self.lost_at_end)
        self.engine.start()
        self.producers.clear()
        self.consumers.clear()
        # The last finishes may not have been journaled.
        self.finished.clear()

    def teardown(self) -> None:
        if not hasattr(self, "producers"):
            return
        self.settle()
        missing = self.stored - self.ever_finished
        for consumer in self.consumers:
            consumer.peer.close()
        consumer = Consumer(self.connect(b"  V2SUB t c\nRDY 2500\n"))
        self.consumers = [consumer]
        window = self.engine.topic("t").channels["c"].window
        for _ in range(20):  # what timed out may wait before it is delivered again
            self.wait(1.0)
            missing -= set(consumer.in_flight.values())
            finished = b"".join(b"FIN %s\n" % id for id in consumer.in_flight)
            consumer.in_flight.clear()
            self.send(consumer.peer, finished, [])
            self.settle()
            if not window.queued_count + window.unfinished_count:
                break
            self.wait(70.0)
        assert not missing
        assert window.queued_count == window.unfinished_count == 0
        self.engine.check()
        self.engine.stop()


TestTurn = TurnMachine.TestCase
TestTurn.settings = settings(max_examples=250, stateful_step_count=30, deadline=None)
