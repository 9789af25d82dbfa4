"""Long polls for the end of a log (R18)."""

from __future__ import annotations

import errno
import itertools

import pytest

from penstock.engine.pull import polls
from penstock.engine.pull.channel import PullChannel
from penstock.engine.pull.polls import CROWD_COUNT, POLL_COUNT_MAX, Known, Poll, readable_end
from penstock.engine.topic import Topic
from tests.crash.lossy import LOSE
from tests.support.engine import MINUTE, MS, SECOND, Engine

WAIT = 30 * SECOND


def topic_of(engine: Engine, name: str = "t") -> Topic:
    assert engine.done(engine.broker.create_topic(name)[1]) is None
    engine.advance(5 * MS)  # the clock began at 0, where the last sync may be, too
    return engine.topic(name)


def channel_of(engine: Engine) -> PullChannel:
    topic = topic_of(engine)
    channel, ticket, _ = engine.components.pulls.open(topic, "q", topic.end)
    assert engine.done(ticket) is None
    return channel


def known(topic: Topic, channel: PullChannel | None = None) -> dict[str, Known]:
    return {topic.name: Known(topic.instance, readable_end(topic, channel))}


def ask(
    engine: Engine, topics: dict[str, Known], channel: str | None = None, wait_ns: int = WAIT
) -> Poll:
    poll = engine.components.polls.wait(topics, channel, wait_ns)
    engine.settle()
    return poll


def syncs(engine: Engine) -> list[int]:
    """Times of the syncs from now on."""
    times: list[int] = []
    sync = engine.files.sync

    def counted(path: str) -> None:
        if path.endswith(".log"):
            times.append(engine.clock.monotonic_ns())
        sync(path)

    engine.files.sync = counted
    return times


def test_a_poll_is_answered_by_the_first_message_and_has_it_synced() -> None:
    """R18: no range ends behind what a power cut could take."""
    engine = Engine(sync_timeout_ns=MINUTE)
    topic = topic_of(engine)
    before = topic.end
    poll = ask(engine, known(topic))
    engine.advance(SECOND)
    assert not poll.ticket.done
    assert topic.publish([b"a", b"b"]) and not poll.ticket.done
    engine.settle()
    assert poll.ticket.done and readable_end(topic, None) == topic.end == before + 2
    engine.crash(LOSE)
    engine.start()
    assert engine.topic("t").log.count == 2


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_what_is_there_already_is_told_at_once(sync_every: int) -> None:
    engine = Engine(sync_every=sync_every)
    topic = topic_of(engine)
    seen = known(topic)
    engine.publish("t", b"a")
    poll = ask(engine, seen)
    assert poll.ticket.done and readable_end(topic, None) == topic.end


def test_without_news_it_ends_with_its_time() -> None:
    engine = Engine()
    poll = ask(engine, known(topic_of(engine)))
    engine.advance(WAIT - MS)
    assert not poll.ticket.done and engine.components.polls.waiting_count == 1
    engine.advance(MS)
    assert poll.ticket.done and engine.components.polls.waiting_count == 0
    assert ask(engine, known(topic_of(engine)), wait_ns=0).ticket.done


def test_any_of_several_topics_answers() -> None:
    engine = Engine()
    one, two = topic_of(engine, "one"), topic_of(engine, "two")
    poll = ask(engine, known(one) | known(two))
    engine.publish("two", b"a")
    assert poll.ticket.done
    assert engine.components.polls._places == {}


def test_all_who_wait_are_answered_by_one_sync() -> None:
    engine = Engine()
    topic = topic_of(engine)
    polls = [ask(engine, known(topic)) for _ in range(100)]
    times = syncs(engine)
    engine.publish("t", b"a")
    engine.advance(5 * MS)
    assert all(poll.ticket.done for poll in polls) and len(times) == 1


def test_a_crowd_that_waits_for_something_else_is_not_looked_at_for_every_batch() -> None:
    engine = Engine(sync_timeout_ns=MINUTE)
    topic = topic_of(engine)
    far = {"t": Known(topic.instance, topic.end + 100)}
    for _ in range(CROWD_COUNT):
        engine.components.polls.wait(far, None, WAIT)
    engine.settle()
    judged = [0]
    judge = engine.components.polls._judge

    def counted(poll: Poll, name: str) -> int:
        judged[0] += 1
        return judge(poll, name)

    engine.components.polls._judge = counted  # type: ignore[method-assign]
    for _ in range(100):
        engine.publish("t", b"a")
    assert judged[0] == 0
    engine.advance(5 * MS)
    assert judged[0] == CROWD_COUNT
    engine.advance(SECOND)
    assert judged[0] == CROWD_COUNT, "idle, it costs nothing"
    engine.publish("t", b"a")
    engine.advance(10 * MS)
    assert engine.components.polls.waiting_count == 0


def test_polls_sync_at_most_every_5_ms() -> None:
    engine = Engine(sync_timeout_ns=MINUTE)
    topic = topic_of(engine)
    times = syncs(engine)
    for _ in range(40):
        poll = ask(engine, known(topic))
        engine.publish("t", b"a")
        engine.advance(MS)
        if not poll.ticket.done:
            engine.advance(5 * MS)
        assert poll.ticket.done
    assert len(times) > 5
    assert min(b - a for a, b in itertools.pairwise(times)) >= 5 * MS


def test_nobody_waiting_means_no_sync() -> None:
    engine = Engine(sync_timeout_ns=MINUTE)
    topic = topic_of(engine)
    times = syncs(engine)
    poll = ask(engine, known(topic))
    engine.components.polls.answer(poll)
    engine.publish("t", b"a")
    engine.advance(SECOND)
    assert times == [] and readable_end(topic, None) < topic.end


