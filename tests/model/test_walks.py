"""Two hundred random walks over a pipeline's days, without Spark; `make walks` takes thousands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import Nsqd
from tests.spark.walking import actions_of, brokers, walk

SEEDS = range(200)
AT_ONCE = 20


@pytest.fixture(scope="module")
def nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    with brokers(tmp_path_factory.mktemp("brokers")) as daemons:
        yield daemons


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_every_message_is_in_the_table_once_or_was_told(
    nsqds: list[Nsqd], tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + AT_ONCE):
        try:
            walk(nsqds, tmp_path / "walk", actions_of(seed, most=8))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
