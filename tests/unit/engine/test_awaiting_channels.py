"""A new topic holds its messages until the channels that others know of it exist (R2)."""

from __future__ import annotations

import pytest

from penstock.engine.base import KNOWN_COUNT_MAX, BaseTopic
from penstock.engine.shared import Hooks
from tests.crash.lossy import KEEP, LOSE
from tests.support.engine import Client, Engine


class AskingEngine(Engine):
    """Lets every new topic wait while it is ``asking``; for which it was asked is in ``asked``."""

    asking = True

    def hook(self, hooks: Hooks) -> None:
        self.asked: list[str] = []
        if self.asking:
            hooks.query_channels = self._ask

    def _ask(self, topic: BaseTopic) -> bool:
        self.asked.append(topic.name)
        return True


@pytest.fixture
def engine() -> AskingEngine:
    return AskingEngine(sync_every=1)


def bodies(client: Client) -> list[bytes]:
    return [received.body for received in client.inbox]


@pytest.mark.parametrize("name", ["t", "t#ephemeral"])
def test_all_channels_start_at_the_first_message(engine: Engine, name: str) -> None:
    topic, _ = engine.broker.create_topic(name)
    accepted = topic.publish([b"1", b"2"])
    engine.settle()
    assert accepted.done and accepted.error is None
    client = Client(engine, name, "own", ready_count=9)
    engine.settle()
    assert bodies(client) == [] and topic.depth == 2
    assert not topic.channels_known.done

    topic.know_channels(["a", "b"])
    engine.settle()
    assert topic.channels_known.done and topic.channels_known.error is None
    assert bodies(client) == [b"1", b"2"]
    assert {n: c.depth + c.in_flight_count for n, c in topic.channels.items()} == {
        "own": 2,
        "a": 2,
        "b": 2,
    }
    assert topic.depth == 0
    topic.publish([b"3"])
    engine.settle()
    assert topic.channels["b"].depth == 3


def test_a_topic_nobody_knows_waits_for_its_first_channel_as_ever(engine: Engine) -> None:
    topic, _ = engine.broker.create_topic("t")
    topic.publish([b"1"])
    topic.know_channels([])
    engine.settle()
    assert topic.feed.frozen and topic.depth == 1
    client = Client(engine, "t", "late", ready_count=9)
    engine.settle()
    assert bodies(client) == [b"1"]


def test_without_anybody_to_ask_nothing_waits() -> None:
    engine = Engine()
    topic, _ = engine.broker.create_topic("t")
    assert topic.channels_known.done
    topic.create_channel("c")
    assert not topic.feed.frozen


def test_only_the_first_answer_counts(engine: Engine) -> None:
    topic, _ = engine.broker.create_topic("t")
    topic.know_channels(["a"])
    topic.know_channels(["b"])
    engine.settle()
    assert set(topic.channels) == {"a"}


def test_deleting_a_topic_ends_its_waiting(engine: Engine) -> None:
    topic, _ = engine.broker.create_topic("t")
    engine.settle()
    assert engine.done(engine.broker.delete_topic("t")) is None
    assert topic.channels_known.done and topic.channels_known.error is not None
    topic.know_channels(["a"])
    engine.settle()
    assert topic.channels == {} and "t" not in engine.broker.topics


def test_a_paused_topic_stays_paused_when_its_channels_are_known(engine: Engine) -> None:
    topic, _ = engine.broker.create_topic("t")
    topic.publish([b"1"])
    topic.pause(True)
    topic.know_channels(["a"])
    engine.settle()
    assert topic.depth == 1 and topic.channels["a"].depth == 0
    topic.pause(False)
    engine.settle()
    assert topic.channels["a"].depth == 1


def test_emptying_while_waiting_lets_nobody_have_the_messages(engine: Engine) -> None:
    topic, _ = engine.broker.create_topic("t")
    topic.publish([b"1"])
    engine.settle()
    topic.empty()
    topic.publish([b"2"])
    engine.settle()
    topic.know_channels(["a", "b"])
    engine.settle()
    assert [channel.depth for channel in topic.channels.values()] == [1, 1]


@pytest.mark.parametrize("mode", [KEEP, LOSE])
@pytest.mark.parametrize("own", [["own"], []])
def test_a_crash_while_waiting_asks_again(engine: AskingEngine, mode: str, own: list[str]) -> None:
    topic, _ = engine.broker.create_topic("t")
    accepted = topic.publish([b"1"])
    for name in own:
        topic.create_channel(name)
    assert engine.done(accepted) is None
    engine.crash(mode)
    engine.start()
    found = engine.topic("t")
    assert engine.asked == ["t"]
    assert found.feed.frozen and found.depth == 1
    found.know_channels(["a"])
    engine.settle()
    assert {name: channel.depth for name, channel in found.channels.items()} == dict.fromkeys(
        [*own, "a"], 1
    )
    engine.crash(mode)
    engine.start()
    assert engine.asked == []
    assert engine.topic("t").channels["a"].depth == 1


def test_a_restart_with_nobody_left_to_ask_lets_go(engine: AskingEngine) -> None:
    topic, _ = engine.broker.create_topic("t")
    topic.create_channel("own")
    engine.done(topic.publish([b"1"]))
    engine.exit()
    engine.asking = False
    engine.start()
    assert engine.topic("t").channels["own"].depth == 1


@pytest.mark.parametrize("name", ["t", "t#ephemeral"])
def test_many_channels_are_made_turn_by_turn_and_all_get_the_first_message(
    engine: Engine, name: str
) -> None:
    topic, _ = engine.broker.create_topic(name)
    topic.publish([b"1"])
    engine.settle()
    names = [f"c{number}" for number in range(3 * KNOWN_COUNT_MAX + 1)]
    topic.know_channels(names)
    assert len(topic.channels) == KNOWN_COUNT_MAX and topic.depth == 1
    engine.settle()
    assert list(topic.channels) == names and topic.channels_known.error is None
    assert {channel.depth for channel in topic.channels.values()} == {1}


def test_a_topic_may_go_while_its_channels_are_made(engine: Engine) -> None:
    topic, _ = engine.broker.create_topic("t")
    engine.settle()
    topic.know_channels([f"c{number}" for number in range(2 * KNOWN_COUNT_MAX)])
    engine.broker.delete_topic("t")
    engine.settle()
    assert topic.closed and "t" not in engine.broker.topics
    assert engine.publish("t", b"to a new one") is None
    assert list(engine.topic("t").channels) == []


def test_an_ephemeral_topic_may_go_while_its_channels_are_made(engine: Engine) -> None:
    topic, _ = engine.broker.create_topic("t#ephemeral")
    engine.settle()
    topic.know_channels([f"c{number}" for number in range(2 * KNOWN_COUNT_MAX)])
    engine.broker.delete_topic("t#ephemeral")
    engine.settle()
    assert len(topic.channels) == KNOWN_COUNT_MAX and not engine.broker.topics


@pytest.mark.parametrize("mode", [KEEP, LOSE])
def test_channels_that_were_made_together_survive_a_power_cut(engine: Engine, mode: str) -> None:
    topic, _ = engine.broker.create_topic("t")
    engine.settle()
    names = [f"c{number}" for number in range(2 * KNOWN_COUNT_MAX)]
    topic.know_channels(names)
    assert engine.done(topic.channels_known) is None
    engine.crash(mode)
    engine.start()
    assert set(engine.topic("t").channels) == set(names)
