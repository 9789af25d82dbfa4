"""Samples: what nodes say, added up; rates; nonsense."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from penstock.admin.lag import MARK_COUNT_MAX, Lags
from penstock.admin.sample import NodePart, Sample, Since, add_up, read_node

SECOND = 1_000_000_000


def channel(name: str, **numbers: Any) -> dict[str, Any]:
    return {
        "channel_name": name,
        "depth": 0,
        "backend_depth": 0,
        "in_flight_count": 0,
        "deferred_count": 0,
        "message_count": 0,
        "requeue_count": 0,
        "timeout_count": 0,
        "client_count": 0,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
        **numbers,
    }


def topic(name: str, *channels: dict[str, Any], **numbers: Any) -> dict[str, Any]:
    return {
        "topic_name": name,
        "channels": list(channels),
        "depth": 0,
        "backend_depth": 0,
        "message_count": 0,
        "message_bytes": 0,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
        **numbers,
    }


def stats(*topics: dict[str, Any], start_time: int = 7, **more: Any) -> dict[str, Any]:
    return {
        "version": "1.3.0",
        "health": "OK",
        "start_time": start_time,
        "topics": list(topics),
        **more,
    }


class Watch:
    """Samples one after another, five seconds apart."""

    def __init__(self, own: bool = True) -> None:
        self.own = own
        self.earlier: dict[str, NodePart] = {}
        self.lags = Lags()
        self.since: Since | None = None
        self.number = 0

    def look(self, *said: dict[str, Any] | None) -> Sample:
        """What node 0, 1 ... said; None: nothing."""
        self.number += 1
        at_ns = self.number * 5 * SECOND
        sample = Sample(self.number, self.number, at_ns // 1_000_000, at_ns)
        for number, answer in enumerate(said):
            part = NodePart(f"node-{number}", own=self.own)
            if answer is not None:
                read_node(part, answer, at_ns)
            sample.nodes[part.node] = part
        add_up(sample, self.earlier, self.since)
        self.since = Since(at_ns, sample.at_ms)
        self.lags.measure(sample)
        self.earlier |= {node: part for node, part in sample.nodes.items() if part.answered}
        return sample


def test_numbers_of_all_nodes_add_up() -> None:
    one = topic("t", channel("c", depth=3, in_flight_count=1, client_count=2), depth=1)
    other = topic("t", channel("c", depth=4, deferred_count=5), channel("d", paused=True))
    sample = Watch().look(stats(one), stats(other, topic("alone", message_count=9)))
    assert list(sample.topics) == ["alone", "t"]
    summed = sample.topics["t"].channels["c"]
    assert (summed.depth, summed.in_flight, summed.deferred, summed.clients) == (7, 1, 5, 2)
    assert summed.nodes == ["node-0", "node-1"]
    assert sample.topics["t"].channels["d"].paused
    assert not summed.paused
    totals = sample.totals
    assert (totals.depth, totals.backlog, totals.messages, sample.channel_count) == (1, 7, 9, 2)


def test_rates_are_what_grew_by_the_time_between() -> None:
    watch = Watch()
    first = watch.look(stats(topic("t", channel("c"))))
    assert first.totals.publish_rate == 0
    busy = channel("c", message_count=50, depth=10, in_flight_count=5, requeue_count=20)
    sample = watch.look(stats(topic("t", busy, message_count=50)))
    found = sample.topics["t"].channels["c"]
    assert sample.topics["t"].publish_rate == pytest.approx(10)
    assert (found.arrival_rate, found.requeue_rate) == (pytest.approx(10), pytest.approx(4))
    assert found.consume_rate == pytest.approx((50 - 15) / 5)
    assert sample.totals.consume_rate == pytest.approx(7)
    assert sample.nodes["node-0"].figures.publish_rate == pytest.approx(10)


@pytest.mark.parametrize("own", [True, False])
def test_what_is_published_with_a_delay_is_not_consumed(own: bool) -> None:
    """Go's nsqd counts such messages at once, ours when they are due."""
    watch = Watch(own=own)
    watch.look(stats(topic("t", channel("c"))))
    counted = 0 if own else 10
    waiting = channel("c", message_count=counted, deferred_count=10)
    sample = watch.look(stats(topic("t", waiting)))
    assert sample.topics["t"].channels["c"].consume_rate == 0
    sample = watch.look(stats(topic("t", channel("c", message_count=10))))
    assert sample.topics["t"].channels["c"].consume_rate == 2


