"""A client of Spark Connect, in a process of its own: one process has Connect or classic Spark.

    python -m tests.spark.connect_client FOLDER ADDRESS

    topic orders --+-- batch read
                   +-- channel copy --> topic copied      with a listener that tells how far it is

It starts a Connect server for itself, and tells what it found in a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from penstock.spark.java import set_up_java
from tests.spark import jvm

SOURCE, TARGET, WRITTEN = "orders", "copied", "written"
END_SECONDS_MAX = 60
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": jvm.QUICK_DRIVER,
}


def main(folder: Path, address: str) -> None:
    set_up_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from penstock.spark.listener import NsqListener
    from penstock.spark.session_guard import share

    where = {"nsqdHttpAddresses": address}
    found: dict[str, Any] = {}
    spark = SparkSession.builder.remote("local[2]").config(map=dict(CONF)).getOrCreate()
    share(spark)  # which cannot do anything here, and harms nothing
    found["session"] = type(spark).__module__

    def bodies(topic: str) -> list[str]:
        rows = spark.read.format("nsq").options(**where, topic=topic).load().collect()
        return [bytes(row.body).decode() for row in rows]

    found["read"] = bodies(SOURCE)
    rows = spark.createDataFrame([(b"one",), (b"two",)], "body binary")
    rows.write.format("nsq").options(**where, topic=WRITTEN).mode("append").save()
    found["written"] = bodies(WRITTEN)
    spark.read.format("nsq").options(**where, topic=SOURCE).load().createOrReplaceTempView("v")
    found["counted"] = spark.sql("SELECT count(*) AS c FROM v").collect()[0].c
    listener = NsqListener(where)
    spark.streams.addListener(listener)
    stream = spark.readStream.format("nsq").options(**where, topic=SOURCE, channel="copy").load()
    query = (
        stream.select("body")
        .writeStream.format("nsq")
        .options(**where, topic=TARGET, checkpointLocation=str(folder / "checkpoint"))
        .queryName("copy")
        .trigger(availableNow=True)
        .start()
    )
    found["ended"] = query.awaitTermination(END_SECONDS_MAX) and query.exception() is None
    spark.streams.removeListener(listener)
    found["copied"] = bodies(TARGET)
    try:
        spark.read.format("nsq").options(**where, topik="x").load().count()
    except PySparkException as error:
        found["error"] = str(error)
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
