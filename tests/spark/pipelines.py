"""Pipelines in the tests' own process: run to their end, or until something holds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline.consistency import check
from penstock.pipeline.losses import Answers
from penstock.pipeline.runner import Run
from penstock.pipeline.spec import Pipeline
from penstock.pipeline.spec_file import from_table, read_pipeline
from penstock.pipeline.status import Status, StatusFile
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN_SECONDS_MAX = 200.0
NOW = ["trigger.every=0", "trigger.messages=0", "trigger.available_now=true"]


class Screen:
    """What a run told."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.logged: list[str] = []
        self.told: list[str] = []

    def show(self, text: str) -> None:
        self.shown.append(text)

    def log(self, text: str) -> None:
        self.logged.append(text)

    def progress(self, text: str) -> None:
        if self.told[-1:] != [text]:
            self.told.append(text)


class Running:
    """A pipeline on a thread."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, folder: Path) -> None:
        self.screen = Screen()
        self.status = StatusFile(Status(pipeline.name), folder / "status")
        self.run = Run(pipeline, self.screen, self.status, spark=spark)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._target, daemon=True)

    def _target(self) -> None:
        try:
            self.run.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run.stop.set()
        self._thread.join(RUN_SECONDS_MAX)
        assert not self._thread.is_alive()

    def until(self, holds: Callable[[], object]) -> None:
        def alive() -> bool:
            if self.error is not None:
                raise self.error
            return self._thread.is_alive()

        wait_until(holds, RUN_SECONDS_MAX, lambda: self.screen.told, alive)


def run(spark: SparkSession, pipeline: Pipeline, folder: Path, **answers: str) -> Screen:
    """Run a pipeline to its end; ``answers`` are flags of `penstock pipeline run`."""
    screen = Screen()
    status = StatusFile(Status(pipeline.name), folder / "status")
    Run(pipeline, screen, status, spark=spark, answers=Answers(**answers)).run()
    return screen


def shipped(name: str, nsqd: Nsqd, *overrides: str) -> Pipeline:
    address = f"parameters.nsqd=127.0.0.1:{nsqd.http_port}"
    return read_pipeline(name, [address, *overrides])


def declared(folder: Path, nsqd: Nsqd, **tables: Any) -> Pipeline:
    """A pipeline of tables as a file has them; it takes what there is, then ends."""
    source = {"nsqd_http_addresses": f"127.0.0.1:{nsqd.http_port}", **tables.pop("source")}
    table = {"name": "test", "trigger": {"available_now": True}, "source": source, **tables}
    return check(from_table(table, (), folder))


def publish(nsqd: Nsqd, topic: str, bodies: Iterable[Any]) -> None:
    """Bodies that are no bytes go as JSON."""
    lines = [b if isinstance(b, bytes) else json.dumps(b).encode() for b in bodies]
    reply = nsqd.post(f"/mpub?topic={topic}", b"\n".join(lines))
    assert reply.text == "OK"


def topics(nsqd: Nsqd) -> dict[str, int]:
    """How many messages each topic has got."""
    stats = nsqd.get("/stats?format=json").json
    return {topic["topic_name"]: topic["message_count"] for topic in stats["topics"]}


def channel(nsqd: Nsqd, topic: str, name: str) -> dict[str, Any]:
    stats = nsqd.get(f"/stats?format=json&topic={topic}&channel={name}").json
    [found] = stats["topics"][0]["channels"]
    return dict(found)


def bodies(spark: SparkSession, nsqd: Nsqd, topic: str) -> list[bytes]:
    """What a topic holds, in order."""
    rows = (
        spark.read.format("nsq")
        .option("nsqdHttpAddresses", f"127.0.0.1:{nsqd.http_port}")
        .option("topic", topic)
        .load()
        .orderBy("index")
        .select("body")
        .collect()
    )
    return [bytes(row["body"]) for row in rows]
