"""Patterns of names: the same as fnmatch, and fast for many."""

from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.policy.globs import Glob, GlobIndex, is_pattern, plain
from tests.support.timing import late_s

PATTERNS = st.text("ab.*?", min_size=1, max_size=8)
NAMES = st.text("ab.", min_size=1, max_size=10)


def naive(pattern: str, name: str) -> bool:
    return re.fullmatch(fnmatch.translate(pattern), name) is not None


@given(PATTERNS, NAMES)
def test_a_pattern_matches_what_fnmatch_says(pattern: str, name: str) -> None:
    assert Glob(pattern).matches(name) == naive(pattern, name)
    assert naive(plain(pattern), name) == naive(pattern, name)


@given(st.lists(PATTERNS, max_size=12), NAMES)
def test_an_index_finds_the_patterns_that_match(patterns: list[str], name: str) -> None:
    expected = [place for place, pattern in enumerate(patterns) if naive(pattern, name)]
    assert GlobIndex(map(plain, patterns)).find(name) == expected


@pytest.mark.parametrize("text", ["", "a b", "a/b", "[a]", "ä", "a" * 65, "a\n", "a{b}"])
def test_what_matches_no_name_is_no_pattern(text: str) -> None:
    assert not is_pattern(text)


@pytest.mark.parametrize("text", ["*", "orders.*", "a?b", "*#ephemeral", "a" * 64])
def test_names_with_wildcards_are_patterns(text: str) -> None:
    assert is_pattern(text)


@pytest.mark.parametrize(
    "patterns",
    [
        [f"tenant{n}.*" for n in range(10_000)],
        [f"*.{n}" for n in range(10_000)],
        [f"*{n}*" for n in range(10_000)],
        ["*a" * 31 + f"{n % 100:02}" for n in range(10_000)],
        ["?" * (n % 64) + "*" for n in range(10_000)],
    ],
)
def test_ten_thousand_patterns_cost_milliseconds(patterns: list[str]) -> None:
    index = GlobIndex(map(plain, patterns))
    index.find("tenant77.orders")
    start_s = time.perf_counter()
    for name in ("tenant77.orders", "a" * 64):
        index.find(name)
    assert time.perf_counter() - start_s < 0.05 + late_s(0.2)
