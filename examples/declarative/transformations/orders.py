"""Read topics; write tables and a topic.  Spark's pipelines define `spark`."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

NSQD = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")
SCHEMA = "id BIGINT, customer STRING, total DOUBLE, at TIMESTAMP"


@dp.table
def messages() -> DataFrame:
    """Every message of the topic orders, once."""
    return (
        spark.readStream.format("nsq")  # noqa: F821
        .option("nsqdHttpAddresses", NSQD)
        .option("topic", "orders")
        .option("channel", "shop")
        .load()
    )


@dp.table
def orders() -> DataFrame:
    """Messages that are valid orders."""
    order = F.from_json(F.col("body").cast("string"), SCHEMA)
    read = spark.readStream.table("messages")  # noqa: F821
    return read.select(order.alias("o"), "timestamp").select("o.*", "timestamp").where("id > 0")


dp.create_sink("big_orders", "nsq", {"nsqdHttpAddresses": NSQD, "topic": "big-orders"})


@dp.append_flow(target="big_orders")
def to_big_orders() -> DataFrame:
    """Large orders go to a topic, for consumers that need them at once."""
    large = spark.readStream.table("orders").where("total > 50")  # noqa: F821
    return large.select(F.to_json(F.struct("id", "customer", "total")).alias("body"))
