"""Policies in a broker: files, what is set, and where they do not apply."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.ticket import Ticket
from penstock.engine.channel import Channel
from penstock.engine.policy.file import parse_rules
from penstock.engine.policy.merge import Subject, channel_values
from penstock.engine.policy.policies import Policies
from penstock.errors import OptionError, PolicyError
from penstock.settings.policy import DEFAULT
from tests.crash.lossy import LOSE
from tests.support.engine import HOUR, SECOND, Client, Engine

RULES = """\
[[policy]]
retain = "1h"
msg_ttl = "1m"

[[policy]]
topic = "orders*"
channel = "email"
max_attempts = 5
msg_ttl = "2m"

[[policy]]
topic = "orders.eu"
retain = "2h"
max_attempts = 9
requeue_backoff = "1s..15m"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policies.toml"
    path.write_text(RULES)
    return path


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    yield Engine(policy_file=str(path))


def policies(engine: Engine) -> Policies:
    return engine.components.policies


def channel(engine: Engine, topic: str, name: str) -> Channel:
    made, created = engine.broker.create_topic(topic)[0].create_channel(name)
    assert engine.done(created) is None
    return made


def set_topic(engine: Engine, topic: str, **changes: object) -> None:
    made = engine.broker.topics[topic]
    assert engine.done(policies(engine).set_topic(made, changes)) is None


def set_channel(engine: Engine, topic: str, name: str, **changes: object) -> None:
    made = engine.broker.topics[topic].channels[name]
    assert engine.done(policies(engine).set_channel(made, changes)) is None


def reload(engine: Engine, text: str) -> None:
    Path(policies(engine).path).write_text(text)
    engine.disk.submit(policies(engine).read_again, policies(engine).renew)
    engine.settle()


def shown(engine: Engine, topic: str, name: str, key: str) -> dict[str, Any]:
    found = engine.broker.topics[topic].channels[name]
    return policies(engine).channel_shown(found)[key]


# ---- the file


def test_the_rules_apply_to_new_topics_and_channels(engine: Engine) -> None:
    email, other = channel(engine, "orders.eu", "email"), channel(engine, "orders.eu", "x")
    topic = engine.topic("orders.eu")
    assert topic.policy == dataclasses.replace(DEFAULT, retain_ns=2 * HOUR, msg_ttl_ns=60 * SECOND)
    assert (email.policy.msg_ttl_ns, other.policy.msg_ttl_ns) == (120 * SECOND, 60 * SECOND)
    # Rules are applied in order, whether they have a channel or not.
    assert email.policy.max_attempts == other.policy.max_attempts == 9
    assert email.policy.requeue_backoff == (SECOND, 900 * SECOND)
    assert channel(engine, "orders.us", "email").policy.max_attempts == 5
    assert channel(engine, "billing", "email").policy.max_attempts == 0


def test_a_reload_applies_to_what_exists(engine: Engine) -> None:
    email = channel(engine, "orders.eu", "email")
    reload(engine, '[[policy]]\nretain = "3h"\n[[policy]]\nchannel = "email"\nmax_attempts = 2')
    assert engine.topic("orders.eu").policy.retain_ns == 3 * HOUR
    assert email.policy == dataclasses.replace(DEFAULT, max_attempts=2)
    reload(engine, "")
    assert engine.topic("orders.eu").policy == email.policy == DEFAULT


def test_a_wrong_file_changes_nothing(engine: Engine) -> None:
    email = channel(engine, "orders.eu", "email")
    before = engine.topic("orders.eu").policy, email.policy
    reload(engine, '[[policy]]\nretain = "3h"\nmax_attempt = 2')
    assert (engine.topic("orders.eu").policy, email.policy) == before
    assert "line 3" in policies(engine).stats["error"]
    assert policies(engine).stats["refused_count"] == 1
    reload(engine, "")
    assert policies(engine).stats["error"] == ""


def test_channels_that_come_and_go_are_not_remembered(engine: Engine) -> None:
    """Each had a dead_topic of its own setting; its name says anyway what the topic is for."""
    for number in range(100):
        channel(engine, "t", f"c{number}")
        set_channel(engine, "t", f"c{number}", dead_topic="t.dead")
        assert engine.done(engine.topic("t").delete_channel(f"c{number}")) is None
    assert len(policies(engine)._dead_for.get("t.dead", ())) <= 2