def test_a_failed_sync_is_tried_again_in_a_while() -> None:
    """R8: the answer comes when the messages are safe."""
    engine = Engine(sync_timeout_ns=MINUTE)
    topic = topic_of(engine)
    poll = ask(engine, known(topic))
    engine.files.fail("sync", errno.EIO)
    engine.publish("t", b"a")
    engine.advance(3 * SECOND)
    assert poll.ticket.done and readable_end(topic, None) == topic.end


def test_a_topic_that_goes_or_comes_ends_the_wait() -> None:
    engine = Engine()
    topic = topic_of(engine)
    gone = ask(engine, known(topic))
    coming = ask(engine, {"new": Known(None, None)})
    engine.done(engine.broker.delete_topic("t"))
    assert gone.ticket.done and not coming.ticket.done
    topic_of(engine, "new")
    assert coming.ticket.done
    # Whoever knew a topic that is not there is told so at once.
    assert ask(engine, known(topic)).ticket.done


def test_another_instance_is_news() -> None:
    engine = Engine()
    old = topic_of(engine)
    engine.done(engine.broker.delete_topic("t"))
    new = topic_of(engine)
    assert ask(engine, {"t": Known(old.instance, new.end)}).ticket.done
    assert not ask(engine, {"t": Known(new.instance, new.end)}).ticket.done


def test_a_channel_reads_only_what_is_released() -> None:
    """R2: a paused topic's messages wait, and are not synced for nothing."""
    engine = Engine(sync_timeout_ns=MINUTE)
    channel = channel_of(engine)
    topic = engine.topic("t")
    engine.done(topic.pause(True))
    times = syncs(engine)
    poll = ask(engine, known(topic, channel), "q")
    engine.publish("t", b"a")
    engine.advance(SECOND)
    assert not poll.ticket.done and times == []
    engine.done(topic.pause(False))
    assert poll.ticket.done and readable_end(topic, channel) == topic.end


def test_a_paused_channel_reads_nothing() -> None:
    engine = Engine()
    channel = channel_of(engine)
    topic = engine.topic("t")
    engine.done(channel.pause(True))
    poll = ask(engine, known(topic, channel), "q")
    engine.publish("t", b"a")
    engine.advance(SECOND)
    assert not poll.ticket.done and readable_end(topic, channel) == channel.low
    engine.done(channel.pause(False))
    assert poll.ticket.done


def test_a_channel_that_is_deleted_ends_the_wait() -> None:
    engine = Engine()
    channel = channel_of(engine)
    topic = engine.topic("t")
    poll = ask(engine, known(topic, channel), "q")
    engine.done(topic.delete_channel("q"))
    assert poll.ticket.done
    assert ask(engine, known(topic), "q").ticket.done


def test_who_polls_is_there_however_long_it_waits() -> None:
    """R18: a channel does not lapse while its reader waits in its name."""
    engine = Engine(pull_channel_lapse_ns=10 * SECOND)
    channel = channel_of(engine)
    poll = ask(engine, known(engine.topic("t"), channel), "q")
    engine.advance(29 * SECOND)
    assert not poll.ticket.done and channel.idle_ns == 0
    engine.advance(9 * SECOND)
    assert poll.ticket.done and channel.idle_ns == 8 * SECOND
    engine.advance(5 * SECOND)
    assert engine.topic("t").channels == {}


def test_the_end_of_the_daemon_answers_everybody() -> None:
    engine = Engine()
    polls = [ask(engine, known(topic_of(engine))) for _ in range(3)]
    engine.components.refuse_all()
    assert all(poll.ticket.done for poll in polls)
    assert ask(engine, known(topic_of(engine))).ticket.done


def test_there_is_a_limit() -> None:
    engine = Engine()
    seen = known(topic_of(engine))
    for _ in range(POLL_COUNT_MAX):
        assert not engine.components.polls.full
        engine.components.polls.wait(seen, None, WAIT, "reader")
    assert engine.components.polls.full
    engine.components.polls.wait(seen, None, WAIT, "reader")
    assert engine.components.polls.waiting_count == POLL_COUNT_MAX
    for _ in range(POLL_COUNT_MAX // 50):
        engine.publish("t", b"a")
        engine.advance(5 * MS)
    assert engine.components.polls.waiting_count == 0


def test_a_greedy_reader_s_polls_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls, "POLL_COUNT_MAX", 10)
    engine = Engine()
    seen = known(topic_of(engine))
    modest = engine.components.polls.wait(seen, None, WAIT, "modest")
    greedy = [engine.components.polls.wait(seen, None, WAIT, "greedy") for _ in range(30)]
    assert not modest.ticket.done
    assert [poll.ticket.done for poll in greedy] == [True] * 21 + [False] * 9
    another = engine.components.polls.wait(seen, None, WAIT, "another")
    assert not another.ticket.done and greedy[21].ticket.done
    # One of our own is never answered for others.
    own = engine.components.polls.wait(seen, None, WAIT)
    for _ in range(20):
        engine.components.polls.wait(seen, None, WAIT, "greedy")
    assert not own.ticket.done and not modest.ticket.done


def test_after_a_restart_what_was_not_synced_is_synced_for_a_poll() -> None:
    engine = Engine(sync_timeout_ns=MINUTE)
    topic = topic_of(engine)
    seen = known(topic)
    engine.publish("t", b"a")
    engine.crash()
    engine.start()
    topic = topic_of(engine)
    assert readable_end(topic, None) < topic.end
    assert ask(engine, seen).ticket.done and readable_end(topic, None) == topic.end
