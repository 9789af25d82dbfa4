"""The keys of policies and their kinds."""

from __future__ import annotations

import pytest

from penstock.settings.kinds import DurationRange, Size, parse_size
from penstock.settings.policy import BY_KEY, DEFAULT, KEYS

SIZES = {
    "0": 0,
    "4096": 4096,
    "10GB": 10**10,
    "10 gb": 10**10,
    "1.5MiB": 3 << 19,
    "64MB": 64 * 10**6,
    "1TiB": 1 << 40,
}


@pytest.mark.parametrize("text", SIZES)
def test_a_size_is_read(text: str) -> None:
    assert parse_size(text) == SIZES[text]
    assert parse_size(Size().show(SIZES[text])) == SIZES[text]


@pytest.mark.parametrize("text", ["", "GB", "-1", "1PB", "1e3", "1.MB", "9" * 19 + "TB", "1 0MB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_a_backoff_is_two_durations_in_order() -> None:
    kind = DurationRange(1_000_000, 10**15)
    assert kind.parse("1s..15m") == (10**9, 900 * 10**9)
    assert kind.show(kind.parse("1s..15m")) == "1s..15m"
    assert kind.parse("") is None and kind.show(None) == ""
    for text in ("1s", "15m..1s", "0..1s", "1s...2s", "1s..", "..1s", "1s..1000000h"):
        with pytest.raises(ValueError):
            kind.parse(text)
    assert BY_KEY["requeue_backoff"].kind.allowed() == (
        '"" or two durations such as 1s..15m, the second not shorter, from 1ms to 7d'
    )


@pytest.mark.parametrize("setting", KEYS, ids=lambda setting: setting.option)
def test_the_default_of_a_key_is_a_value_that_can_be_set(setting: object) -> None:
    assert BY_KEY[setting.option] is setting  # type: ignore[attr-defined]
    shown = setting.kind.show(setting.default)  # type: ignore[attr-defined]
    assert setting.kind.parse(shown) == getattr(DEFAULT, setting.field)  # type: ignore[attr-defined]