def test_the_last_of_two_reloads_counts_whichever_is_read_first(engine: Engine) -> None:
    channel(engine, "orders.eu", "email")
    path = Path(policies(engine).path)
    path.write_text('[[policy]]\nretain = "3h"')
    policies(engine).reload()
    ((work, done),) = engine.disk.works
    engine.disk.works.clear()
    first = work()  # by a thread that is slow
    for hours in (4, 5, 6):
        path.write_text(f'[[policy]]\nretain = "{hours}h"')
        policies(engine).reload()
    assert len(engine.disk.works) <= 1
    engine.settle()
    done(first, None)
    engine.settle()
    assert engine.topic("orders.eu").policy.retain_ns == 6 * HOUR


def test_a_wrong_file_refuses_the_start(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[[policy]]\nretain = 5")
    with pytest.raises(OptionError, match="line 2: retain"):
        Engine(policy_file=str(path))


def test_a_reload_takes_a_turn_for_each_millisecond(engine: Engine) -> None:
    for n in range(20):
        channel(engine, f"orders.{n}", "email")
    seen: list[int] = []
    first = engine.topic("orders.0")
    apply = type(first).apply_policy

    def slow(self: Any, policy: Any) -> None:
        seen.append(len(engine.turns.calls))
        engine.clock.advance(SECOND)
        apply(self, policy)

    type(first).apply_policy = slow  # type: ignore[method-assign]
    try:
        policies(engine).renew(policies(engine).read_again(), None)
        assert seen == []  # nothing has changed
        Path(policies(engine).path).write_text('[[policy]]\nretain = "9h"')
        policies(engine).renew(policies(engine).read_again(), None)
        assert len(seen) == 1  # the rest in later turns
        # Another reload takes over; and what is made meanwhile has the new rules at once.
        Path(policies(engine).path).write_text('[[policy]]\nretain = "8h"')
        policies(engine).renew(policies(engine).read_again(), None)
        channel(engine, "new", "email")
        assert engine.topic("new").policy.retain_ns == 8 * HOUR
        engine.settle()
    finally:
        type(first).apply_policy = apply  # type: ignore[method-assign]
    assert {t.policy.retain_ns for t in engine.broker.topics.values()} == {8 * HOUR}


# ---- what is set


def test_ten_thousand_rules_that_all_match_are_merged_in_milliseconds() -> None:
    stars = ["".join("a*" if n >> bit & 1 else "aa*" for bit in range(14)) for n in range(10_000)]
    keys = 'max_messages = 5\nmsg_ttl = "1h"\nretain = "1h"\nmax_attempts = 3\n'
    rules = parse_rules("".join(f'[[policy]]\ntopic = "*{each}"\n{keys}' for each in stars), "x")
    subject = Subject("a" * 64, {}, False, False, "c")
    assert len(rules.of(subject.topic)) == 10_000

    def took_s() -> float:
        start_s = time.process_time()
        assert channel_values(rules, subject).keys() == {"msg_ttl", "max_attempts"}
        return time.process_time() - start_s

    assert min(took_s() for _ in range(5)) < 0.02


def test_what_is_set_wins_and_survives(engine: Engine) -> None:
    email = channel(engine, "orders.eu", "email")
    set_topic(engine, "orders.eu", retain="30m", msg_ttl="3m")
    set_channel(engine, "orders.eu", "email", max_attempts=3)
    for _ in range(2):
        email = engine.topic("orders.eu").channels["email"]
        assert engine.topic("orders.eu").policy.retain_ns == HOUR // 2
        assert engine.topic("orders.eu").policy.msg_ttl_ns == 180 * SECOND
        # A channel's rule wins over what was set for the topic.
        assert email.policy.msg_ttl_ns == 120 * SECOND
        assert email.policy.max_attempts == 3
        assert shown(engine, "orders.eu", "email", "max_attempts") == {
            "value": 3,
            "origin": "set",
        }
        # Synced before the answer.
        engine.crash(LOSE)
        engine.start()
    set_channel(engine, "orders.eu", "email", max_attempts=None)
    assert engine.topic("orders.eu").channels["email"].policy.max_attempts == 9
    origin = shown(engine, "orders.eu", "email", "max_attempts")["origin"]
    assert origin == f"file: {policies(engine).path}:14"
    assert shown(engine, "orders.eu", "email", "max_buried")["origin"] == "default"


def test_a_snapshot_of_the_journal_has_what_is_set(engine: Engine) -> None:
    channel(engine, "t", "c")
    set_topic(engine, "t", retain="30m")
    set_channel(engine, "t", "c", max_attempts=3)
    assert engine.done(engine.topic("t").keeper.rewrite()) is None
    engine.exit()
    engine.start()
    assert engine.topic("t").policy.retain_ns == HOUR // 2
    assert engine.topic("t").channels["c"].policy.max_attempts == 3


def test_a_new_topic_or_channel_of_the_same_name_has_no_policy(engine: Engine) -> None:
    channel(engine, "t", "c")
    set_topic(engine, "t", retain="30m")
    set_channel(engine, "t", "c", max_attempts=3)
    assert engine.done(engine.topic("t").delete_channel("c")) is None
    assert channel(engine, "t", "c").policy.max_attempts == 0
    engine.crash(LOSE)
    engine.start()
    assert engine.topic("t").channels["c"].policy.max_attempts == 0
    assert engine.done(engine.broker.delete_topic("t")) is None
    channel(engine, "t", "c")
    assert engine.topic("t").policy.retain_ns == HOUR


def test_a_channel_that_is_sought_keeps_its_policy(engine: Engine) -> None:
    made = channel(engine, "t", "c")
    set_channel(engine, "t", "c", max_attempts=3)
    for n in (4, 5):
        old_id = made.id
        assert engine.done(engine.topic("t").rewind(made, engine.topic("t").log.first)) is None
        assert made.id != old_id and made.own_policy == {"max_attempts": str(n - 1)}
        set_channel(engine, "t", "c", max_attempts=n)
        engine.crash(LOSE)
        engine.start()
        made = engine.topic("t").channels["c"]
        assert made.policy.max_attempts == n
    assert engine.done(engine.topic("t").keeper.rewrite()) is None
    engine.exit()
    engine.start()
    assert engine.topic("t").channels["c"].policy.max_attempts == 5


def test_a_policy_is_set_while_its_topic_is_being_created(engine: Engine) -> None:
    topic, created = engine.broker.create_topic("fresh")
    made, _ = topic.create_channel("c")
    tickets: list[Ticket] = [
        policies(engine).set_topic(topic, {"retain": "30m"}),
        policies(engine).set_channel(made, {"max_attempts": 3}),
    ]
    assert not created.done
    assert [engine.done(ticket) for ticket in tickets] == [None, None]
    engine.crash(LOSE)
    engine.start()
    assert engine.topic("fresh").policy.retain_ns == HOUR // 2
    assert engine.topic("fresh").channels["c"].policy.max_attempts == 3


def test_keys_and_values_of_a_later_version_are_told_and_kept(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    topic = channel(engine, "t", "c").topic
    topic.own_policy = {"retain": "30m", "max_colour": "red", "overflow": "spill", "x": [1, {}]}
    assert engine.done(topic.save_policy(None)) is None
    engine.crash(LOSE)
    with caplog.at_level(logging.WARNING):
        engine.start()
    for told in ("'max_colour' is not a key", "overflow must be one of", "'x' is not a key"):
        assert told in caplog.text
    assert engine.topic("t").policy.retain_ns == HOUR // 2
    set_topic(engine, "t", max_colour=None, x=None, max_messages=7)
    engine.crash(LOSE)
    engine.start()
    assert engine.topic("t").own_policy == {
        "retain": "30m",
        "overflow": "spill",
        "max_messages": "7",
    }


WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"retian": "1h"}, "INVALID_KEY", "did you mean retain"),
    ({"retian": None}, "INVALID_KEY", "did you mean retain"),
    ({"k" * 10_000: 1}, "INVALID_KEY", "keys are"),
    ({"max_attempts": 5}, "INVALID_KEY", "not a key of topics"),
    ({"retain": 5}, "INVALID_VALUE", "with a unit"),
    ({"retain": "5"}, "INVALID_VALUE", "a duration"),
    ({"retain": True}, "INVALID_VALUE", "a duration"),
    ({"retain": {}}, "INVALID_VALUE", "it is an object"),
    ({"retain": "1h" * 1000}, "INVALID_VALUE", "a duration"),
    ({"max_messages": 10**4000}, "INVALID_VALUE", "a huge number"),
    ({"max_messages": 1.5}, "INVALID_VALUE", "an integer"),
    ({"max_bytes": "1XB"}, "INVALID_VALUE", "a size"),
    ({"channel_start": "index:7"}, "INVALID_VALUE", "queued, earliest, latest"),
    ({"retain": "1h", "max_bytes": "x"}, "INVALID_VALUE", "a size"),
]


