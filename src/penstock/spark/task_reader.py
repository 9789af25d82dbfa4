"""Reads ranges of logs in a task, as Arrow record batches.

    node ---- whole log batches, 4 MiB at once ----> decode ----> record batches ----> Spark
         <--- the next request is sent before the last response is decoded

Record batches have at most 10,000 rows: with 50,000 Spark was measured to be 1.8 times slower.

Rule 1: the messages of a range come in order, each once.  Checksums are verified here; a node sends
        its files unverified (`raw`), and verifies them itself only after a checksum was wrong.
Rule 2: missing messages of a range are an error or a warning (`loss.py`).  Every response has the
        index below which messages may have been removed, and every response is checked.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.core.columns import BODY, ID, INDEX, TIMESTAMP, Columns, decode
from penstock.errors import CorruptError, NodeError
from penstock.spark.cluster import Cluster
from penstock.spark.loss import Loss, Losses
from penstock.spark.node_client import Access, Node, PendingRequest, Response, node_request
from penstock.spark.offsets import INDEX_MAX
from penstock.spark.options import Options
from penstock.spark.ranges import Range

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("penstock.spark")

ROWS_MAX = 10_000
DECODE_SIZE = 2 << 20  # 9,000 rows of 200 bytes: one record batch
WANTED = {"index": INDEX, "timestamp": TIMESTAMP, "id": ID, "body": BODY}

_settled_count = 0


def settle_worker() -> None:
    """Exclude objects that live as long as this worker from garbage collection.

    Spark's daemon collects after every task; with all imported modules in the heap that takes 10 to
    25 ms, without them almost nothing.  Some modules, pandas and 350 others, are imported only at
    the end of the first task, so this is repeated whenever there are more.
    """
    global _settled_count
    if len(sys.modules) != _settled_count:
        gc.collect()
        gc.freeze()
        _settled_count = len(sys.modules)


@dataclass(frozen=True, slots=True)
class Reading:
    """How ranges are read; pickled for the executors."""

    options: Options
    access: Access
    columns: tuple[str, ...]

    def read(self, ranges: Sequence[Range]) -> Iterator[pyarrow.RecordBatch]:
        """The messages of ``ranges``."""
        settle_worker()
        losses = Losses(self.options)
        for each in ranges:
            if each.address:
                yield from self._read(each, Fetch(self, each, losses), losses)
            else:
                losses.report([_lost(each, "is missing: the node was not found", each.end)])

    def _read(self, each: Range, fetch: Fetch, losses: Losses) -> Iterator[pyarrow.RecordBatch]:
        wanted = sum(WANTED[column] for column in self.columns if column in WANTED)
        make = maker(self.columns, each)
        try:
            for index, data in fetch.run():
                offset = 0
                while offset < len(data):
                    try:
                        columns = decode(data, index, each.end, wanted, offset, DECODE_SIZE)
                    except CorruptError as error:
                        if fetch.verify(index):
                            break
                        where = f"topic {each.topic} on {each.address}"
                        raise CorruptError(f"{where}: {error}") from None
                    yield from make(columns)
                    offset, index = columns.stop, columns.next
        except NodeError as error:
            if error.code not in ("TOPIC_NOT_FOUND", "INSTANCE_CHANGED"):
                raise
            # For a stream, all that it will miss, so that it can be accepted at once.
            end = INDEX_MAX if self.options.channel else each.end
            losses.report([_lost(each, "was deleted before it was read", end)])


def _lost(each: Range, what: str, end: int) -> Loss:
    """A loss from the start of the batch, in any partition: all of it is read again."""
    start = max(each.begin, each.whole_from)
    return Loss(each.node, each.address, each.topic, each.instance, start, end, None, what)


class Fetch:
    """The responses for one range; the next request is pending while a response is decoded.

    ``unkept``: the stream's channel, which kept the messages, was deleted after the range was
    planned.  They are read anyway, and the stream's next poll recreates the channel.
    """

    def __init__(self, reading: Reading, each: Range, losses: Losses) -> None:
        self.unkept = False
        self._reading = reading
        self._losses = losses
        self._raw = True
        self._back_to: int | None = None
        self._node = Node(each.address, reading.access)
        self._range = each
        self._fetch_size = reading.options.fetch_size
        self._channel = reading.options.channel

    def verify(self, index: int) -> bool:
        """Let the node skip damaged data from ``index`` on; False if it already does."""
        if not self._raw:
            return False
        self._raw, self._back_to = False, index
        return True

    def run(self) -> Iterator[tuple[int, bytes]]:
        """Yield log batches, each with the index below which messages are not wanted."""
        index = self._range.start
        pending = self._begin(index)
        try:
            while True:
                try:
                    answer = pending.answer()
                except NodeError as error:
                    if error.code != "CHANNEL_NOT_FOUND" or self.unkept:
                        raise
                    self.unkept = True
                    pending = self._begin(index)
                    continue
                self._check_missing(answer, index)
                start, index = index, _next(answer, self._range, index)
                if index < self._range.end:
                    pending = self._begin(index)
                if answer.body:
                    yield start, answer.body
                if self._back_to is not None:
                    pending.drop()
                    index, self._back_to = self._back_to, None
                    pending = self._begin(index)
                elif index >= self._range.end:
                    return
        finally:
            pending.drop()

    def _check_missing(self, answer: Response, index: int) -> None:
        """Report messages that were removed after the range was planned (Rule 2)."""
        text = answer.headers.get("X-Penstock-Missing-Below", "")
        each = self._range
        if not text.isdecimal() or int(text) <= max(index, each.whole_from):
            return
        # For a stream, report all that will be missing, so that it can be accepted at once.
        end = int(text) if self._channel else min(int(text), each.end)
        if self._losses.is_reported(each.node, each.topic, each.instance, end):
            return
        cluster = Cluster(self._reading.options, self._reading.access)
        cluster.nodes[each.node] = self._node
        lost = _lost(each, "no longer has all messages", end)
        count_max = cluster.missing_count_max(each.node, each.topic, lost.start, end)
        if count_max:
            self._losses.report([replace(lost, count_max=count_max)])

    def _begin(self, index: int) -> PendingRequest:
        each = self._range
        parameters = {
            "topic": each.topic,
            "instance": each.instance,
            "start": index,
            "end": each.end,
            "size_max": self._fetch_size,
            "raw": "true" if self._raw else "false",
        }
        if self._channel and not self.unkept:
            parameters["channel"] = self._channel
            if each.identity:
                parameters["identity"] = each.identity
        return self._node.begin(node_request("GET", "/log/read", parameters))


def _next(answer: Response, each: Range, index: int) -> int:
    """The index after a response; it must be greater than the last one."""
    text = answer.headers.get("X-Penstock-Next", "")
    if not text.isdecimal() or not index < int(text) <= each.end:
        raise NodeError(f"nsqd {each.address} returned next={text!r} for a read of {each.topic}")
    return int(text)


def maker(
    columns: Sequence[str], each: Range
) -> Callable[[Columns], Iterator[pyarrow.RecordBatch]]:
    """Return a function from decoded columns to record batches with ``columns``."""
    import pyarrow as pa

    types = {column: arrow_type(column) for column in columns}
    schema = pa.schema(list(types.items()))
    constants = {"topic": each.topic, "node": each.node}
    repeated: dict[str, pyarrow.Array] = {}

    def constant(column: str, count: int) -> pyarrow.Array:
        if column not in repeated or len(repeated[column]) < count:
            repeated[column] = pa.repeat(pa.scalar(constants[column]), max(count, ROWS_MAX))
        return repeated[column].slice(0, count)

    def array(column: str, from_: Columns) -> pyarrow.Array:
        if column in constants:
            return constant(column, from_.count)
        buffers: tuple[bytes | None, ...]
        if column == "body":
            buffers = (from_.body_offsets, from_.body)
        elif column == "id":
            buffers = (from_.id_offsets, from_.id)
        else:
            buffers = (from_.index if column == "index" else from_.timestamp,)
        made = [None, *map(pa.py_buffer, buffers)]
        return pa.Array.from_buffers(types[column], from_.count, made, 0)

    def make(from_: Columns) -> Iterator[pyarrow.RecordBatch]:
        if not from_.count:
            return
        batch = pa.RecordBatch.from_arrays([array(name, from_) for name in columns], schema=schema)
        # Equal parts: a small last one would cost as much as a full one.
        parts = -(-from_.count // ROWS_MAX)
        size = -(-from_.count // parts)
        for start in range(0, from_.count, size):
            yield batch.slice(start, size)

    return make


def arrow_type(column: str) -> pyarrow.DataType:
    """The Arrow type that Spark expects for a column."""
    import pyarrow as pa

    return {
        "topic": pa.string(),
        "node": pa.string(),
        "index": pa.int64(),
        "id": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "body": pa.binary(),
    }[column]
