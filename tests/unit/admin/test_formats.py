"""penstock.admin.formats: numbers and times for people."""

from __future__ import annotations

import re

import pytest

from penstock.admin import formats

S = 1_000_000_000


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("count", 1234567, "1,234,567"),
        ("count", None, formats.UNKNOWN),
        ("brief", 0, "0"),
        ("brief", 999, "999"),
        ("brief", 1234567, "1.23 M"),
        ("brief", 999_999, "1 M"),
        ("brief", 12_345, "12.3 k"),
        ("rate", 0.25, "0.25"),
        ("rate", 99.96, "100"),
        ("rate", 12345.6, "12,346"),
        ("rate", None, formats.UNKNOWN),
        ("span", 0, "0 s"),
        ("span", 1_500, "1.5 µs"),
        ("span", 12_340_000, "12.3 ms"),
        ("span", 1.5 * S, "1.5 s"),
        ("span", 90 * S, "1 min 30 s"),
        ("span", 3600 * S, "1 h"),
        ("span", 90_061 * S, "1 d 1 h"),
        ("span_ms", 250, "250 ms"),
        ("span_s", None, formats.UNKNOWN),
        ("size", 0, "0 B"),
        ("size", 2048, "2 KiB"),
        ("size", 1023.9, "1 KiB"),
        ("quantile", 0.99, "p99"),
        ("quantile", 0.999, "p99.9"),
        ("moment", 0, "1970-01-01 00:00:00 UTC"),
        ("moment", 1e30, formats.UNKNOWN),
        ("segment", "a#ephemeral", "a%23ephemeral"),
        ("segment", "10.0.0.1:4151", "10.0.0.1:4151"),
        ("segment", 'x"/<', "x%22%2F%3C"),
    ],
)
def test_numbers_as_people_read_them(name: str, value: float | str | None, text: str) -> None:
    assert getattr(formats, name)(value) == text


def test_nouns_are_counted() -> None:
    assert [formats.several(n, "topic") for n in (0, 1, 2000)] == [
        "0 topics",
        "1 topic",
        "2,000 topics",
    ]


def test_an_open_lag_says_at_least() -> None:
    assert formats.lag(3.0, True) == "≥ 3 s"
    assert formats.lag(3.0) == "3 s"
    assert 'data-value="90.000"' in formats.lag_cell(90.0)


def test_cells_are_muted_when_there_is_nothing() -> None:
    assert "zero" in formats.count_cell(0)
    assert "zero" in formats.rate_cell(None)
    assert "zero" not in formats.rate_cell(0.01)


@pytest.mark.parametrize("name", ["orders", "a.b-c_d", "x#ephemeral"])
def test_a_confirming_field_takes_the_name_alone(name: str) -> None:
    pattern = formats.only(name)
    assert re.fullmatch(pattern, name)
    assert not re.fullmatch(pattern, name.replace(".", "x") + "y")
    assert "\\" not in pattern  # browsers refuse escapes that are not needed


@pytest.mark.parametrize("name", sorted({*formats.FILTERS} - {"segment", "only", "several"}))
@pytest.mark.parametrize("value", ["<b>", 10**400, float("nan"), float("inf"), [], {}, "7"])
def test_what_is_no_number_is_a_dash(name: str, value: object) -> None:
    assert formats.UNKNOWN in formats.FILTERS[name](value)  # type: ignore[operator]
