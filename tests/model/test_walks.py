"""Two hundred random walks over a pipeline's days, without Spark; `make walks` takes thousands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.topics import SMALL
from tests.spark.walking import actions_of, walk
from tests.support.daemon import Nsqd

SEEDS = range(200)
AT_ONCE = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("broker"), SMALL) as daemon:
        yield daemon


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_every_message_is_in_the_table_once_or_was_told(
    broker: Nsqd, tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + AT_ONCE):
        try:
            walk(broker, tmp_path / "walk", actions_of(seed, most=8))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
