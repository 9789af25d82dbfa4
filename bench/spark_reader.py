"""A Spark that reads a topic from its beginning to its end, again and again, until it is killed.

    python -m bench.spark_reader ADDRESS TOPIC

It tells of each time on standard output: {"event": "read"}.
"""

from __future__ import annotations

import os
import sys

from penstock.spark.session import SessionPlan, open_session

NICE = 19


def main(address: str, topic: str) -> None:
    os.nice(NICE)
    spark = open_session(SessionPlan(name="reader"))
    reader = spark.read.format("nsq").options(nsqdHttpAddresses=address, topic=topic)
    while True:
        reader.load().write.format("noop").mode("overwrite").save()
        print('{"event": "read"}', flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
