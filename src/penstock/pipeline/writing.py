"""Messages out of Spark: writes that have a name, and what becomes of invalid ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.pipeline.folders import open_folder
from penstock.pipeline.outputs import source_brokers
from penstock.pipeline.parquet import ParquetTable
from penstock.pipeline.plan import Flow
from penstock.pipeline.records import make_invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def publish(messages: DataFrame, options: dict[str, str], name: str, batch: int) -> None:
    """Publish rows of ``topic``, ``body`` and ``defer``: a name and batch is published once."""
    writer = messages.write.format("nsq").mode("append").options(**options)
    writer.option("writeId", name).option("writeBatch", str(batch)).save()


def write_invalid(
    spark: SparkSession, flow: Flow, invalid: DataFrame, query: str, batch: int
) -> None:
    """Put messages aside whose body is not what the schema says, with the reason."""
    from pyspark.sql import functions as F

    pipeline = flow.pipeline
    explained = make_invalid(pipeline, flow.schemas)
    if pipeline.invalid.path:
        columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in invalid.schema)
        rows = invalid.mapInArrow(
            lambda batches: explained.rows(batches), f"{columns}, reason string"
        )
        folder = open_folder(spark, pipeline.resolve(pipeline.invalid.path))
        ParquetTable(spark, folder, (), query).write(rows, batch)
        return
    messages = invalid.mapInArrow(lambda batches: explained.bodies(batches), "body binary")
    messages = messages.withColumn("topic", F.lit(pipeline.invalid_topic))
    publish(messages, source_brokers(pipeline), f"{query}.invalid", batch)
