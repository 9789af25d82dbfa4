"""A broker without sockets, threads and real time: the test controls disk, turns and clocks.

    engine = Engine(seed=7)                       # files in memory, disk work in any order
    topic, made = engine.broker.create_topic("t")
    engine.settle()                               # run everything that can run at this time
    client = Client(engine, "t", "a", ready_count=5)
    engine.advance(SECOND)                        # timers fire one after another, in order
    engine.crash(LOSE)                            # the machine stops; unsynced data is lost
    engine.start()

Rule 1: nothing runs outside ``settle`` and ``advance``; both end, or fail.
Rule 2: up to 8 disk operations run concurrently, as in the daemon, and finish in any order.
"""

from __future__ import annotations

import heapq
import itertools
import random
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from penstock.clock import ManualClock
from penstock.core.ticket import Ticket
from penstock.core.window import Consumer, Window
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.context import Context, Supervisor
from penstock.engine.disk import run
from penstock.engine.options import Options
from penstock.engine.recovery import open_data_path
from penstock.engine.shared import Hooks
from penstock.engine.topic import Topic
from penstock.storage.datapath import DataPath
from penstock.storage.reserve import Reserve
from penstock.wire.ids import split_id
from tests.crash.lossy import KEEP, Crashed, LossyFiles

MS = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

ROOT = "/data"
RESERVE_SIZE = 64 * 1024
WORKS_AT_ONCE = 8
# More turns than any test needs: above this there is an endless loop.
TURN_COUNT_MAX = 200_000


class ManualTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualTurns:
    """An event loop: calls in order, timers by the manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self.calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, ManualTimer]] = []

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def after(self, delay_ns: int, call: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(call)
        at_ns = self._clock.monotonic_ns() + delay_ns
        heapq.heappush(self._timers, (at_ns, next(self._numbers), timer))
        return timer

    def next_ns(self) -> int | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def fire(self) -> bool:
        """Call the timers that are due now; False if there are none."""
        now_ns = self._clock.monotonic_ns()
        before = len(self.calls)
        while (next_ns := self.next_ns()) is not None and next_ns <= now_ns:
            self.soon(heapq.heappop(self._timers)[2].call)
        return len(self.calls) > before


class ScrambledDisk:
    """Finishes work out of order, as threads do; with a seed of 0, in order."""

    def __init__(self, turns: ManualTurns, seed: int) -> None:
        self._turns = turns
        self._random = random.Random(seed) if seed else None
        self.works: list[tuple[Callable[[], Any], Callable[..., None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[..., None]) -> None:
        self.works.append((work, done))

    def step(self) -> None:
        place = 0
        if self._random is not None:
            place = self._random.randrange(min(WORKS_AT_ONCE, len(self.works)))
        work, done = self.works.pop(place)
        result, error = run(work)
        if isinstance(error, Crashed):
            raise error
        self._turns.soon(lambda: done(result, error))


class StrictSupervisor(Supervisor):
    """The daemon logs a defect of one topic and continues; a test must fail."""

    def defect(self, what: str) -> None:
        raise


class Engine:
    """A broker on a data path with its parts, and everything it needs."""

    def __init__(self, files: Any = None, seed: int = 0, **options: Any) -> None:
        self.files: Any = files if files is not None else LossyFiles()
        self.root = options.pop("root", ROOT)
        if isinstance(self.files, LossyFiles):
            self.files.make_folder(self.root)
            self.files.sync_folder("")
        self.clock = ManualClock()
        self.options = Options(data_path=self.root, node_id=5, **options)
        self._seeds = random.Random(seed) if seed else None
        self.start()

    # Lifecycle

    @classmethod
    def of(cls, files: LossyFiles, wall_ns: int, **options: Any) -> Engine:
        """A broker on the files of another one, starting at ``wall_ns``."""
        engine = cls.__new__(cls)
        engine.files, engine.root = files, ROOT
        engine.clock = ManualClock(wall_ns)
        engine.options = Options(data_path=ROOT, node_id=5, **options)
        engine._seeds = None
        engine.start()
        return engine

    def start(self) -> None:
        """Recover the data path, as the daemon does, and settle."""
        self.clock.advance(MS)  # a start takes time
        self.turns = ManualTurns(self.clock)
        self.disk = ScrambledDisk(self.turns, self._seeds.getrandbits(32) if self._seeds else 0)
        self.data = DataPath(self.files, self.root)
        self.clients: set[Client] = set()
        around = self.data, self.files, self.disk, self.seam(), self.clock, StrictSupervisor()
        self.components = Components(Context(self.options, *around))
        self.broker = self.components.broker
        self.components.health.reserve = Reserve(self.files, self.data.reserve, RESERVE_SIZE)
        self.hook(self.components.shared.hooks)
        open_data_path(self.components)
        self.components.start()
        self.settle()

    def seam(self) -> Any:
        """What gives the engine its turns."""
        return self.turns

    def hook(self, hooks: Hooks) -> None:
        """For tests that observe the topics."""

    def crash(self, mode: str = KEEP, seed: int = 0) -> None:
        """Stop immediately; only the files remain, as ``mode`` leaves them."""
        self.files.crash(mode, seed)

    def kill(self) -> None:
        """Crash with real files."""
        self.files.close()

    def exit(self) -> None:
        """A clean shutdown, as after SIGTERM."""
        self.components.refuse_all()
        for client in list(self.clients):
            client.close()
        self.settle()
        error = self.done(self.broker.save_all())
        assert error is None, error
        self.files.close()

    # Time

    def settle(self) -> None:
        """Run turns, disk and due timers until nothing is left to do."""
        for _ in range(TURN_COUNT_MAX):
            if self.turns.calls:
                self.turns.calls.popleft()()
            elif self.disk.works:
                self.disk.step()
            elif not self.turns.fire():
                return
        raise AssertionError("the engine never becomes idle")

    def advance(self, duration_ns: int, seen: Callable[[], None] = lambda: None) -> None:
        """Advance the time, timer by timer; ``seen`` is called after each."""
        end_ns = self.clock.monotonic_ns() + duration_ns
        while True:
            self.settle()
            seen()
            next_ns = self.turns.next_ns()
            if next_ns is None or next_ns > end_ns:
                break
            self.clock.advance(next_ns - self.clock.monotonic_ns())
        self.clock.advance(end_ns - self.clock.monotonic_ns())
        self.settle()
        seen()

    def sleep(self, duration_ns: int) -> None:
        """Suspend the machine: time jumps, then every due timer fires once."""
        self.settle()
        self.clock.advance(duration_ns)
        self.settle()

    def done(self, ticket: Ticket) -> Exception | None:
        """Wait for a ticket; return its error."""
        self.settle()
        assert ticket.done, "never settled"
        return ticket.error

    # Inspection

    def topic(self, name: str) -> Topic:
        topic = self.broker.topics[name]
        assert isinstance(topic, Topic)
        return topic

    def publish(self, topic: str, *bodies: bytes) -> Exception | None:
        return self.done(self.broker.create_topic(topic)[0].publish(list(bodies)))

    def defer(self, topic: str, delay_ns: int, body: bytes) -> Exception | None:
        made, _ = self.broker.create_topic(topic)
        return self.done(made.defer(body, delay_ns))

    def logged(self, topic: str) -> dict[int, bytes]:
        """All messages in a topic's log, by index."""
        log = self.topic(topic).log
        found = {}
        for start, end in log.existing(log.first, log.end):
            for index in range(start, end):
                frame = log.frame(index, wait=True)
                if frame:
                    found[index] = frame[34:]
        return found

    def held(self, topic: str) -> set[bytes]:
        """The messages that the topic has not released to its channels."""
        released = self.topic(topic).released
        return {body for index, body in self.logged(topic).items() if index >= released}

    def unfinished(self, topic: str, channel: str) -> dict[bytes, Unfinished]:
        """The messages that the channel has not finished."""
        window = self.topic(topic).channels[channel].window
        released = self.topic(topic).released
        found = {}
        for index, body in self.logged(topic).items():
            if index < released and not _is_finished(window, index):
                state = window.describe(index) or ("queued", 0, 0)
                found[body] = Unfinished(index, *state)
        return found

    def passed_over(self, topic: str, channel: str) -> set[bytes]:
        """The unreleased messages that the channel will not deliver."""
        window = self.topic(topic).channels[channel].window
        released = self.topic(topic).released
        return {
            body
            for index, body in self.logged(topic).items()
            if index >= released and _is_finished(window, index)
        }

    def check(self) -> None:
        """Check the invariants of all parts."""
        for topic in self.broker.topics.values():
            if isinstance(topic, Topic):
                topic.log.check()
            for channel in topic.channels.values():
                channel.window.check()
                if isinstance(topic, Topic) and channel.plain and not topic.log.corrupt_count:
                    check_counts(topic, channel)


