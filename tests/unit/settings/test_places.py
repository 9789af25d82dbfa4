"""Places in a log, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.settings.places import INDEX_MAX, Place, StartKind, parse_place

GOOD = {
    "earliest": Place("earliest"),
    "latest": Place("latest"),
    "queued": Place("queued"),
    "-1h": Place("ago", 3_600_000_000_000),
    "-7d12h": Place("ago", 7 * 86_400_000_000_000 + 43_200_000_000_000),
    "index:0": Place("index", 0),
    f"index:{INDEX_MAX}": Place("index", INDEX_MAX),
    "1790856000000000000": Place("time", 1_790_856_000_000_000_000),
    "2026-10-01T12:00:00Z": Place("time", 1_790_856_000_000_000_000),
    "2026-10-01 14:00:00.5+02:00": Place("time", 1_790_856_000_500_000_000),
    "1970-01-01T00:00:00.000000001Z": Place("time", 1),
}

BAD = (
    *("", "now", "1h", "-", "-1", "-0", "-1x", "index:", "index:-1", "index:1.5", "+5"),
    *("1" * 20, str(2**63), f"index:{INDEX_MAX + 1}", "2026-10-01", "2026-10-01T12:00:00"),
    *("2026-13-01T12:00:00Z", "2026-10-01T25:00:00Z", "1960-01-01T00:00:00Z"),
    *("9999-12-31T23:59:59Z", "earliest ", "-" + "1" * 70 + "h", "2026-10-01T12:00:00+99:00"),
)


@pytest.mark.parametrize("text", GOOD)
def test_a_place_is_read(text: str) -> None:
    assert parse_place(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_place(text)


@given(st.text(max_size=80))
def test_any_text_is_a_place_or_a_value_error(text: str) -> None:
    try:
        place = parse_place(text)
    except ValueError:
        return
    assert parse_place(str(place)) == place


@pytest.mark.parametrize("text", ["index:5", "2026-10-01T12:00:00Z", "17"])
def test_a_topics_channels_start_at_a_place_that_lasts(text: str) -> None:
    with pytest.raises(ValueError):
        StartKind().parse(text)
    assert StartKind().parse("-1h").number == 3_600_000_000_000
