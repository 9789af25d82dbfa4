"""Publishes messages from Spark with named writes, and prepares invalid ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.pipeline.plan import Flow
from penstock.pipeline.records import make_invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def publish(
    messages: DataFrame, options: dict[str, str], name: str, batch: int, note: str = ""
) -> None:
    """Publish rows of ``topic``, ``body`` and ``defer``; each name and batch is published once."""
    writer = messages.write.format("nsq").mode("append").options(**options)
    writer = writer.option("writeId", name).option("writeBatch", str(batch))
    if note:
        writer = writer.option("writeNote", note)
    writer.save()


def invalid_rows(flow: Flow, invalid: DataFrame) -> DataFrame:
    """Messages whose body does not match the schema, as rows of a table or as messages."""
    from pyspark.sql import functions as F

    pipeline = flow.pipeline
    explained = make_invalid(pipeline, flow.schemas)
    if pipeline.invalid.path:
        columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in invalid.schema)
        return invalid.mapInArrow(
            lambda batches: explained.rows(batches), f"{columns}, reason string"
        )
    messages = invalid.mapInArrow(lambda batches: explained.bodies(batches), "body binary")
    topic, defer = F.lit(pipeline.invalid_topic), F.lit(None).cast("bigint")
    return messages.withColumn("topic", topic).withColumn("defer", defer)
