"""A Spark program that reads a topic from start to end repeatedly, until it is killed.

    python -m bench.spark_reader ADDRESS TOPIC

It prints a line for each read on standard output: {"event": "read"}.
"""

from __future__ import annotations

import os
import sys

from penstock.spark.session import SessionPlan, open_session


def main(address: str, topic: str) -> None:
    # Run only on idle cores.  With a low priority alone (nice 19) Linux lets a thread use up its
    # time slice of some ms, whatever becomes runnable: two busy loops of that priority, without a
    # broker, took a third of a client's speed.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    spark = open_session(SessionPlan(name="reader"))
    reader = spark.read.format("nsq").options(nsqdHttpAddresses=address, topic=topic)
    while True:
        reader.load().write.format("noop").mode("overwrite").save()
        print('{"event": "read"}', flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