def test_a_restart_and_a_channel_made_anew_count_from_zero() -> None:
    watch = Watch()
    watch.look(stats(topic("t", channel("c", message_count=100), message_count=100)))
    restarted = stats(topic("t", channel("c", message_count=3), message_count=3), start_time=8)
    sample = watch.look(restarted)
    assert sample.topics["t"].publish_rate == pytest.approx(3 / 5)
    # Our nsqd counts what was waiting as arrived again.
    assert (sample.topics["t"].channels["c"].arrival_rate, sample.totals.consume_rate) == (0, 0)
    again = watch.look(stats(topic("t", message_count=5000), start_time=9))
    assert again.topics["t"].publish_rate == 1000, "however it compares with what it was before"
    watch.look(restarted)
    sample = watch.look(
        stats(topic("t", channel("c", message_count=1), message_count=8), start_time=8)
    )
    assert sample.topics["t"].publish_rate == 1
    assert sample.topics["t"].channels["c"].arrival_rate == pytest.approx(1 / 5)


def test_what_came_before_the_first_sight_of_a_topic_or_channel_is_in_the_rates() -> None:
    watch = Watch()
    watch.look(stats())
    new = topic("t", channel("c", message_count=50, depth=20), message_count=50)
    sample = watch.look(stats(new))
    assert sample.topics["t"].publish_rate == sample.totals.publish_rate == 10
    found = sample.topics["t"].channels["c"]
    assert (found.arrival_rate, found.consume_rate) == (10, 6)
    again = topic("t", channel("c", message_count=50, depth=20), message_count=50)
    again["channels"].append(channel("d", message_count=5))
    sample = watch.look(stats(again))
    assert sample.topics["t"].publish_rate == 0
    assert sample.topics["t"].channels["d"].arrival_rate == 1


def test_a_node_started_since_the_last_look_has_counted_from_zero() -> None:
    watch = Watch()
    watch.look(stats(start_time=0))
    busy = topic("t", message_count=50)
    assert watch.look(stats(start_time=0), stats(busy, start_time=6)).totals.publish_rate == 10
    # One that ran before it was known counted before, too.
    watch.look(stats(start_time=0), stats(busy, start_time=6))
    sample = watch.look(stats(start_time=0), stats(busy, start_time=6), stats(busy, start_time=3))
    assert sample.totals.publish_rate == 0


def test_a_topic_is_as_deep_as_its_slowest_channel_and_its_own_queue() -> None:
    """Channels read one log: of 10 messages for three channels 10 wait, not 30."""
    one = topic(
        *("t", channel("a", depth=10), channel("b", depth=4), channel("c", depth=10)),
        depth=2,
        message_count=12,
    )
    other = topic("t", channel("a", depth=1), channel("b", depth=5), message_count=5)
    sample = Watch().look(stats(one), stats(other, topic("u", channel("a", depth=3))))
    found = sample.topics["t"]
    assert (found.depth, found.backlog) == (2, 15)
    assert sample.totals.depth + sample.totals.backlog == 2 + 15 + 3
    assert sample.nodes["node-1"].figures.backlog == 8


def test_a_deferred_message_counts_once_however_many_channels_will_get_it() -> None:
    ours = topic("t", *(channel(n, deferred_count=7) for n in "abc"), deferred_count=7)
    sample = Watch().look(stats(ours))
    assert sample.topics["t"].deferred == sample.totals.deferred == 7
    assert sample.topics["t"].channels["a"].deferred == 7
    go = topic("t", channel("a", deferred_count=7))
    assert Watch(own=False).look(stats(go)).totals.deferred == 7


