"""One Spark session for all tests of this folder: to start another takes five seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.runner import TABLE_SETTINGS
from penstock.spark.session import SessionPlan, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Half the CPU of a start: no test runs long enough for the JVM's second compiler to pay.
QUICK_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    plan = SessionPlan(name="tests", master="local[2]", conf={**TABLE_SETTINGS, **QUICK_JVM})
    session = open_session(plan)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that end wait for files that they have merged."""
    monkeypatch.setattr("penstock.pipeline.replaced_files.GRACE_MS", 700)
