"""The last hour: steps, gaps, who did what, and its size."""

from __future__ import annotations

import pytest

from penstock.admin.history import CLUSTER, METRICS, WIDTH, History
from penstock.admin.sample import ChannelSum, Figures, NodePart, Sample, TopicSum


def sample_of(tick: int, depths: dict[str, int], node: str | None = "n") -> Sample:
    """Topics with one channel each; ``node`` None: it did not answer."""
    sample = Sample(tick, tick, tick * 5000, tick * 5_000_000_000)
    for name, depth in depths.items():
        topic = sample.topics[name] = TopicSum(name)
        channel = topic.channels["c"] = ChannelSum(name, "c")
        channel.depth = topic.backlog = depth
        channel.consume_rate = depth / 2
    total = sum(depths.values())
    sample.totals = Figures(backlog=total)
    if node is not None:
        sample.nodes[node] = NodePart(node, answered=True, figures=Figures(backlog=total))
    return sample


def series(history: History, key: tuple[str, ...], span: str = "recent", metric: str = "depth"):
    chart = history.chart(key, metric)
    return chart[span]["series"][metric]


def test_a_chart_has_every_number_of_a_channel() -> None:
    history = History(5.0)
    for tick, depth in enumerate((4, 6, 0, 8)):
        history.record(sample_of(tick, {"t": depth}))
    key = ("channel", "t", "c")
    assert series(history, key) == [4, 6, 0, 8]
    assert series(history, key, metric="out_rate") == [2, 3, 0, 4]
    assert series(history, ("topic", "t")) == [4, 6, 0, 8]
    assert series(history, CLUSTER) == [4, 6, 0, 8]
    chart = history.chart(key)
    assert set(chart["recent"]["series"]) == set(METRICS)
    assert (chart["recent"]["step_ms"], chart["hour"]["step_ms"]) == (5000, 15000)
    assert (chart["recent"]["end_ms"], chart["recent"]["count_max"]) == (15000, 120)
    assert chart["hour"]["count_max"] == 240


def test_the_hour_is_the_mean_of_three_samples() -> None:
    history = History(5.0)
    for tick, depth in enumerate((3, 6, 9, 1, 1, 1, 5)):
        history.record(sample_of(tick, {"t": depth}))
    assert series(history, ("topic", "t"), "hour") == [6, 1]


def test_quiet_channels_are_zero_and_take_no_room() -> None:
    history = History(5.0)
    for tick in range(3):
        history.record(sample_of(tick, {f"t{n}": 0 for n in range(1000)}))
    assert series(history, ("channel", "t7", "c")) == [0, 0, 0]
    assert history.size < 1000
    history.record(sample_of(3, {f"t{n}": 1 for n in range(1000)}))
    assert history.size == pytest.approx(2000 * (4 + 4 * WIDTH), rel=0.1)


def test_a_node_that_does_not_answer_is_a_gap_not_a_zero() -> None:
    history = History(5.0)
    for tick in range(4):
        node = "n" if tick in (0, 3) else None
        history.record(sample_of(tick, {"t": 6}, node))
    assert series(history, ("node", "n")) == [6, None, None, 6]
    assert series(history, ("node", "n"), "hour") == [6], "the mean of when it was there"
    assert series(history, ("node", "other")) == [None] * 4


def test_missed_samples_are_bridged_or_shown_as_a_gap() -> None:
    history = History(5.0)
    for tick in (0, 1, 4, 9):
        history.record(sample_of(tick, {"t": tick + 1}))
    assert series(history, ("topic", "t")) == [1, 2, 2, 2, 5, None, None, None, None, 10]


def test_two_samples_of_one_tick_are_one() -> None:
    history = History(5.0)
    for tick, depth in ((0, 1), (1, 5), (1, 7), (2, 2)):
        history.record(sample_of(tick, {"t": depth}))
    assert series(history, ("topic", "t")) == [1, 7, 2]


def rated(tick: int, at_s: float, rate: float) -> Sample:
    sample = sample_of(tick, {"t": 1})
    sample.at_ms = int(at_s * 1000)
    sample.topics["t"].publish_rate = rate
    return sample


def test_rates_of_two_samples_of_one_tick_are_those_of_both_together() -> None:
    """An action makes a sample come early; what was counted until then is not forgotten."""
    history = History(5.0)
    # 100 messages in 5 s, 60 in 1 s, 40 in 4 s.
    for tick, at_s, rate in ((0, 0.0, 0.0), (1, 5.0, 20.0), (1, 6.0, 60.0), (2, 10.0, 10.0)):
        history.record(rated(tick, at_s, rate))
    rates = series(history, ("topic", "t"), metric="in_rate")
    assert rates == [0, pytest.approx(160 / 6, abs=0.001), 10]


def test_a_missed_tick_has_the_rate_of_the_next_sample() -> None:
    history = History(5.0)
    for tick, at_s, rate in ((0, 0.0, 0.0), (1, 5.0, 2.0), (3, 15.0, 10.0)):
        history.record(rated(tick, at_s, rate))
    assert series(history, ("topic", "t"), metric="in_rate") == [0, 2, 10, 10]


def test_old_columns_go() -> None:
    history = History(5.0)
    for tick in range(1000):
        history.record(sample_of(tick, {"t": tick}))
    assert series(history, ("topic", "t")) == list(range(880, 1000))
    hour = series(history, ("topic", "t"), "hour")
    assert len(hour) == 240
    assert hour[-1] == 997  # of 996, 997 and 998; 999 is alone so far


def test_a_topic_made_again_has_a_new_history() -> None:
    history = History(5.0)
    for tick, depths in enumerate(({"t": 5}, {}, {"t": 1})):
        history.record(sample_of(tick, depths))
    assert series(history, ("topic", "t")) == [0, 0, 1]
    assert series(history, ("topic", "never")) == [0, 0, 0]


def test_its_size_is_bounded_whatever_there_is() -> None:
    history = History(5.0, size_max=130_000)
    for tick in range(400):
        history.record(sample_of(tick, {f"t{n}": 1 for n in range(5)}))
    assert len(series(history, ("topic", "t0"), "hour")) == 133
    for tick in range(400, 440):
        history.record(sample_of(tick, {f"t{n}": 1 for n in range(25)}))
        assert history.size <= 130_000
    assert len(series(history, ("topic", "t0"), "hour")) < 133
    for tick in range(440, 460):
        history.record(sample_of(tick, {f"t{n}": 1 for n in range(1000)}))
    assert len(series(history, ("topic", "t0"))) == 3, "what a column of the hour is made of"


def test_an_empty_history_has_empty_charts() -> None:
    chart = History(5.0).chart(("topic", "t"), "depth")
    assert chart["hour"] == {
        "step_ms": 15000,
        "end_ms": 0,
        "count_max": 240,
        "series": {"depth": []},
    }