def check_counts(topic: Topic, channel: Channel) -> None:
    """What a channel counts as queued, or will not get, is exactly what is in the log."""

    def stored(start: int, end: int) -> int:
        skipped = [(max(a, start), min(b, end)) for a, b in window.skipped if a < end and b > start]
        count = topic.log.count_between
        return count(start, end) - sum(count(*run) for run in skipped) if start < end else 0

    window, released, end = channel.window, topic.released, topic.end
    assert window.queued_count == stored(window.cursor, released), f"{channel.name}: queued"
    held = channel.waiting_between(max(window.cursor, released), end)
    assert held == stored(max(window.cursor, released), end), f"{channel.name}: held back"


def _is_finished(window: Window, index: int) -> bool:
    low, runs, _ = window.snapshot()
    return index < low or any(a <= index < b for a, b in struct.iter_unpack(">QQ", runs))


class Unfinished(NamedTuple):
    index: int
    state: str
    attempts: int
    due_ns: int


class Received(NamedTuple):
    index: int
    attempts: int
    body: bytes
    id: bytes
    now_ns: int
    wall_ns: int


class Client:
    """A consumer: receives messages and passes its answers to the window, like a connection."""

    def __init__(
        self,
        engine: Engine,
        topic: str,
        channel: str,
        ready_count: int = 1,
        msg_timeout_ns: int = MINUTE,
    ) -> None:
        self.engine = engine
        self.name = (topic, channel)
        self.inbox: list[Received] = []
        self.closed = False
        made, _ = engine.broker.create_topic(topic)
        self.channel: Channel
        self.channel, self.ticket = made.create_channel(channel)
        self.consumer = Consumer(self, msg_timeout_ns)
        self.channel.join(self.consumer)
        engine.clients.add(self)
        self.ready(ready_count)

    def ready(self, count: int) -> None:
        self.consumer.ready_count = count
        self.channel.offer(self.consumer)

    def send(self, parts: list[bytes | memoryview]) -> None:
        clock = self.engine.clock
        for frame in _frames(b"".join(parts)):
            attempts, id = struct.unpack_from(">H16s", frame, 16)
            found = split_id(id)
            assert found is not None and found[0] == self.engine.options.node_id, id
            self.inbox.append(
                Received(found[1], attempts, frame[34:], id, clock.monotonic_ns(), clock.wall_ns())
            )

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.consumer.writable = False
            self.channel.leave(self.consumer)
            self.engine.clients.discard(self)

    def finish(self, index: int) -> int:
        status = self.channel.window.finish_index(
            self.consumer, index, self.engine.options.node_id, self.engine.clock.wall_ns()
        )
        self.channel.offer(self.consumer)
        return status

    def requeue(self, index: int, delay_ns: int = 0) -> int:
        due_ns = self.engine.clock.wall_ns() + delay_ns if delay_ns else 0
        status = self.channel.window.requeue_index(
            self.consumer,
            index,
            self.engine.options.node_id,
            due_ns,
            self.engine.clock.wall_ns(),
        )
        self.channel.offer(self.consumer)
        return status

    def bury(self, index: int, text: str = "") -> int:
        status = self.channel.window.bury_index(
            self.consumer, index, self.engine.options.node_id, self.engine.clock.wall_ns(), text
        )
        self.channel.offer(self.consumer)
        return status

    def touch(self, index: int) -> int:
        options = self.engine.options
        status = self.channel.window.touch_index(
            self.consumer,
            index,
            options.node_id,
            self.engine.clock.monotonic_ns(),
            self.consumer.msg_timeout_ns,
            options.max_msg_timeout_ns,
        )
        self.channel.offer(self.consumer)
        return status

    def take(self) -> list[Received]:
        """The messages received since the last call."""
        taken, self.inbox = self.inbox, []
        return taken


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield data[at:end]
        at = end
