"""Runs that cannot go on, and ways to declare that the shipped pipelines do not use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PenstockError, PipelineError
from penstock.pipeline.spec_file import read_pipeline
from penstock.pipeline.validation import validate
from tests.spark.pipelines import Running, bodies, channel, declared, publish, run, topics
from tests.support.daemon import Nsqd
from tests.support.small_disk import small_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)


def test_a_topic_that_was_made_again_is_told_and_can_be_gone_on_with(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": "orders"},
        sink={"type": "parquet", "path": "table"},
    )
    publish(nsqd, "orders", [b"1", b"2"])
    run(spark, pipeline, tmp_path)
    nsqd.post("/topic/delete?topic=orders&force=true", b"")
    publish(nsqd, "orders", [b"3"])
    with pytest.raises(PipelineError) as caught:
        run(spark, pipeline, tmp_path)
    said = str(caught.value)
    assert "topic orders" in said and "was deleted and created again" in said
    assert "--accept-loss=" in said
    assert "\n" not in said
    going_on = declared(
        tmp_path,
        nsqd,
        source={"topics": "orders", "fail_on_data_loss": False},
        sink={"type": "parquet", "path": "table"},
    )
    run(spark, going_on, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(bytes(row["body"]) for row in rows) == [b"1", b"2", b"3"]

    # The folder belongs to this pipeline.
    other = declared(
        tmp_path,
        nsqd,
        name="other",
        checkpoint="checkpoints/test",
        source={"topics": "orders"},
        sink={"type": "console"},
    )
    with pytest.raises(
        PipelineError, match=r"belongs to the pipeline test, not to other\.  Use another"
    ):
        run(spark, other, tmp_path)


def test_a_broker_that_is_not_there_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "gone") as gone:
        pass
    pipeline = declared(
        tmp_path,
        gone,
        source={"topics": "orders", "options": {"retryTimeout": "200ms"}},
        sink={"type": "console"},
    )
    with pytest.raises(PenstockError, match=rf"nsqd 127.0.0.1:{gone.http_port} does not answer"):
        run(spark, pipeline, tmp_path)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 1) as folder:
        yield folder


def test_a_full_disk_under_the_checkpoint_loses_nothing(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, full_disk: Path
) -> None:
    pipeline = declared(
        tmp_path,
        nsqd,
        checkpoint=str(full_disk / "checkpoint"),
        source={"topics": "orders"},
        sink={"type": "parquet", "path": "table"},
    )
    publish(nsqd, "orders", [b"1"])
    run(spark, pipeline, tmp_path)
    ballast = full_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(2_000_000))
    publish(nsqd, "orders", [b"2"])
    with pytest.raises(PipelineError, match="disk is full; free some space and restart"):
        run(spark, pipeline, tmp_path)
    assert channel(nsqd, "orders", "test")["depth"] == 1
    ballast.unlink()
    run(spark, pipeline, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(bytes(row["body"]) for row in rows) == [b"1", b"2"]


def test_new_topics_join_a_stream_that_runs_and_progress_is_told(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.runner.TOPICS_POLL_S", 0.5)
    monkeypatch.setattr("penstock.pipeline.runner.WAITING_POLL_S", 0.1)
    pipeline = declared(
        tmp_path,
        nsqd,
        source={"topics": ["orders.*"]},
        transform=[{"sql": "SELECT 'all' AS topic, body, 1 AS defer FROM input"}],
        sink={"type": "topic"},
        trigger={"interval": "50ms"},
    )
    publish(nsqd, "orders.a", [b"1"])
    publish(nsqd, "clicks", [b"no"])
    with Running(spark, pipeline, tmp_path) as running:
        running.until(lambda: topics(nsqd).get("all") == 1)
        publish(nsqd, "orders.b", [b"2"])
        running.until(lambda: topics(nsqd).get("all") == 2)
        running.until(lambda: running.status.status.waiting == 0)
        status = running.status.status
        running.until(lambda: status.message_count == 2)
        assert status.topics == ["orders.a", "orders.b"]
        assert channel(nsqd, "orders.b", "test")["pull"]["progress"]["name"] == "test"
    assert running.error is None
    assert sorted(bodies(spark, nsqd, "all")) == [b"1", b"2"]
    assert any("2 messages" in line and "0 waiting" in line for line in running.screen.told)


PYTHON = """
from penstock.pipeline import ParquetSink, Pipeline, Source, Trigger, Transform

