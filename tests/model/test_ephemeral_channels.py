"""Ephemeral channels that start and are sought anywhere, against a set of indexes (R23, R15, R17).

Its topic retains everything, is paused and emptied, and gets deferred messages, of which the
channel does not get those that were accepted before it was emptied.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.catalog.seek import Search, open_channel, search_start
from penstock.engine.topic import Topic
from penstock.settings.places import EARLIEST, INDEX, LATEST, QUEUED, Place
from penstock.settings.policy import DEFAULT
from tests.support.engine import HOUR, SECOND, Client, Engine

DONE = 0
NAME = "e#ephemeral"
PLACES = st.one_of(
    st.just(Place(EARLIEST)),
    st.just(Place(LATEST)),
    st.integers(0, 40).map(lambda number: Place(INDEX, number)),  # of the messages so far
)


class EphemeralMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 50), file_size=st.sampled_from([300, 900, 1 << 20]))
    def begin(self, seed: int, file_size: int) -> None:
        self.engine = Engine(seed=seed, max_bytes_per_file=file_size)
        self.engine.broker.create_topic("t")[0].create_channel("durable")
        self.engine.settle()
        self.topic.apply_policy(replace(DEFAULT, retain_ns=HOUR))
        self.left: set[int] = set()
        self.known: set[int] = set()
        self.waiting: set[bytes] = set()  # deferred
        self.void: set[bytes] = set()
        self.count = 0
        self.client: Client | None = None

    @property
    def topic(self) -> Topic:
        return self.engine.topic("t")

    def look(self) -> None:
        """Note what is new in the log."""
        self.engine.settle()
        for index, body in self.engine.logged("t").items():
            if index not in self.known:
                self.known.add(index)
                self.waiting.discard(body)
                if body not in self.void:
                    self.left.add(index)

    def place(self, place: Place) -> Place:
        if place.kind != INDEX:
            return place
        indexes = [*sorted(self.known), self.topic.end]
        return Place(INDEX, indexes[min(place.number, len(indexes) - 1)])

    @rule(count=st.integers(1, 5), size=st.sampled_from([1, 100]))
    def publish(self, count: int, size: int) -> None:
        assert self.engine.publish("t", *[bytes(size)] * count) is None

    @rule(seconds=st.integers(1, 3))
    def defer(self, seconds: int) -> None:
        self.count += 1
        body = b"deferred %d" % self.count
        self.waiting.add(body)
        assert self.engine.defer("t", seconds * SECOND, body) is None

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        assert self.engine.done(self.topic.pause(paused)) is None

    @rule()
    def empty_topic(self) -> None:
        self.look()
        held = range(self.topic.released, self.topic.end)
        assert self.engine.done(self.topic.empty()) is None
        self.left -= set(held)
        self.waiting.clear()

    @rule(place=st.one_of(PLACES, st.just(Place(QUEUED))), ready=st.integers(0, 8))
    def create(self, place: Place, ready: int) -> None:
        if self.client is not None:
            return
        self.look()
        search = search_start(self.topic, NAME, self.place(place))
        self.engine.settle()
        start = self.topic.released if search is None else search.start().at
        assert self.engine.done(open_channel(self.topic, NAME, search)[1]) is None
        self.left = {index for index in self.known if index >= start}
        self.void = set()
        self.client = Client(self.engine, "t", NAME, ready, HOUR)

    @rule(place=PLACES)
    def seek(self, place: Place) -> None:
        if self.client is None:
            return
        self.look()
        search = Search(self.topic, self.place(place))
        assert self.engine.done(search) is None
        start = search.start()
        assert start.whole
        self.client.take()
        assert self.engine.done(self.topic.rewind(self.client.channel, start.at)) is None
        self.left = {index for index in self.known if index >= start.at}

    @rule()
    def empty(self) -> None:
        if self.client is None:
            return
        self.look()
        released = self.topic.released
        assert self.engine.done(self.client.channel.empty()) is None
        self.client.take()
        self.left = {index for index in self.left if index >= released}
        self.void |= self.waiting

    @rule(paused=st.booleans())
    def skip(self, paused: bool) -> None:
        """A message becomes due that was deferred before the channel was emptied."""
        self.pause(paused)
        self.defer(1)
        self.empty()
        self.pass_time(2)

    @rule(ready=st.integers(0, 8))
    def ready(self, ready: int) -> None:
        if self.client is not None:
            self.client.ready(ready)

    @rule(what=st.lists(st.sampled_from("FFFFRD"), max_size=8))
    def answer(self, what: list[str]) -> None:
        if self.client is None:
            return
        self.look()
        for number, received in enumerate(self.client.take()):
            assert received.index in self.left
            verb = what[number] if number < len(what) else "F"
            if verb == "F":
                assert self.client.finish(received.index) == DONE
                self.left.discard(received.index)
            else:
                delay_ns = 2 * SECOND if verb == "D" else 0
                assert self.client.requeue(received.index, delay_ns) == DONE

    @rule()
    def leave(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None
            self.engine.settle()
            assert NAME not in self.topic.channels

    @rule(seconds=st.integers(1, 5))
    def pass_time(self, seconds: int) -> None:
        self.engine.advance(seconds * SECOND)

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.look()
        self.engine.check()
        if self.client is not None:
            channel = self.client.channel
            shown = {index for index in self.left if index < self.topic.released}
            busy = channel.in_flight_count + channel.window.deferred_count
            assert channel.depth + busy == len(shown)

    def teardown(self) -> None:
        if not hasattr(self, "engine") or self.client is None:
            return
        self.pause(False)
        self.client.ready(100)
        for _ in range(10):
            self.answer([])
            self.engine.advance(2 * SECOND)
            self.look()
        self.answer([])
        assert not self.left
        assert self.engine.publish("t", b"last") is None
        assert [received.body for received in self.client.take()] == [b"last"]


EphemeralMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestEphemeralChannels = EphemeralMachine.TestCase