HOSTILE_NUMBERS = (
    *(1e39, float("nan"), float("inf"), -float("inf"), 1.5, 10**39, -(10**39), 1 << 63),
    *("5", "", None, [], [1], {}, {"a": 1}),
)


@pytest.mark.parametrize("number", HOSTILE_NUMBERS, ids=repr)
def test_a_number_that_nothing_counts_to_is_refused_wherever_it_stands(number: Any) -> None:
    names = [name for name, value in channel("c").items() if type(value) is int]
    for name in names:
        with pytest.raises(ValueError, match="invalid"):
            read_node(NodePart("n"), stats(topic("t", channel("c", **{name: number}))), SECOND)
    for name in ("depth", "backend_depth", "message_count", "message_bytes", "deferred_count"):
        if number is None and name == "deferred_count":
            continue
        with pytest.raises(ValueError, match="invalid"):
            read_node(NodePart("n"), stats(topic("t", **{name: number})), SECOND)


def test_a_count_of_go_that_is_a_little_below_zero_is_zero() -> None:
    sample = Watch().look(stats(topic("t", channel("c", depth=-3), depth=-1)))
    assert (sample.topics["t"].depth, sample.topics["t"].channels["c"].depth) == (0, 0)


def test_texts_are_bounded_and_can_be_shown() -> None:
    part = NodePart("n")
    read_node(part, stats(topic("t"), version="v" * 5000, health="\ud800" * 5000), SECOND)
    assert (len(part.version), part.health) == (255, "?" * 255)
    with pytest.raises(ValueError, match="invalid"):
        read_node(NodePart("n"), stats(topic("\ud800")), SECOND)


def test_a_node_that_missed_a_sample_is_measured_over_both() -> None:
    watch = Watch()
    watch.look(stats(topic("t")), stats(topic("t")))
    missed = watch.look(stats(topic("t")), None)
    assert missed.topics["t"].nodes == ["node-0"]
    sample = watch.look(stats(topic("t")), stats(topic("t", message_count=100)))
    assert sample.topics["t"].publish_rate == pytest.approx(10)


def test_fields_that_go_nsqds_lack_are_not_missed() -> None:
    old = stats(topic("t", channel("c")))
    del old["topics"][0]["message_bytes"]
    for holder in (old["topics"][0], old["topics"][0]["channels"][0]):
        del holder["e2e_processing_latency"]
    del old["start_time"]
    sample = Watch().look(old)
    assert sample.topics["t"].channels["c"].pull is False
    assert sample.topics["t"].message_bytes == 0


def test_any_nonsense_is_refused_as_a_whole() -> None:
    """What a node says is a stranger's word: every value of every field, wrong."""
    good = stats(topic("t", channel("c")))

    def places(value: Any) -> list[tuple[Any, Any]]:
        pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        found = [(value, key) for key, _ in pairs]
        for _, inner in pairs:
            if isinstance(inner, dict | list):
                found += places(inner)
        return found

    count = len(places(good))
    refused = 0
    for number in range(count):
        for wrong in (None, "x", -1.5, [], {}, [[]], {"a": 1}, True, "n" * 200):
            answer = copy.deepcopy(good)
            holder, key = places(answer)[number]
            holder[key] = wrong
            part = NodePart("n")
            try:
                read_node(part, json.loads(json.dumps(answer)), SECOND)
            except ValueError:
                refused += 1
                assert (part.answered, part.topics) == (False, {})
                continue
            # What is let in can be worked with.
            sample = Sample(1, 1, 1, SECOND)
            sample.nodes = {"n": part}
            add_up(sample, {})
            Lags().measure(sample)
    assert refused > count
    for answer in (None, [], "x", 3, {}, {"topics": []}):
        with pytest.raises(ValueError, match="invalid"):
            read_node(NodePart("n"), answer, SECOND)


# Lag


def lag_of(sample: Sample) -> tuple[float, bool]:
    found = sample.topics["t"].channels["c"]
    return found.lag_s, found.lag_open


def said(messages: int, backlog: int) -> dict[str, Any]:
    half = backlog // 2
    numbers = channel("c", message_count=messages, depth=backlog - half, in_flight_count=half)
    return stats(topic("t", numbers))


