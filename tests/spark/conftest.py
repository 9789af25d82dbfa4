"""One Spark session for all tests of this folder: to start another takes five seconds.

A module that wants options for its ``broker`` has them in ``BROKER_OPTIONS``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.runner import TABLE_SETTINGS
from penstock.spark.session import SessionPlan, open_session
from tests.spark import jvm
from tests.spark.topics import new_topic, nodes
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUICK_JVM = {"spark.driver.extraJavaOptions": jvm.QUICK_DRIVER}


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


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nsqd]:
    """An nsqd for all tests of a module; each has topics of its own."""
    options = getattr(request.module, "BROKER_OPTIONS", ())
    with Nsqd(tmp_path_factory.mktemp("broker"), *options) as daemon:
        yield daemon


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Nsqd]:
    """Another node beside ``broker``."""
    with Nsqd(tmp_path / "second", "--node-id=9") as daemon:
        yield daemon


@pytest.fixture
def topic() -> str:
    return new_topic()


@pytest.fixture
def options(broker: Nsqd, topic: str) -> dict[str, str]:
    """Those of a stream that reads ``topic`` of ``broker``."""
    return {**nodes(broker), "topic": topic, "channel": "c"}
