"""The cost of a pipeline's ledger: its share of a batch of 10,000 rows.

    python -m bench.ledger [--batches 30] [--rows 10000] [--size 200] [--topics 1]

A real pipeline on real Spark reads from a real nsqd into a Parquet table, batch by batch.  The
calls of each part of the ledger are timed, and compared with the duration of the batch that Spark
reports.  Figures are medians over batches, without the first WARM_UP ones.

    ranges    read the checkpoint's offsets, query the nodes for counts
    seal      decide a step            (tables also had this before ledgers)
    commit    record a step            (replaces done.json of tables before ledgers)
    files     checksums of the files   (new)
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.broker import Broker
from bench.run import find_makes
from penstock.pipeline import batch_ranges, folders, ledger
from penstock.pipeline.consistency import check
from penstock.pipeline.runner import TABLE_SETTINGS, Run
from penstock.pipeline.spec_file import from_table
from penstock.pipeline.status import Status, StatusFile
from penstock.spark.session import SessionPlan, open_session

WARM_UP = 5
PARTS = {
    "ranges": [(batch_ranges.BatchRanges, "of"), (batch_ranges.BatchRanges, "counted")],
    "seal": [(ledger.Ledger, "seal"), (ledger.Ledger, "unseal")],
    "commit": [(ledger.Ledger, "commit"), (ledger.Ledger, "wanted")],
    "files": [(folders.LocalFolder, "checksum")],
}
NEW = ("ranges", "commit", "files")


class Clock:
    """Seconds in each part, for each batch."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}
        self._now: dict[str, float] = defaultdict(float)

    def wrap(self, part: str, kind: type[Any], name: str) -> None:
        inner: Callable[..., Any] = getattr(kind, name)

        def timed(*arguments: Any, **more: Any) -> Any:
            started_s = time.perf_counter()
            try:
                return inner(*arguments, **more)
            finally:
                self._now[part] += time.perf_counter() - started_s

        setattr(kind, name, timed)

    def end_batch(self) -> None:
        for part in PARTS:
            self.parts.setdefault(part, []).append(self._now[part])
        self._now.clear()


class Quiet:
    """A screen that shows nothing."""

    def show(self, text: str) -> None:
        pass

    def log(self, text: str) -> None:
        pass

    def progress(self, text: str) -> None:
        pass


def publish(broker: Broker, topic: str, count: int, size: int) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port)
    body = b"x" * size
    for start in range(0, count, 1000):
        part = min(1000, count - start)
        packed = struct.pack(">I", part) + (struct.pack(">I", size) + body) * part
        connection.request("POST", f"/mpub?topic={topic}&binary=true", packed)
        reply = connection.getresponse()
        assert reply.read() == b"OK", reply.status


def measure(broker: Broker, folder: Path, arguments: argparse.Namespace) -> int:
    topics = [f"bench{number}" for number in range(arguments.topics)]
    for topic in topics:
        publish(broker, topic, arguments.batches * arguments.rows // len(topics), arguments.size)
    table = {
        "name": "ledger",
        "trigger": {"available_now": True},
        "source": {
            "topics": topics,
            "nsqd_http_addresses": f"127.0.0.1:{broker.http_port}",
            "max_messages": arguments.rows,
        },
        "sink": {"type": "parquet", "path": "table"},
    }
    clock, took_ms = Clock(), []
    for part, calls in PARTS.items():
        for kind, name in calls:
            clock.wrap(part, kind, name)
    spark = open_session(SessionPlan(name="bench", master="local[*]", conf=TABLE_SETTINGS))
    from penstock.pipeline.batches import Batches

    inner = Batches.__call__

    def batch(self: Batches, frame: Any, number: int) -> None:
        inner(self, frame, number)
        clock.end_batch()

    Batches.__call__ = batch  # type: ignore[method-assign]
    from pyspark.sql.streaming import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            if event.progress.numInputRows:
                took_ms.append(int(dict(event.progress.durationMs)["triggerExecution"]))

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    spark.streams.addListener(Listener())
    pipeline = check(from_table(table, (), folder))
    status = StatusFile(Status("ledger"), folder / "status")
    Run(pipeline, Quiet(), status, spark=spark).run()
    time.sleep(1)
    spark.stop()
    return report(clock, took_ms[WARM_UP:], arguments)


def report(clock: Clock, took_ms: list[int], arguments: argparse.Namespace) -> int:
    whole_ms = statistics.median(took_ms)
    print(f"{len(took_ms)} batches of {arguments.rows:,} rows, {arguments.topics} topics")
    print(f"{'batch':8} {whole_ms:8.1f} ms")
    new_ms = 0.0
    for part, seconds in clock.parts.items():
        part_ms = statistics.median(seconds[WARM_UP:]) * 1000
        new_ms += part_ms if part in NEW else 0.0
        print(f"{part:8} {part_ms:8.1f} ms  {part_ms / whole_ms:6.1%}")
    print(f"{'new':8} {new_ms:8.1f} ms  {new_ms / whole_ms:6.1%}  ({' + '.join(NEW)})")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.ledger",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--topics", type=int, default=1)
    arguments = parser.parse_args(argv)
    make = find_makes("")["penstock"]
    with tempfile.TemporaryDirectory() as name, Broker(make, Path(name) / "nsqd") as broker:
        return measure(broker, Path(name), arguments)


if __name__ == "__main__":
    sys.exit(main())