def test_a_channel_that_keeps_up_has_no_lag() -> None:
    watch = Watch()
    for count in (0, 100, 200):
        assert lag_of(watch.look(said(count, 0))) == (0, False)


def test_lag_is_the_age_of_the_oldest_unfinished_message() -> None:
    watch = Watch()
    watch.look(said(0, 0))
    # 100 messages every 5 s from here on, and none finished: the oldest came just after then.
    for step in range(1, 10):
        lag_s, is_open = lag_of(watch.look(said(100 * step, 100 * step)))
        assert (lag_s, is_open) == (pytest.approx(5 * step), False)
    # All but the last 150 are finished: of those the oldest came in the middle of a step.
    assert lag_of(watch.look(said(1000, 150)))[0] == pytest.approx(7.5)
    assert lag_of(watch.look(said(1000, 150)))[0] == pytest.approx(12.5)
    assert lag_of(watch.look(said(1000, 0))) == (0, False)


def test_a_backlog_older_than_the_watch_is_at_least_as_old() -> None:
    watch = Watch()
    assert lag_of(watch.look(said(1000, 500))) == (0, True)
    assert lag_of(watch.look(said(1000, 400))) == (5, True)
    lag_s, is_open = lag_of(watch.look(said(1100, 50)))
    assert (is_open, lag_s) == (False, pytest.approx(2.5))


def test_lag_starts_anew_when_counters_do() -> None:
    watch = Watch()
    watch.look(said(0, 0))
    watch.look(said(1000, 1000))
    assert lag_of(watch.look(said(10, 10))) == (0, True)


def test_a_node_that_stops_or_comes_does_not_lower_a_lag() -> None:
    watch = Watch()
    watch.look(said(0, 0), said(1000, 0))
    # node-0 finishes nothing for 25 s; node-1 keeps 5 s behind.
    for step in range(1, 6):
        sample = watch.look(said(10 * step, 10 * step), said(1000 + 100 * step, 100))
    assert lag_of(sample) == (pytest.approx(25), False)
    # The slow one stops: its messages are as unfinished as before, and grow older.
    sample = watch.look(None, said(1600, 100))
    assert lag_of(sample) == (pytest.approx(30), False)
    # Another one comes whose counts are higher than all others together.
    sample = watch.look(None, said(1700, 100), said(50_000, 0))
    assert lag_of(sample) == (pytest.approx(35), False)
    # The slow one is back, counts from zero, and has what it had.
    back = stats(topic("t", channel("c", message_count=0, depth=50)), start_time=9)
    sample = watch.look(back, said(1800, 100), said(50_000, 0))
    assert lag_of(sample) == (pytest.approx(40), False)
    done = stats(topic("t", channel("c", message_count=0)), start_time=9)
    assert lag_of(watch.look(done, said(1900, 100), said(50_000, 0)))[0] == pytest.approx(5)


def test_the_quick_one_of_two_nodes_that_stops_leaves_the_slow_ones_lag() -> None:
    watch = Watch()
    watch.look(said(0, 0), said(1000, 0))
    for step in range(1, 6):
        sample = watch.look(said(10 * step, 10 * step), said(1000 + 100 * step, 0))
    assert lag_of(sample)[0] == pytest.approx(25)
    assert lag_of(watch.look(said(60, 60), None)) == (pytest.approx(30), False)


def test_marks_stay_few_and_the_lag_stays_right() -> None:
    watch = Watch()
    watch.look(said(0, 0))
    sample = None
    for step in range(1, 1000):
        sample = watch.look(said(10 * step, 10 * step))
        [node] = watch.lags._nodes.values()
        assert all(len(marks) <= MARK_COUNT_MAX + 1 for marks in node.marks.values())
    assert sample is not None
    assert lag_of(sample)[0] == pytest.approx(5 * 999)
    # Half of it is finished.
    assert lag_of(watch.look(said(9990, 4995)))[0] == pytest.approx(5 * 500, rel=0.05)
