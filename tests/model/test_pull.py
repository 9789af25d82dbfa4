"""A reader of a pull channel against a list, through kills and power cuts (R18, R45).

The reader does what Spark does: it polls, writes the end down, reads the range, commits later, and
after any end goes on from what it wrote down.  Files, disk and clocks are the test's.

What must hold: a range that was told is read again exactly, whatever happened meanwhile; nothing
between two ranges is missed; what is not committed is there and is the depth; the low never passes
what was committed.

Two readers want the channel.  Whoever commits first has it, and the other one gets nothing until it
takes over: not in memory, nor after any end.  A take-over that was answered is never undone.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.core.batches import scan
from penstock.engine.pull.channel import HasReaderError, PullChannel, TakeOverError
from penstock.engine.pull.polls import Known, readable_end
from penstock.engine.topic import Topic
from tests.crash.lossy import HOLES, KEEP, LOSE, PREFIX
from tests.support.engine import HOUR, MS, SECOND, Client, Engine

READERS = ("1" * 32, "2" * 32)


class ReaderMachine(RuleBasedStateMachine):
    """Rules are what publishers, the reader, another consumer and the machine do."""

    engine: Engine

    @initialize(
        seed=st.integers(0, 1000),
        sync_every=st.sampled_from([1, 3, 2500]),
        file_size=st.sampled_from([300, 2000, 1 << 20]),
        sync_timeout_ns=st.sampled_from([SECOND, HOUR]),
        plain=st.booleans(),
    )
    def begin(self, plain: bool, file_size: int, **options: int) -> None:
        self.engine = Engine(max_bytes_per_file=file_size, **options)
        assert self.engine.done(self.engine.broker.create_topic("t")[1]) is None
        if plain:
            assert self.engine.done(self.topic.create_channel("q", named=True)[1]) is None
        channel, ticket, made = self.engine.components.pulls.open(self.topic, "q", self.topic.end)
        assert self.engine.done(ticket) is None and made != plain
        self.start = self.low = channel.low
        self.at = channel.low  # up to where the reader has gone
        self.committed = channel.low
        self.number = 0
        self.read: dict[int, bytes] = {}
        self.reader: str | None = None  # whom the channel is bound to
        self.after_a_crash: set[str | None] = {None}  # whom it may be bound to then

    @property
    def identity(self) -> str | None:
        return None if self.channel.reader is None else self.channel.reader.identity

    @property
    def topic(self) -> Topic:
        return self.engine.topic("t")

    @property
    def channel(self) -> PullChannel:
        channel = self.topic.channels["q"]
        assert isinstance(channel, PullChannel)
        return channel

    def range(self, start: int, end: int, size_max: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        while start < end:
            read = self.engine.components.reads.read(self.topic, start, end, size_max)
            self.engine.advance(10 * MS)
            assert read.done and read.error is None, read.error
            assert read.range.next > start
            for piece in read.range.pieces:
                data = bytes(piece)
                for first, count, at, *_ in scan(data, 0, True).batches:
                    for index in range(first, first + count):
                        size = 4 + int.from_bytes(data[at : at + 4], "big")
                        if start <= index < end:
                            found[index] = data[at + 34 : at + size]
                        at += size
            self.engine.components.reads.free(read)
            start = read.range.next
        return found

    # What happens

    @rule(count=st.integers(1, 5), size=st.sampled_from([1, 50, 400]))
    def publish_more(self, count: int, size: int) -> None:
        self.publish(count, size)

    @rule(count=st.integers(1, 5), size=st.sampled_from([1, 50, 400]))
    def publish(self, count: int, size: int) -> None:
        bodies = [b"%d " % (self.number + i) + b"x" * size for i in range(count)]
        self.number += count
        assert self.engine.publish("t", *bodies) is None

    @rule(size_max=st.sampled_from([1, 500, 1 << 20]))
    def poll_and_read(self, size_max: int) -> None:
        known = {"t": Known(self.topic.instance, self.at)}
        poll = self.engine.components.polls.wait(known, "q", 100 * MS, None, self.reader)
        told: list[int] = []
        poll.ticket.add(lambda _: told.append(readable_end(self.topic, self.channel)))
        self.engine.advance(200 * MS)
        (end,) = told
        if not self.topic.paused and not self.channel.paused:
            assert end > self.at or end == self.topic.end, "a poll has the log synced"
        if end > self.at:
            fresh = self.range(self.at, end, size_max)
            assert fresh.keys().isdisjoint(self.read)
            self.read |= fresh
            self.at = end

    @rule(data=st.data())
    def read_again(self, data: st.DataObject) -> None:
        """Spark replays a range that was in its checkpoint, and commits lie behind it."""
        start = data.draw(st.integers(self.committed, self.at))
        wanted = {index: body for index, body in self.read.items() if index >= start}
        assert self.range(start, self.at, 1 << 20) == wanted

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.committed = data.draw(st.integers(self.committed, self.at))
        self.channel.commit(self.committed)
        assert self.channel.low == self.committed

    @rule(place=st.integers(0, 1))
    def bind(self, place: int) -> None:
        """Both commit; whoever is first has the channel."""
        identity = READERS[place]
        if self.reader not in (None, identity):
            for other in (identity, None):
                with pytest.raises(HasReaderError, match=str(self.reader)):
                    self.channel.admit(other)
            return
        self.channel.admit(identity)
        self.channel.bind(identity, f"reader {place}")
        self.reader = identity
        self.after_a_crash.add(identity)

    @rule(place=st.integers(0, 1), answered=st.booleans())
    def take_over(self, place: int, answered: bool) -> None:
        new, old = READERS[place], READERS[1 - place]
        polls = self.engine.components.polls
        waiting = [
            polls.wait({"t": Known(None, self.topic.end)}, "q", HOUR, None, identity)
            for identity in (old, new)
            if self.channel.admits(identity)
        ]
        if self.reader is None:
            with pytest.raises(TakeOverError):
                self.channel.take_over(new, old)
        else:
            bound = self.channel.take_over(new, old)
            self.reader = new
            self.after_a_crash.add(new)
            if answered:
                assert self.engine.done(bound) is None
                self.after_a_crash = {new}
                assert all(poll.ticket.done for poll in waiting if poll.identity == old)
        for poll in waiting:
            polls.answer(poll)

    @rule()
    def consume(self) -> None:
        """Another channel finishes everything, so that only the reader keeps the log."""
        client = Client(self.engine, "t", "other", 1000)
        self.engine.settle()
        for message in client.take():
            client.finish(message.index)
        client.close()
        self.engine.settle()

    @rule(duration_ms=st.sampled_from([1, 250, 3000, 20_000]))
    def wait(self, duration_ms: int) -> None:
        self.engine.advance(duration_ms * MS)

    @rule(of_topic=st.booleans(), paused=st.sampled_from([False, False, True]))
    def pause(self, of_topic: bool, paused: bool) -> None:
        ticket = self.topic.pause(paused) if of_topic else self.channel.pause(paused)
        assert self.engine.done(ticket) is None

    @rule(mode=st.sampled_from([KEEP, LOSE, LOSE, PREFIX, HOLES]), seed=st.integers(1, 99))
    def crash(self, mode: str, seed: int) -> None:
        self.engine.crash(mode, seed)
        self.restart()

    @rule()
    def exit(self) -> None:
        self.engine.exit()
        self.after_a_crash = {self.reader}
        self.restart()
        assert self.channel.low == self.committed

    def restart(self) -> None:
        self.engine.start()
        assert self.identity in self.after_a_crash, "a reader that was answered is not undone"
        self.reader = self.identity
        self.after_a_crash = {self.reader}
        assert self.channel.low <= self.committed, "never past what was committed"
        assert self.channel.low >= self.low, "never back behind what was seen after a start"
        self.low = self.channel.low
        # The reader goes on from its own place.
        self.committed = max(self.committed, self.low)
        self.channel.commit(self.committed)

    # What holds

    @invariant()
    def nothing_is_missing(self) -> None:
        log, topic = self.topic.log, self.topic
        low = self.channel.low
        # A power cut may take the file of messages that nobody could read yet, which is reported.
        damaged = bool(self.engine.components.damage.records)
        assert topic.whole_from <= low or damaged, "at its low a reader is told of no loss"
        assert low <= topic.log.first or log.next_index(low) >= low
        assert self.channel.depth == log.count_between(low, topic.released)
        unread = {index for index in self.read if index >= low}
        assert sum(1 for index in unread if log.count_between(index, index + 1)) == len(unread)
        assert self.identity == self.reader
        self.engine.check()


ReaderMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestReader = ReaderMachine.TestCase
