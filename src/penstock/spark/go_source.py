"""Streams through a channel, also from Go nsqds: ``mode=channel``.

A Go nsqd cannot return the same messages twice.  So the driver consumes them like any consumer,
writes them to files, and finishes them when the files are synced:

    nsqd --messages--> driver --> <storePath>/00000000000000000042.arrow --> tasks
         <----FIN----- after the file and its folder are synced

An offset is the number of a file; a batch is the files between two offsets, and can be read again
until the query has committed it.  Then the files are removed.

Rule 1: at least once.  A message whose FIN is lost, with the driver or with a connection, is
        delivered and stored again.  The id stays the same, so a query can drop duplicates by it.
Rule 2: a file is complete or does not exist.  A missing file is lost data.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.config import Config
from penstock.client.message import Message
from penstock.client.sync import Consumer
from penstock.errors import DataLossError, NodeError, QueryError
from penstock.spark.option_kinds import COLUMNS
from penstock.spark.options import Options
from penstock.spark.task_reader import ROWS_MAX, arrow_type, settle_worker

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("penstock.spark")

SUFFIX = ".arrow"
NS = 1_000_000_000
# Limit on the bodies in a file; Arrow's binary columns have 31-bit offsets.
FILE_SIZE_MAX = 256 << 20


class Store:
    """The folder of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def numbers(self) -> list[int]:
        """The numbers of all files, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(
            int(path.stem)
            for path in self.folder.iterdir()
            if path.suffix == SUFFIX and path.stem.isdecimal()
        )

    def path(self, number: int) -> Path:
        return self.folder / f"{number:020}{SUFFIX}"

    def write(self, number: int, rows: Sequence[tuple[str, Message]]) -> None:
        """Write (topic, message) pairs; durable when this returns."""
        import pyarrow as pa

        messages = [message for _, message in rows]
        columns = {
            "topic": [topic for topic, _ in rows],
            "node": [message.owner.address for message in messages],
            "index": [None] * len(rows),
            "id": [message.id.decode("ascii") for message in messages],
            "timestamp": [message.timestamp_ns // 1000 for message in messages],
            "body": [message.body for message in messages],
        }
        arrays = [pa.array(columns[name], arrow_type(name)) for name in COLUMNS]
        batch = pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(number)
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            with pa.ipc.new_file(file, batch.schema) as writer:
                for start in range(0, batch.num_rows, ROWS_MAX):
                    writer.write_batch(batch.slice(start, ROWS_MAX))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        self._sync()

    def remove_up_to(self, number: int) -> None:
        for each in self.numbers():
            if each <= number:
                self.path(each).unlink(missing_ok=True)

    def _sync(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class Taker:
    """The consumers of all topics, on the driver."""

    def __init__(self, options: Options) -> None:
        config = Config(
            max_in_flight=max(1, options.max_in_flight // len(options.topic)),
            max_attempts=0,  # nothing is ever given up
            auto_touch=True,  # a long batch must not make nsqd deliver again
            user_agent="penstock-spark",
            tls_v1=options.tls,
            tls_root_ca_file=options.tls_root_ca_file,
            tls_cert=options.tls_cert,
            tls_key=options.tls_key,
            tls_insecure_skip_verify=options.tls_insecure_skip_verify,
            auth_secret=options.auth_secret,
            lookupd_poll_interval=min(300.0, max(0.01, options.discovery_interval_ns / NS)),
        )
        self._consumers = {
            topic: Consumer(
                topic,
                options.channel,
                nsqd_tcp_addresses=options.nsqd_tcp_addresses,
                lookupd_http_addresses=options.lookupd_http_addresses,
                config=config,
            )
            for topic in options.topic
        }
        self._options = options
        self._give_up_s = time.monotonic() + options.retry_timeout_ns / NS

    def start(self) -> None:
        for consumer in self._consumers.values():
            consumer.start()

    def take(self, rows_max: int, wait_s: float) -> list[tuple[str, Message]]:
        """Return received messages; wait up to ``wait_s`` for the first."""
        give_up_s = time.monotonic() + wait_s
        rows: list[tuple[str, Message]] = []
        size = 0
        while not rows:
            for topic, consumer in self._consumers.items():
                while len(rows) < rows_max and size < FILE_SIZE_MAX:
                    message = consumer.get(timeout=0.0 if rows else 0.001)
                    if message is None:
                        break
                    rows.append((topic, message))
                    size += len(message.body)
            if time.monotonic() >= give_up_s:
                break
        if not rows:
            self._check()
        return rows

    def stop(self) -> None:
        for consumer in self._consumers.values():
            consumer.stop()

    def _check(self) -> None:
        """Raise NodeError if no nsqd was ever connected within retryTimeout."""
        options = self._options
        if any(consumer.stats.connected for consumer in self._consumers.values()):
            return
        if options.nsqd_tcp_addresses and time.monotonic() > self._give_up_s:
            addresses = ", ".join(options.nsqd_tcp_addresses)
            raise NodeError(f"no nsqd could be reached: {addresses}")


class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream from a channel; at least once."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        self._taker: Taker | None = None
        self._initial: dict[str, Any] | None = None
        self._available_ns = 0  # when an AvailableNow run started
        self._done = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_taker": None, "_initial": None}

    @property
    def store(self) -> Store:
        return Store(Path(self.options.store_path))

    # On the driver

    def initialOffset(self) -> dict[str, Any]:
        # No file is removed before the first commit, so it is the same after a restart.
        if self._initial is None:
            numbers = self.store.numbers()
            self._initial = self._offset(numbers[0] - 1 if numbers else 0)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_ns = time.time_ns()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        number = number_of(start)
        stored = self.store.numbers()
        if stored and stored[-1] > number:
            # Files of an earlier run that are in no batch yet.
            return self._offset(stored[-1])
        rows_max = self.options.max_in_flight
        if isinstance(limit, ReadMaxRows):
            rows_max = min(rows_max, limit.max_rows)
        rows = [] if self._done else self._take(rows_max)
        if not rows:
            return start
        self.store.write(number + 1, rows)
        for _, message in rows:
            message.finish()
        return self._offset(number + 1)

    def _take(self, rows_max: int) -> list[tuple[str, Message]]:
        if self._taker is None:
            self._taker = Taker(self.options)
            self._taker.start()
        rows = self._taker.take(rows_max, self.options.poll_timeout_ns / NS)
        if self._available_ns:
            # A channel has no end offset: the run ends at the first message newer than its start.
            newer = any(message.timestamp_ns > self._available_ns for _, message in rows)
            self._done = newer or not rows
        return rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        store = self.store
        there = set(store.numbers())
        wanted = range(number_of(start) + 1, number_of(end) + 1)
        missing = [number for number in wanted if number not in there]
        if missing:
            text = f"{store.path(missing[0])} and {len(missing) - 1} more files are missing"
            if self.options.fail_on_data_loss:
                raise DataLossError(f"{text}: messages taken from nsqd and not yet committed")
            log.warning("%s; continuing, because failOnDataLoss=false", text)
        return [InputPartition(str(store.path(number))) for number in wanted if number in there]

    def commit(self, end: dict[str, Any]) -> None:
        self.store.remove_up_to(number_of(end))

    def stop(self) -> None:
        if self._taker is not None:
            self._taker.stop()

    def _offset(self, number: int) -> dict[str, Any]:
        return {"channel": self.options.channel, "file": number}

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_file(Path(partition.value), self.columns)


def number_of(offset: dict[str, Any]) -> int:
    number = offset.get("file")
    if not isinstance(number, int):
        raise QueryError(
            f"the checkpoint's offset is not one of mode=channel: {offset!r:.200}; "
            "does the checkpoint belong to another query?"
        )
    return number


def read_file(path: Path, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    settle_worker()
    schema = pa.schema([(column, arrow_type(column)) for column in columns])
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
    except OSError as error:
        raise QueryError(f"{path} cannot be read: {error}; executors need storePath too") from None
    for place in range(reader.num_record_batches):
        batch = reader.get_batch(place)
        arrays = [batch.column(COLUMNS.index(column)) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