def upper(frame):
    from pyspark.sql import functions as F
    return frame.withColumn("body", F.upper("body"))

def length(row):
    return {"text": row["body"], "length": len(row["body"]), "kind": row["kind"]}

pipeline = Pipeline(
    name="test",
    sources={
        "messages": Source(topics=("words",), nsqd_http_addresses=("ADDRESS",), body="text"),
        "kinds": Source(format="csv", path="kinds.csv", schema="body string, kind string"),
    },
    transforms=(
        Transform(sql="SELECT body, kind FROM messages JOIN kinds USING (body)", name="joined"),
        Transform(dataframe=upper),
        Transform(function=length, returns="text string, length int, kind string"),
    ),
    sinks=(ParquetSink(path="table", sql="SELECT text, length, kind FROM input WHERE length > 1"),),
    trigger=Trigger(available_now=True),
)
"""


def test_a_module_may_join_tables_and_use_functions_of_its_own(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    (tmp_path / "kinds.csv").write_text("one,number\nfish,animal\nx,letter\n")
    file = tmp_path / "words.py"
    file.write_text(PYTHON.replace("ADDRESS", f"127.0.0.1:{nsqd.http_port}"))
    publish(nsqd, "words", [b"one", b"two", b"fish", b"x"])
    run(spark, read_pipeline(str(file)), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(tuple(row) for row in rows) == [("FISH", 4, "animal"), ("ONE", 3, "number")]


CHECKED = """
name = "checked"
[source]
topics = "orders"
nsqd_http_addresses = "127.0.0.1:1"
body = "json"
schema = "id bigint, total double"
[[transform]]
sql = "SELECT id, total FROM input"
[sink]
type = "parquet"
path = "x"
"""


STATIC = '[source.other]\nformat = "csv"\npath = "/none"\nschema = "id bigint"\n[sink]'


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("SELECT id", "SELEC id"), r"\[\[transform\]\] 1 sql: .*Syntax error at or near 'SELEC'"),
        (("SELECT id", "SELECT idd"), r"transform\]\] 1 sql: .*`idd` cannot be resolved.*`id`"),
        (
            ("id bigint", "id bigin"),
            r"column id: Spark has no type 'bigin' \(did you mean bigint\?\)",
        ),
        (("id bigint", "nsq_id bigint"), "the name nsq_id is reserved for the message"),
        (('path = "x"', 'path = "x"\npartition_by = "day"'), "no column day among"),
        (('"parquet"\npath = "x"', '"topic"'), r"\(topic\) topic must be given, or be a column"),
        (
            ('sql = "SELECT id, total FROM input"', 'function = "none:f"\nreturns = "id int"'),
            "none",
        ),
        (('sql = "', 'dataframe = "none:f" # '), "none:f: ModuleNotFoundError"),
        (("[sink]", STATIC), r"\[source\] csv: .*Path does not exist"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else value[:30],
)
def test_check_tells_what_spark_would(
    spark: SparkSession, tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    file = tmp_path / "checked.toml"
    text = CHECKED.replace("[source]", "[source.input]") if change[1] == STATIC else CHECKED
    file.write_text(text.replace(*change))
    with pytest.raises(PipelineError, match=said):
        validate(spark, read_pipeline(str(file)))


def test_check_tells_what_the_sinks_would_get(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "checked.toml"
    file.write_text(CHECKED)
    assert validate(spark, read_pipeline(str(file))) == "rows of id bigint, total double"
    metrics = validate(spark, read_pipeline("metrics"))
    assert metrics.startswith("with state, rows of time timestamp, topic string, messages bigint")
    for name in ("archive", "route", "audit"):
        assert validate(spark, read_pipeline(name))
    assert "job audit" in validate(spark, read_pipeline("audit"))