@pytest.mark.parametrize(("changes", "code", "text"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_key_or_value_changes_nothing(
    engine: Engine, changes: dict[str, object], code: str, text: str
) -> None:
    topic = channel(engine, "t", "c").topic
    with pytest.raises(PolicyError) as caught:
        policies(engine).set_topic(topic, changes)
    assert caught.value.code == code and text in str(caught.value)
    assert len(str(caught.value)) < 600
    assert topic.own_policy == {} and topic.policy.retain_ns == HOUR


def test_what_is_shown_can_be_set(engine: Engine) -> None:
    made = channel(engine, "orders.eu", "email")
    topic = made.topic
    before = topic.policy, made.policy
    values = {k: v["value"] for k, v in policies(engine).topic_shown(topic).items()}
    set_topic(engine, "orders.eu", **values)
    values = {k: v["value"] for k, v in policies(engine).channel_shown(made).items()}
    set_channel(engine, "orders.eu", "email", **values)
    assert (topic.policy, made.policy) == before
    assert {v["origin"] for v in policies(engine).channel_shown(made).values()} == {"set"}


# ---- where a policy does not apply


def test_an_ephemeral_topic_takes_bounds_only(engine: Engine) -> None:
    name = "t#ephemeral"
    made = channel(engine, name, "email")
    topic = engine.broker.topics[name]
    assert topic.policy == made.policy == DEFAULT
    set_topic(engine, name, max_messages=5)
    assert topic.policy.max_messages == 5
    for changes in ({"retain": "1h"}, {"overflow": "refuse"}):
        with pytest.raises(PolicyError) as caught:
            policies(engine).set_topic(topic, changes)
        assert (caught.value.code, caught.value.conflict) == ("EPHEMERAL_TOPIC", True)
    with pytest.raises(PolicyError, match="have no policy"):
        policies(engine).set_channel(made, {"max_attempts": 5})


def test_limits_of_an_ephemeral_channel_apply_only_with_drop(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    rule = '[[policy]]\nmax_attempts = 5\nmsg_ttl = "1h"\non_expired = "topic"\n'
    with caplog.at_level(logging.WARNING):
        reload(engine, rule)
        for name in ("a#ephemeral", "b#ephemeral"):
            made = channel(engine, "t", name)
            # A message is dropped only if the policy says so.
            assert (made.policy.max_attempts, made.policy.msg_ttl_ns) == (0, 0)
    for key in ("max_attempts", "msg_ttl"):
        assert caplog.text.count(f"policy: {key} of file") == 1
    note = "not 5: on_max_attempts is bury, and nothing is kept of an ephemeral channel"
    told = shown(engine, "t", "a#ephemeral", "max_attempts")
    assert told["origin"].startswith("file: ") and (told["value"], told["note"]) == (0, note)
    for key, value in (("on_max_attempts", "bury"), ("on_expired", "topic"), ("max_attempts", 7)):
        with pytest.raises(PolicyError) as caught:
            policies(engine).set_channel(made, {key: value})
        assert (caught.value.code, caught.value.conflict) == ("EPHEMERAL_CHANNEL", True)
        assert made.own_policy == {}
    set_channel(engine, "t", "b#ephemeral", max_attempts=7, on_max_attempts="drop")
    assert (made.policy.max_attempts, made.policy.msg_ttl_ns) == (7, 0)
    reload(engine, rule.replace("topic", "drop"))
    assert made.policy.msg_ttl_ns == HOUR


def test_a_pattern_does_not_move_messages_out_of_a_topic_of_dead_letters(engine: Engine) -> None:
    rule = '[[policy]]\nmax_attempts = 5\non_max_attempts = "topic"\n'
    reload(engine, rule + '[[policy]]\ntopic = "x"\ndead_topic = "graves"')
    assert channel(engine, "orders", "email").policy.on_max_attempts == "topic"
    for dead in ("orders.email.dead", "graves"):
        assert channel(engine, dead, "c").policy.on_max_attempts == "bury"
        assert "topic of dead letters" in shown(engine, dead, "c", "on_max_attempts")["note"]
        # It may be said for the very channel.
        set_channel(engine, dead, "c", on_max_attempts="topic")
        assert engine.topic(dead).channels["c"].policy.on_max_attempts == "topic"


def test_a_topic_becomes_one_of_dead_letters_when_a_channel_names_it(engine: Engine) -> None:
    reload(engine, '[[policy]]\nmax_attempts = 5\non_max_attempts = "topic"\n')
    graves = channel(engine, "graves", "c")
    channel(engine, "orders", "email")
    assert graves.policy.on_max_attempts == "topic"
    set_channel(engine, "orders", "email", dead_topic="graves")
    engine.settle()
    assert graves.policy.on_max_attempts == "bury"
    engine.crash(LOSE)
    engine.start()
    assert engine.topic("graves").channels["c"].policy.on_max_attempts == "bury"
    set_channel(engine, "orders", "email", dead_topic=None)
    assert not policies(engine).is_dead("graves")
    assert engine.topic("graves").channels["c"].policy.on_max_attempts == "topic"


def test_a_topic_is_not_its_own_topic_of_dead_letters(engine: Engine) -> None:
    reload(engine, '[[policy]]\ntopic = "o*"\ndead_topic = "orders"')
    made = channel(engine, "orders", "email")
    assert made.policy.dead_topic == ""
    assert (
        shown(engine, "orders", "email", "dead_topic")["note"]
        == "not orders: it is the topic itself"
    )
    with pytest.raises(PolicyError, match="must not be the topic itself"):
        policies(engine).set_channel(made, {"dead_topic": "orders"})


def test_a_name_that_would_be_too_long_is_refused(engine: Engine) -> None:
    topic, name = "t" * 40, "c" * 30
    made = channel(engine, topic, name)
    with pytest.raises(PolicyError, match="too long; set dead_topic"):
        policies(engine).set_channel(made, {"on_max_attempts": "topic"})
    with pytest.raises(PolicyError, match=f"channel {name} would have too long"):
        policies(engine).set_topic(made.topic, {"on_expired": "topic"})
    set_channel(engine, topic, name, on_max_attempts="topic", dead_topic="graves")
    assert made.policy.on_max_attempts == "topic"
    with pytest.raises(PolicyError, match="too long; set dead_topic"):
        policies(engine).set_channel(made, {"dead_topic": None})
    reload(engine, '[[policy]]\non_expired = "topic"')
    later = channel(engine, topic, name + "d")
    assert later.policy.on_expired == "bury"
    assert "too long" in shown(engine, topic, name + "d", "on_expired")["note"]


def test_a_pull_channel_has_no_policy(engine: Engine) -> None:
    topic = channel(engine, "t", "c").topic
    pulled, created, _ = engine.components.pulls.open(engine.topic("t"), "spark", 0)
    assert engine.done(created) is None
    assert pulled.policy == DEFAULT
    with pytest.raises(PolicyError) as caught:
        policies(engine).set_channel(pulled, {"max_attempts": 5})
    assert (caught.value.code, caught.value.conflict) == ("PULL_CHANNEL", True)
    assert topic.policy.msg_ttl_ns == 60 * SECOND


# ---- channel_lapse


def test_a_channel_without_a_client_lapses(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    reload(engine, '[[policy]]\nchannel_lapse = "1h"')
    channel(engine, "t", "idle")
    client = Client(engine, "t", "busy")
    channel(engine, "t", "x#ephemeral")
    engine.components.pulls.open(engine.topic("t"), "spark", 0)
    engine.publish("t", b"a")
    engine.advance(HOUR - 2 * SECOND)
    assert len(engine.topic("t").channels) == 4
    with caplog.at_level(logging.WARNING):
        engine.advance(4 * SECOND)
    assert set(engine.topic("t").channels) == {"busy", "x#ephemeral", "spark"}
    assert policies(engine).lapses.count == 1
    assert "channel=idle: lapsed after 3600 s without a client, with 1 messages" in caplog.text
    client.close()
    engine.advance(HOUR - 2 * SECOND)
    assert "busy" in engine.topic("t").channels
    engine.advance(4 * SECOND)
    assert "busy" not in engine.topic("t").channels
    engine.crash(LOSE)
    engine.start()
    assert set(engine.topic("t").channels) == {"spark"}


def test_a_short_visit_begins_the_time_again(engine: Engine) -> None:
    reload(engine, '[[policy]]\nchannel_lapse = "1h"')
    channel(engine, "t", "c")
    for _ in range(3):
        engine.advance(HOUR - 2 * SECOND)
        Client(engine, "t", "c").close()  # between two checks
    assert "c" in engine.topic("t").channels


def test_time_in_which_the_node_was_down_does_not_count(engine: Engine) -> None:
    reload(engine, '[[policy]]\nchannel_lapse = "1h"')
    channel(engine, "t", "c")
    engine.advance(HOUR // 2)
    engine.exit()
    engine.clock.advance(5 * HOUR)
    engine.start()
    engine.advance(HOUR - 2 * SECOND)
    assert "c" in engine.topic("t").channels
    engine.advance(4 * SECOND)
    assert "c" not in engine.topic("t").channels


def test_many_channels_lapse_a_few_at_a_time(engine: Engine) -> None:
    reload(engine, '[[policy]]\nchannel_lapse = "1h"')
    for n in range(40):
        channel(engine, "t", f"c{n}")
    counts: list[int] = []
    engine.advance(HOUR - SECOND)
    engine.advance(5 * SECOND, lambda: counts.append(len(engine.topic("t").channels)))
    assert counts[-1] == 0
    assert max(a - b for a, b in itertools.pairwise(counts)) <= 16
