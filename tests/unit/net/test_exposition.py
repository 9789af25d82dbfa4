"""What is written is what the official parser reads."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.latency import Histogram
from penstock.net.exposition import (
    BOUNDS_S,
    COUNTER,
    GAUGE,
    PIECE_COUNT,
    family,
    histogram,
    labels,
    single,
)


@given(st.dictionaries(st.sampled_from(["topic", "channel", "x"]), st.text()), st.text())
@example({"topic": 'a"b\\c\nd', "channel": "\\n"}, 'say "x"\\\n')
def test_any_label_and_help_is_read_back(values: dict[str, str], help: str) -> None:
    text = b"".join(family("penstock_x", GAUGE, help, [(labels(values), 3)])).decode()
    (found,) = text_string_to_metric_families(text)
    (sample,) = found.samples
    assert (found.name, found.type, sample.value) == ("penstock_x", "gauge", 3)
    assert sample.labels == values


def test_what_is_not_utf_8_is_replaced() -> None:
    assert labels({"topic": "a\udcffb"}) == '{topic="a?b"}'


def test_a_counter_and_a_gauge() -> None:
    text = single("penstock_a_total", COUNTER, "All.", 7) + single(
        "penstock_b", GAUGE, "Some.", 0.5
    )
    counter, gauge = text_string_to_metric_families(text.decode())
    assert (counter.name, counter.type, counter.documentation) == ("penstock_a", "counter", "All.")
    assert (counter.samples[0].name, counter.samples[0].value) == ("penstock_a_total", 7)
    assert gauge.samples[0].value == 0.5


def test_a_histogram_is_cumulative_and_in_seconds() -> None:
    times = Histogram()
    for value_ns in (50_000, 2_000_000, 2_000_000, 60_000_000_000):
        times.add(value_ns)
    (found,) = text_string_to_metric_families(
        histogram("penstock_lag_seconds", "x", times).decode()
    )
    assert found.type == "histogram"
    buckets = {s.labels["le"]: s.value for s in found.samples if s.name.endswith("_bucket")}
    assert len(buckets) == len(BOUNDS_S) + 1
    assert (buckets["0.0001"], buckets["0.001"], buckets["0.0025"]) == (1, 1, 3)
    assert (buckets["10.0"], buckets["+Inf"]) == (3, 4)
    rest = {s.name.rpartition("_")[2]: s.value for s in found.samples[len(buckets) :]}
    assert rest == {"sum": 60.00405, "count": 4}


def test_a_large_family_comes_in_pieces() -> None:
    samples = [(labels({"topic": str(number)}), number) for number in range(2 * PIECE_COUNT + 1)]
    pieces = list(family("penstock_x", GAUGE, "x", samples))
    assert len(pieces) == 4
    (found,) = text_string_to_metric_families(b"".join(pieces).decode())
    assert len(found.samples) == len(samples)
