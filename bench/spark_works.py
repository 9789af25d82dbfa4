"""The measurements of Spark: functions from a session and a broker to figures.

    scan           batch reads compared with Spark's own Parquet scan of the same rows
    micro-batch    small batches of a stream compared with Spark's own rate source
    end-to-end     from PUB to a committed row
    sink           a table into a topic
    beside         ordinary clients while Spark reads (`spark_reader.py`)

The two sides of a comparison alternate, so that other load on the machine affects both; a figure is
the median of its rounds.  The first two rounds do not count, because the JVM compiles in them.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.driver_process import Driver, Member, living

from bench.broker import Broker
from penstock.cli.load_workers import Histogram
from penstock.cli.measurement import measure
from penstock.wire import commands

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Metrics = dict[str, float]

BODY_SIZE = 200
COMMANDS = 250
COMMAND_MESSAGES = 200
WINDOW = 8
WAIT_SECONDS_MAX = 300.0
# The usual columns of a query; topic, node and id would double the cost.
FEW_COLUMNS = "index,timestamp,body"
COLD_ROUNDS = 2
PUBLISH_PERIOD_S = 0.01
STAMP_DIGITS = 20


# Rows


def bodies(seed: int, count: int) -> Iterator[bytes]:
    """JSON of 200 bytes, all different: a table would compress repeated bodies."""
    choose = random.Random(seed)
    for number in range(count):
        text = b'{"number":%010d,"text":"%s"}' % (number, choose.randbytes(100).hex().encode())
        yield text[: BODY_SIZE - 2] + b'"}'


def fill(broker: Broker, topic: str, count: int) -> None:
    """Publish ``count`` messages, which repeat after 50,000 bodies."""
    pool = list(bodies(1, min(count, COMMANDS * COMMAND_MESSAGES)))
    batches = [pool[at : at + COMMAND_MESSAGES] for at in range(0, len(pool), COMMAND_MESSAGES)]
    encoded = [commands.mpub(topic, batch) for batch in batches]
    left, number, unanswered = count, 0, 0
    connection = broker.connect_client()
    try:
        while left or unanswered:
            while left and unanswered < WINDOW:
                size = len(batches[number % len(batches)])
                command = encoded[number % len(encoded)]
                if size > left:
                    size, command = left, commands.mpub(topic, pool[:left])
                connection.sock.sendall(command)
                left, number, unanswered = left - size, number + 1, unanswered + 1
            unanswered -= connection.oks(connection.receive(4096))
    finally:
        connection.close()


def read(spark: SparkSession, broker: Broker, topic: str, columns: str = "") -> DataFrame:
    reader = spark.read.format("nsq").options(**_where(broker), topic=topic)
    return (reader.option("columns", columns) if columns else reader).load()


def _where(broker: Broker) -> dict[str, str]:
    return {"nsqdHttpAddresses": f"127.0.0.1:{broker.http_port}"}


def seconds_of(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def read_all(frame: DataFrame) -> None:
    """Read every row with every column, and drop it."""
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as path:
        yield Path(path)


# Batches


def scan(spark: SparkSession, broker: Broker, *, messages: int, rounds: int) -> Metrics:
    """Read the same rows from nsqd and from Parquet files, with all columns and with three."""
    fill(broker, "rows", messages)
    with folder() as path:
        table = str(path / "table")
        read(spark, broker, "rows").write.parquet(table)
        stored = spark.read.parquet(table)
        if stored.count() != messages:
            raise RuntimeError(f"{stored.count()} rows of {messages} were read")
        broker.settle()
        few = FEW_COLUMNS.split(",")
        frames = {
            "all": read(spark, broker, "rows"),
            "parquet_all": stored,
            "few": read(spark, broker, "rows", FEW_COLUMNS),
            "parquet_few": stored.select(*few),
        }
        taken: dict[str, list[float]] = {name: [] for name in frames}
        costs = []
        for _ in range(COLD_ROUNDS + rounds):
            for name, frame in frames.items():
                before = broker.usage()
                taken[name].append(seconds_of(lambda frame=frame: read_all(frame)))  # type: ignore[misc]
                if name == "all":
                    costs.append((broker.settle().cpu_us - before.cpu_us) / messages)
    rates = {name: messages / statistics.median(each[COLD_ROUNDS:]) for name, each in taken.items()}
    return {"cpu_us": statistics.median(costs[COLD_ROUNDS:]), **rates}


def sink(spark: SparkSession, broker: Broker, *, messages: int, rounds: int) -> Metrics:
    """Write a table of Parquet files to a topic: staged, decided, published and synced."""
    fill(broker, "rows", messages)
    taken, costs = [], []
    with folder() as path:
        read(spark, broker, "rows", "body").write.parquet(str(path / "table"))
        broker.post("/topic/delete?topic=rows")
        table = spark.read.parquet(str(path / "table"))
        for number in range(COLD_ROUNDS + rounds):
            topic = f"sink-{number}"
            writer = table.write.format("nsq").options(**_where(broker), topic=topic)
            broker.settle()
            before = broker.usage()
            taken.append(seconds_of(writer.mode("append").save))
            costs.append((broker.settle().cpu_us - before.cpu_us) / messages)
            stored = broker.get(f"/log?topic={topic}").json["message_count"]
            if stored != messages:
                raise RuntimeError(f"{stored} messages of {messages} rows were published")
            broker.post(f"/topic/delete?topic={topic}")
    return {
        "rate": messages / statistics.median(taken[COLD_ROUNDS:]),
        "cpu_us": statistics.median(costs[COLD_ROUNDS:]),
    }


# Streams


def micro_batch(
    spark: SparkSession, broker: Broker, *, batches: int, rows: int, rounds: int
) -> Metrics:
    """Small consecutive batches from a topic and from Spark's own rate source, discarded."""
    warm = max(5, batches // 4)
    fill(broker, "rows", (batches + warm + 10) * rows * (COLD_ROUNDS + rounds))
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(COLD_ROUNDS + rounds):
        ours = spark.readStream.format("nsq").options(
            **_where(broker), topic="rows", channel=f"bench-{number}", maxMessagesPerTrigger=rows
        )
        theirs = spark.readStream.format("rate-micro-batch").options(
            rowsPerBatch=rows, numPartitions=1
        )
        for name, reader in (("ours", ours), ("theirs", theirs)):
            with folder() as path, _running(reader.load(), path, None) as query:
                found = _batch_times(query, warm + batches)[warm:]
            if number >= COLD_ROUNDS:
                taken[name] += found
    return {f"p50_{name}": statistics.median(times) for name, times in taken.items()}


@contextmanager
def _running(frame: DataFrame, checkpoint: Path, table: Path | None) -> Iterator[StreamingQuery]:
    """A query that writes to files, or discards its rows."""
    writer = frame.writeStream.format("noop" if table is None else "parquet")
    if table is not None:
        writer = writer.option("path", str(table))
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def _batch_times(query: StreamingQuery, count: int) -> list[float]:
    """The times of the first ``count`` batches with rows, in ms."""
    give_up_s = time.monotonic() + WAIT_SECONDS_MAX
    # One progress at a time: reading all of them takes the driver as long as a batch.
    while (last := query.lastProgress) is None or last["batchId"] < count:
        if time.monotonic() > give_up_s or not query.isActive:
            raise RuntimeError(f"no {count} batches: {query.exception()}")
        time.sleep(0.25)
    times = {
        progress["batchId"]: float(progress["durationMs"]["triggerExecution"])
        for progress in query.recentProgress
        if progress["numInputRows"]
    }
    return [times[batch] for batch in sorted(times)][:count]


def end_to_end(spark: SparkSession, broker: Broker, *, rate: int, seconds: float) -> Metrics:
    """Single PUBs at a steady rate, into Parquet files.

    A row is committed when the log of the table's files (_spark_metadata) lists its file; the
    log's time is the time of commit.  Messages have the time of the same clock.
    """
    broker.create("live")
    stream = spark.readStream.format("nsq").options(
        **_where(broker), topic="live", channel="bench", columns="body"
    )
    with folder() as path:
        table = path / "table"
        with _running(stream.load(), path / "checkpoint", table) as query:
            publish_stamps(broker, rate, seconds=seconds / 2)  # the JVM warms up
            start_ns = time.time_ns()
            sent = publish_stamps(broker, rate, seconds=seconds)
            query.processAllAvailable()
        latency = latencies(table, start_ns)
    if latency.count != sent:
        raise RuntimeError(f"{latency.count} rows of {sent} messages")
    return {
        "p50_ms": latency.percentile(50) / 1e6,
        "p99_ms": latency.percentile(99) / 1e6,
    }


def publish_stamps(broker: Broker, rate: int, *, seconds: float) -> int:
    """Publish ``rate`` messages per second, each with the time in its body; return the count."""
    connection = broker.connect_client()
    filler = b"." * (BODY_SIZE - STAMP_DIGITS)
    each = max(1, round(rate * PUBLISH_PERIOD_S))
    rounds = max(1, round(seconds / PUBLISH_PERIOD_S))
    start_s = time.monotonic()
    try:
        for number in range(rounds):
            time.sleep(max(0.0, start_s + number * PUBLISH_PERIOD_S - time.monotonic()))
            stamp = b"%0*d" % (STAMP_DIGITS, time.time_ns())
            connection.sock.sendall(commands.pub("live", stamp + filler) * each)
            oks = 0
            while oks < each:
                oks += connection.oks(connection.receive(4096))
    finally:
        connection.close()
    return rounds * each


def latencies(table: Path, start_ns: int) -> Histogram:
    """Times from stamp to commit of all rows sent at ``start_ns`` or later."""
    import pyarrow.parquet

    found = Histogram()
    for commit_ns, files in commits(table):
        for file in files:
            for body in pyarrow.parquet.read_table(file)["body"].to_pylist():
                stamp_ns = int(body[:STAMP_DIGITS])
                if stamp_ns >= start_ns:
                    found.add(commit_ns - stamp_ns)
    return found


def commits(table: Path) -> Iterator[tuple[int, list[Path]]]:
    """Each batch's time of commit and its files, from Spark's log of them.

    Every tenth log also repeats earlier names; only the new ones are of that batch.
    """
    logs = [path for path in (table / "_spark_metadata").iterdir() if path.name[0] != "."]
    seen: set[str] = set()
    for log in sorted(logs, key=lambda path: int(path.name.partition(".")[0])):
        names = [json.loads(line)["path"] for line in log.read_text().splitlines()[1:]]
        new = [name for name in names if name not in seen]
        seen.update(new)
        yield log.stat().st_mtime_ns, [Path(name.removeprefix("file://")) for name in new]


# Others


class Reader(Driver):
    """A Spark program that reads, in the session of the clients it must not disturb.

    Linux shares the cores between sessions first (autogroup); scheduling policies apply only
    within a session.
    """

    own_session = False

    def members(self) -> list[Member]:
        """The process and its descendants."""
        found: list[Member] = []
        parents = {self.pid}
        everybody = living()
        while parents:
            found += [member for member in everybody if member.pid in parents]
            parents = {member.pid for member in everybody if member.parent in parents}
        return found

    def kill(self) -> None:
        self.pause()  # no process starts while the others are killed
        super().kill()


def beside(broker: Broker, *, messages: int, backlog: int, rounds: int) -> Metrics:
    """Publish and consume at full speed, alone and while Spark reads a backlog.

    The reading Spark gets only idle CPU time: on few cores it would take time from the clients,
    whatever the broker does.  Its rate is reported too, because it is work for the broker.
    """
    fill(broker, "rows", backlog)
    message_size = broker.stored_size("**/*.log") / backlog
    taken: dict[str, list[float]] = {}
    with Reader("bench.spark_reader") as reader:
        reader.start(f"127.0.0.1:{broker.http_port}", "rows")
        reader.wait_for("read", WAIT_SECONDS_MAX)
        for number in range(COLD_ROUNDS + rounds):
            for where in ("alone", "beside"):
                (reader.resume if where == "beside" else reader.pause)()
                broker.settle()
                before, start_s = read_size(broker), time.monotonic()
                found = clients(broker, f"{where}-{number}", messages)
                read_count = (read_size(broker) - before) / message_size
                found["read"] = read_count / (time.monotonic() - start_s)
                for name, rate in found.items():
                    taken.setdefault(f"{name}_{where}", []).append(rate)
    return {name: statistics.median(rates[COLD_ROUNDS:]) for name, rates in taken.items()}


def read_size(broker: Broker) -> float:
    """The bytes of logs that nsqd has sent to readers."""
    match = re.search(r"(?m)^\w*log_read_bytes_total (\S+)$", broker.get("/metrics").text)
    if match is None:
        raise RuntimeError("/metrics has no log_read_bytes_total")
    return float(match[1])


def clients(broker: Broker, topic: str, messages: int) -> Metrics:
    broker.create(topic, "bench")
    published = measure([broker.task("pub", topic, messages=messages, batch=200)])
    # Publish a little more: at the very end a broker may wait for its flush timer.
    measure([broker.task("pub", topic, messages=messages // 20, batch=200)])
    consumed = measure([broker.task("sub", topic, messages=messages)])
    broker.post(f"/topic/delete?topic={topic}")
    return {
        "publish": published.published.per_second,
        "consume": consumed.consumed.per_second,
    }
