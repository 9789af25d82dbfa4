"""A driver for the kill tests: one process, one Spark session, two streams that never end.

    python -m tests.spark.copy_job FOLDER ADDRESS[,ADDRESS] [MASTER]

    topic orders --+-- channel archive --> Parquet in FOLDER/table
                   +-- channel copy    --> topic copied

It tells what it does on standard output, a line of JSON each: {"event": "running"}, and
{"event": "failed", ...} for a query that ended by itself, which is started again as somebody who
looks after it would do.  A line on standard input makes it stop the queries, read the table with
Spark and leave its rows in FOLDER/rows.arrow: what a reader of the table sees.  Then it copies
topic orders to topic again, as a batch.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.feather

from penstock.spark.session import SessionPlan, open_session
from tests.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SOURCE, TARGET, AGAIN = "orders", "copied", "again"
CHANNELS = {"table": "archive", "topic": "copy"}
TABLE, ROWS = "table", "rows.arrow"
FAILURES_MAX = 10
LOOK_S = 0.2
# Of a local Spark a task that fails fails the query at once, unless a second number says otherwise.
MASTER = "local[2,8]"
CONF = {
    "spark.driver.extraJavaOptions": jvm.QUICK_DRIVER,
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}


def tell(event: str, **more: object) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


class Copying:
    """The two streams."""

    def __init__(self, spark: SparkSession, folder: Path, addresses: str) -> None:
        self.spark = spark
        self.folder = folder
        self.addresses = addresses

    def start(self, name: str) -> StreamingQuery:
        stream = (
            self.spark.readStream.format("nsq")
            .option("nsqdHttpAddresses", self.addresses)
            .option("topic", SOURCE)
            .option("channel", CHANNELS[name])
            # More tasks than so few rows are worth: each is one more that can be killed.
            .option("minPartitions", 2)
            .load()
        )
        if name == "table":
            writer = stream.writeStream.format("parquet").option("path", str(self.folder / TABLE))
        else:
            writer = (
                stream.select("body")
                .writeStream.format("nsq")
                .option("nsqdHttpAddresses", self.addresses)
                .option("topic", TARGET)
            )
        checkpoint = str(self.folder / f"checkpoint-{name}")
        return writer.option("checkpointLocation", checkpoint).queryName(name).start()

    def run(self, finish: threading.Event) -> None:
        queries = {name: self.start(name) for name in CHANNELS}
        tell("running")
        failures = 0
        while not finish.wait(LOOK_S):
            for name, query in queries.items():
                if not query.isActive:
                    failures += 1
                    tell("failed", query=name, reason=str(query.exception())[:2000])
                    if failures > FAILURES_MAX:
                        raise RuntimeError(f"more than {FAILURES_MAX} failures")
                    queries[name] = self.start(name)
        for query in queries.values():
            query.stop()

    def read_back(self) -> None:
        rows = self.spark.read.parquet(str(self.folder / TABLE)).select("id", "body").toArrow()
        pyarrow.feather.write_feather(rows, self.folder / ROWS, compression="uncompressed")
        tell("read", rows=rows.num_rows)

    def copy_once(self) -> None:
        where = {"nsqdHttpAddresses": self.addresses}
        rows = self.spark.read.format("nsq").options(**where, topic=SOURCE, minPartitions=2).load()
        rows.write.format("nsq").options(**where, topic=AGAIN).mode("append").save()


def main(folder: Path, addresses: str, master: str = MASTER) -> None:
    from penstock.spark.listener import NsqListener

    finish = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.readline()  # a line, or the end because the test has died
        finish.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    spark = open_session(SessionPlan(master=master, conf=CONF, log_level="warn"))
    spark.streams.addListener(NsqListener({"nsqdHttpAddresses": addresses}))
    copying = Copying(spark, folder, addresses)
    copying.run(finish)
    copying.read_back()
    copying.copy_once()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
