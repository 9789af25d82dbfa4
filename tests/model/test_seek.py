"""Seeks, and channels that start anywhere, against sets of indexes (R22, R23, R5).

Consumers finish, requeue, bury and time out, what is buried is kicked or discarded, segments go
when all have finished them and the policy, which changes, does not retain them, topics are paused,
and nsqd stops and starts, also by a power cut of which everything is synced before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.catalog.seek import Search, Start, open_channel, search_start
from penstock.engine.moves.sweep import Act, Chosen, Sweep
from penstock.engine.topic import Topic
from penstock.settings.places import AGO, EARLIEST, INDEX, LATEST, QUEUED, Place
from penstock.settings.policy import DEFAULT
from tests.crash.lossy import KEEP, LOSE
from tests.support.engine import MS, SECOND, Client, Engine

DONE, NOT_IN_FLIGHT = 0, 1
TIMEOUT_NS = 10 * SECOND
NAMES = st.sampled_from(["a", "a", "b"])
PLACES = st.one_of(
    st.just(Place(EARLIEST)),
    st.just(Place(LATEST)),
    st.integers(1, 40).map(lambda tenths: Place(AGO, tenths * SECOND // 2)),
    st.integers(0, 60).map(lambda number: Place(INDEX, number)),  # of the messages so far
)


@dataclass
class NaiveChannel:
    """What is unfinished, with its deliveries so far."""

    left: dict[int, int] = field(default_factory=dict)
    flying: set[int] = field(default_factory=set)
    buried: set[int] = field(default_factory=set)
    client: Client | None = None
    certain: bool = True  # attempts are known


class SeekMachine(RuleBasedStateMachine):
    @initialize(file_size=st.sampled_from([300, 900, 1 << 20]), seed=st.integers(0, 50))
    def begin(self, file_size: int, seed: int) -> None:
        self.engine = Engine(
            seed=seed, sync_every=1, sync_timeout_ns=400 * MS, max_bytes_per_file=file_size
        )
        self.channels: dict[str, NaiveChannel] = {}
        self.appended: dict[int, int] = {}  # time by index
        self.held: list[int] = []
        self.paused = False
        self.retained = DEFAULT
        self.engine.broker.create_topic("t")
        self.engine.settle()

    @property
    def topic(self) -> Topic:
        return self.engine.topic("t")

    # What users do

    @rule(count=st.integers(1, 6), size=st.sampled_from([1, 100]))
    def publish(self, count: int, size: int) -> None:
        before = set(self.engine.logged("t"))
        now_ns = self.engine.clock.wall_ns()
        assert self.engine.publish("t", *[bytes(size)] * count) is None
        new = sorted(set(self.engine.logged("t")) - before)
        assert len(new) == count
        for index in new:
            self.appended[index] = now_ns
        if self.paused or not self.channels:
            self.held += new
            return
        for channel in self.channels.values():
            channel.left.update(dict.fromkeys(new, 0))

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        assert self.engine.done(self.topic.pause(paused)) is None
        self.paused = paused
        self._release()

    def _release(self) -> None:
        if self.paused or not self.channels:
            return
        held, self.held = self.held, []
        for channel in self.channels.values():
            channel.left.update(dict.fromkeys([i for i in held if i >= self._start(channel)], 0))

    def _start(self, channel: NaiveChannel) -> int:
        name = next(name for name, each in self.channels.items() if each is channel)
        return self.starts[name]

    @property
    def starts(self) -> dict[str, int]:
        return self.__dict__.setdefault("_starts", {})

    @rule(retain_ns=st.sampled_from([0, 2 * SECOND, 10 * SECOND]), size=st.sampled_from([0, 900]))
    def retain(self, retain_ns: int, size: int) -> None:
        self.retained = replace(DEFAULT, retain_ns=retain_ns, retain_bytes=size)
        self.topic.apply_policy(self.retained)

    @rule(name=NAMES, act=st.sampled_from(Act), count=st.integers(1, 9))
    def unbury(self, name: str, act: Act, count: int) -> None:
        """The oldest ones."""
        channel = self.channels.get(name)
        if channel is None:
            return
        self._look(name)
        chosen = set(sorted(channel.buried)[:count])
        channel.buried -= chosen
        if act is Act.KICK:
            channel.left.update(dict.fromkeys(chosen, 0))
        sweep = Sweep(self.topic.channels[name], act, Chosen(count_max=count))
        assert self.engine.done(sweep.start()) is None
        assert sweep.done_count == len(chosen)

    @rule(name=NAMES, place=st.one_of(PLACES, st.just(Place(QUEUED))))
    def create(self, name: str, place: Place) -> None:
        if name in self.channels:
            return
        place = self._of_messages(place)
        search = search_start(self.topic, name, place)
        self.engine.settle()
        start = None if search is None else search.start()
        if start is not None:
            self._judge(place, start)
        at = self.topic.released if start is None else start.nearest
        assert self.engine.done(open_channel(self.topic, name, search)[1]) is None
        self.channels[name] = NaiveChannel()
        self._begin(name, at)
        self._release()

    @rule(name=NAMES, place=PLACES)
    def seek(self, name: str, place: Place) -> None:
        if name not in self.channels:
            return
        place = self._of_messages(place)
        search = Search(self.topic, place)
        assert self.engine.done(search) is None
        start = search.start()
        self._judge(place, start)
        ticket = self.topic.rewind(self.topic.channels[name], start.at)
        self._begin(name, start.at)
        assert self.engine.done(ticket) is None

    def _of_messages(self, place: Place) -> Place:
        """An index as the number of a message."""
        if place.kind != INDEX:
            return place
        indexes = [*sorted(self.appended), self.topic.end]
        return Place(INDEX, indexes[min(place.number, len(indexes) - 1)])

    def _judge(self, place: Place, start: Start) -> None:
        """The place is right, and it is whole only if nothing since then is missing."""
        stored = self.engine.logged("t")
        removed = set(self.appended) - set(stored)
        # A power cut may bring back the file of what was journaled as removed.
        doubtful = removed or self.topic.safe_from > min(self.appended, default=0)
        end = self.topic.end
        assert not [i for i in removed if i >= start.nearest]
        if place.kind == AGO:
            since_ns = self.engine.clock.wall_ns() - place.number
            assert start.at == min([i for i in stored if self.appended[i] >= since_ns], default=end)
            gone = [i for i in removed if self.appended[i] >= since_ns]
            assert not (start.whole and gone)
            assert start.whole or doubtful
        elif place.kind == INDEX:
            assert start.at == min([i for i in stored if i >= place.number], default=end)
            assert start.whole or doubtful
            assert not (start.whole and [i for i in removed if i >= place.number])
        elif place.kind == EARLIEST:
            assert start.whole and start.at <= end
        else:
            at = end if place.kind == LATEST else self.topic.released
            assert start == (at, True, at)

    def _begin(self, name: str, at: int) -> None:
        channel = self.channels[name]
        self.starts[name] = at
        stored = self.engine.logged("t")
        channel.left = {i: 0 for i in stored if i >= at and i not in self.held}
        channel.buried = {index for index in channel.buried if index < at}
        channel.flying = set()
        channel.certain = True
        if channel.client is not None:
            channel.client.take()

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.channels and len(self.channels) > 1:
            self._leave(name)
            assert self.engine.done(self.topic.delete_channel(name)) is None
            del self.channels[name]

    # What consumers do

    @rule(name=NAMES, ready=st.integers(0, 8))
    def subscribe(self, name: str, ready: int) -> None:
        channel = self.channels.get(name)
        if channel is None:
            return
        if channel.client is None:
            channel.client = Client(self.engine, "t", name, ready, TIMEOUT_NS)
        else:
            channel.client.ready(ready)
        self._look(name)

    @rule(name=NAMES, what=st.lists(st.sampled_from("FFFRDBN"), max_size=8))
    def answer(self, name: str, what: list[str]) -> None:
        channel = self.channels.get(name)
        if channel is None or channel.client is None:
            return
        self._look(name)
        for verb, index in zip(what, sorted(channel.flying), strict=False):
            if verb == "F":
                assert channel.client.finish(index) == DONE
                channel.flying.discard(index)
                del channel.left[index]
            elif verb in "RD":
                delay_ns = 3 * SECOND if verb == "D" else 0
                assert channel.client.requeue(index, delay_ns) == DONE
                channel.flying.discard(index)
            elif verb == "B":
                assert channel.client.bury(index) == DONE
                channel.flying.discard(index)
                del channel.left[index]
                channel.buried.add(index)
        self._look(name)

    @rule(name=NAMES, number=st.integers(0, 60))
    def finish_late(self, name: str, number: int) -> None:
        """An answer to a delivery that may be from before a seek."""
        channel = self.channels.get(name)
        if channel is None or channel.client is None or not self.appended:
            return
        self._look(name)
        index = sorted(self.appended)[number % len(self.appended)]
        status = channel.client.finish(index)
        assert (status == DONE) == (index in channel.flying)
        if status == DONE:
            channel.flying.discard(index)
            del channel.left[index]
        self._look(name)

    def _look(self, name: str) -> None:
        """What was delivered is unfinished, and has the right attempts."""
        self.engine.settle()
        channel = self.channels[name]
        if channel.client is None:
            return
        for received in channel.client.take():
            assert received.index in channel.left and received.index not in channel.flying
            channel.left[received.index] += 1
            if channel.certain:
                assert received.attempts == channel.left[received.index]
            channel.flying.add(received.index)

    def _leave(self, name: str) -> None:
        channel = self.channels[name]
        if channel.client is not None:
            self._look(name)
            channel.client.close()
            channel.client, channel.flying = None, set()

    # Time and ends

    @rule(steps=st.sampled_from([1, 5, 30]))
    def pass_time(self, steps: int) -> None:
        for _ in range(steps):
            for name in self.channels:
                self._look(name)
            self.engine.advance(SECOND // 2)
            for name, channel in self.channels.items():
                window = self.topic.channels[name].window
                # What timed out is delivered again, or waits.
                inbox = {m.index for m in channel.client.inbox} if channel.client else set()
                gone = {
                    index
                    for index in channel.flying
                    if index in inbox or (window.describe(index) or ("",))[0] != "in flight"
                }
                channel.flying -= gone

    @rule(how=st.sampled_from(["clean", KEEP, LOSE]))
    def restart(self, how: str) -> None:
        self.engine.advance(SECOND)  # journaled and synced
        for name in self.channels:
            self._leave(name)
        if how == "clean":
            self.engine.exit()
        else:
            self.engine.advance(SECOND)
            self.engine.crash(how)
        self.engine.start()
        self.topic.apply_policy(self.retained)
        for channel in self.channels.values():
            channel.certain = False

    # What must hold

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.settle()
        self.engine.check()
        stored = self.engine.logged("t")
        assert set(self.topic.channels) == set(self.channels)
        for name, channel in self.channels.items():
            self._look(name)
            assert channel.left.keys() | channel.buried <= stored.keys()
            real = self.topic.channels[name]
            flying, deferred = real.in_flight_count, real.window.deferred_count
            assert real.depth + flying + deferred == len(channel.left)
            assert flying == len(channel.flying)
            assert real.window.buried_count == len(channel.buried)
        assert not set(self.held) - stored.keys()

    def teardown(self) -> None:
        if not hasattr(self, "engine") or not self.channels:
            return
        self.pause(False)
        self.retain(0, 0)
        for name, channel in self.channels.items():
            self.unbury(name, Act.DISCARD, 1000)
            self.subscribe(name, 100)
            for _ in range(40):
                self.answer(name, ["F"] * 100)
                if not channel.left:
                    break
                self.pass_time(1)
            assert not channel.left, name
        self.check()
        self.engine.advance(10 * SECOND)
        sealed = [s for s in self.topic.log.segments() if s.sealed]
        assert not sealed or self.topic.low() <= sealed[0].end


SeekMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestSeek = SeekMachine.TestCase
