"""Two hundred random walks over a pipeline's days, without Spark; `make walks` takes thousands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.walk import Place, actions_of, walk

SEEDS = range(200)
AT_ONCE = 20


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with Place.open() as opened:
        yield opened


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_every_message_is_in_the_table_once_or_was_told(place: Place, first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        try:
            walk(place, actions_of(seed, most=8))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
