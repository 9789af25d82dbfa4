from __future__ import annotations

import pytest

from penstock.core.latency import Latency
from penstock.engine.stats.latency import OFF, Percentiles, format_ns, measured
from penstock.wire import gojson


def latency_of(*values_ns: int) -> Latency:
    latency = Latency(1000)
    for value_ns in values_ns:
        latency.add(value_ns, 500)
    return latency


def test_without_percentiles_nothing_is_told() -> None:
    assert measured([latency_of(5)], (), 500) is OFF
    assert OFF.as_json() == {"count": 0, "percentiles": None}


def test_percentiles_stand_in_the_order_of_the_flags() -> None:
    told = measured([latency_of(*range(1, 51))], (1.0, 0.99, 0.5), 500)
    assert told == Percentiles(50, ((1.0, 50), (0.99, 50), (0.5, 25)))
    assert gojson.encode(told.as_json()) == (
        b'{"count":50,"percentiles":[{"quantile":1,"value":50},{"quantile":0.99,"value":50},'
        b'{"quantile":0.5,"value":25}]}'
    ), "1, not 1.0, as Go writes it"


def test_a_quiet_channel_tells_zeros() -> None:
    assert measured([None, latency_of()], (0.99,), 500) == Percentiles(0, ((0.99, 0),))


def test_a_topic_tells_what_all_its_channels_together_measured() -> None:
    told = measured([latency_of(1, 2), None, latency_of(60, 3)], (0.75, 0.25), 500)
    assert told == Percentiles(4, ((0.75, 3), (0.25, 1)))


@pytest.mark.parametrize(
    ("value_ns", "words"),
    [
        (0, "0.0ns"),
        (1000, "1000.0ns"),
        (1001, "1.0us"),
        (1_000_000, "1000.0us"),
        (1_250_000, "1.2ms"),
        (1_002_310_506, "1.0s"),
        (90_000_000_000, "90.0s"),
    ],
)
def test_people_read_them_in_nsqds_units(value_ns: int, words: str) -> None:
    assert format_ns(value_ns) == words
