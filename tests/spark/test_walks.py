"""A dozen random walks with real Spark and the real run of a pipeline."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.audit import examine
from penstock.pipeline.audit_findings import Report
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.losses import Answers
from penstock.pipeline.runner import Run
from penstock.pipeline.spec import Pipeline
from penstock.pipeline.status import Status, StatusFile
from tests.spark.micro_batches import Steps
from tests.spark.pipelines import Screen
from tests.spark.walk import Place, actions_of, walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = range(1, 13)
# Another query would have to run inside a batch of this one.
WITHOUT = ("run_disturbed",)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with Place.open() as opened:
        yield opened


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_is_in_the_table_once_or_was_told(
    spark: SparkSession, place: Place, tmp_path: Path, seed: int
) -> None:
    def run(pipeline: Pipeline, answers: Answers, steps: Steps, _: random.Random) -> None:
        status = StatusFile(Status(pipeline.name), tmp_path / "status")
        with steps.counted():
            Run(pipeline, Screen(), status, spark=spark, answers=answers).run()

    def audit(folder: LocalFolder, parameters: dict[str, str]) -> Report:
        return examine(spark, folder, parameters)

    walk(place, actions_of(seed, 1, 3, WITHOUT), run, audit)
