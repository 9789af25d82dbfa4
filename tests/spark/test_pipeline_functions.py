"""Functions that fail: retries by deferral, dead letters, and each row once whatever happens."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PipelineError
from penstock.pipeline import batches
from tests.spark.pipelines import Running, bodies, declared, publish, run, topics
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

STEPS = """
import pathlib

def flaky(row):
    n = int(row["body"])
    if n % 10 == 3:
        raise ValueError(f"never {n}")
    if n % 10 == 5:
        # Fails the first time only.
        mark = pathlib.Path(__file__ + f".{n}")
        if not mark.exists():
            mark.touch()
            raise KeyError(n)
    return {"n": n, "topic_of": row["topic"]}

def random_fate(row):
    import random
    if random.random() < 0.5:
        raise ValueError("bad luck")
    return {"n": int(row["body"])}
"""


def test_failures_come_again_and_in_the_end_are_dead_letters(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    (tmp_path / "flaky_steps.py").write_text(STEPS)
    publish(nsqd, "numbers", [str(n).encode() for n in range(30)])
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": "numbers"},
        transform=[
            {"sql": "SELECT topic, body FROM input"},
            {"function": "flaky_steps:flaky", "returns": "n bigint, topic_of string"},
        ],
        retry={"max_attempts": 3, "delay": "200ms"},
        sink={"type": "topic", "topic": "results"},
        trigger={},
    )
    with Running(spark, pipeline, tmp_path) as running:
        running.until(lambda: topics(nsqd).get("test.dead") == 3)
        running.until(lambda: topics(nsqd).get("results") == 27)
    results = [json.loads(body) for body in bodies(spark, nsqd, "results")]
    assert sorted(each["n"] for each in results) == [n for n in range(30) if n % 10 != 3]
    assert {each["topic_of"] for each in results} == {"numbers"}
    dead = [json.loads(body) for body in bodies(spark, nsqd, "test.dead")]
    assert sorted(each["error"] for each in dead) == [f"ValueError: never {n}" for n in (13, 23, 3)]
    assert {each["attempts"] for each in dead} == {3}
    assert {each["row"]["topic"] for each in dead} == {"numbers"}
    # Two retries of each that never succeeds, one of those that do: deferred ones are counted too.
    assert topics(nsqd)["test.retry"] == 3 * 2 + 3


class Crash(Exception):
    """In place of a kill."""


def test_a_row_has_one_fate_whatever_is_cut_off(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function decides by chance, and each step of the batch is cut off once."""
    (tmp_path / "random_steps.py").write_text(STEPS)
    publish(nsqd, "numbers", [str(n).encode() for n in range(200)])
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": "numbers"},
        transform=[{"function": "random_steps:random_fate", "returns": "n bigint"}],
        retry={"max_attempts": 1},
        sink=[{"type": "parquet", "path": "table"}, {"type": "topic", "topic": "results"}],
    )
    for step in ("_write_rows", "_publish_asides"):
        for when in ("before", "after"):
            with monkeypatch.context() as patch:
                cut(patch, step, when)
                with pytest.raises(PipelineError, match="Crash"):
                    run(spark, pipeline, tmp_path)
    run(spark, pipeline, tmp_path)
    table = Counter(row["n"] for row in spark.read.parquet(str(tmp_path / "table")).collect())
    results = Counter(json.loads(body)["n"] for body in bodies(spark, nsqd, "results"))
    dead = Counter(
        int(json.loads(body)["row"]["body"]["text"]) for body in bodies(spark, nsqd, "test.dead")
    )
    assert table == results
    assert table + dead == Counter(range(200))
    assert 50 < sum(dead.values()) < 150


def cut(patch: pytest.MonkeyPatch, step: str, when: str) -> None:
    original: Any = getattr(batches.Batches, step)

    def crashing(self: Any, *arguments: Any) -> None:
        if when == "after":
            original(self, *arguments)
        raise Crash(step)

    patch.setattr(batches.Batches, step, crashing)
