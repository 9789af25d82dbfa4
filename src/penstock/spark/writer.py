"""Writes: tasks stage rows on the brokers, the driver's commit publishes them (R19).

A stream's batch is identified by the query's id and its number, so a repeated one is never
published twice.  A batch write gets a random id, or uses the options writeId and writeBatch, which
make the batches of foreachBatch as safe as a stream's own.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.errors import NodeError, QueryError
from penstock.spark.cluster import Cluster
from penstock.spark.node_client import Access, Node, node_request
from penstock.spark.options import Options
from penstock.spark.packer import Rows, Shape, each_of
from penstock.spark.staging import Committer, StagedRows, TaskStaging, abort, by_address
from penstock.spark.task_reader import settle_worker

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("penstock.spark")

COMMITTERS_MAX = 64


class StagedMessage(WriterCommitMessage):
    """Sent by a task to the driver."""

    def __init__(self, staged: StagedRows) -> None:
        self.staged = staged


class Stager:
    """Stages the rows of a task; pickled for the executors."""

    def __init__(self, options: Options, access: Access, shape: Shape) -> None:
        self.topic = options.topic[0] if options.topic else ""
        self.access = access
        self.shape = shape
        self.addresses = Cluster(options, access).addresses(everywhere=True)

    def stage(
        self,
        batches: Iterator[pyarrow.RecordBatch],
        query: str,
        batch: int,
        partition: int,
        attempt_number: int = 0,
    ) -> StagedMessage:
        """Stage a task's rows on one node; a retried task uses the next node."""
        settle_worker()
        turn = batch + partition + attempt_number
        staging: TaskStaging | None = None

        def put(topic: str, body: bytes, count: int, deferred: bool) -> None:
            nonlocal staging
            if staging is None:
                node = self._node(turn)
                staging = TaskStaging(node, query, batch, partition, uuid.uuid4().hex)
            staging.put(topic, body, count, deferred=deferred)

        try:
            each_of(batches, Rows(self.shape, self.topic, put))
            if staging is not None:
                return StagedMessage(staging.seal())
        except BaseException as error:
            if staging is not None:
                staging.abort()
            if not (isinstance(error, NodeError) and error.code == "BATCH_PUBLISHED"):
                raise
            # A repeated batch whose winners are decided: this task's rows would lose, and the
            # commit publishes the winners.  A worker has to read all of its input.
            for _ in batches:
                pass
        return StagedMessage(StagedRows(query, batch, partition))

    def _node(self, turn: int) -> Node:
        """The first node that responds and is not being drained, starting at ``turn``."""
        error: NodeError | None = None
        for step in range(len(self.addresses)):
            node = Node(self.addresses[(turn + step) % len(self.addresses)], self.access)
            try:
                node.brief().try_once(node_request("GET", "/ping"))
                refuse_draining(node)
                return node
            except NodeError as found:
                log.warning("%s; staging on another node", found)
                error = found
        # All have failed: retry one until retryTimeout.
        node = Node(self.addresses[turn % len(self.addresses)], self.access)
        node.call(node_request("GET", "/ping"))
        log.info("after %s: %s is back", error, node)
        return node


def refuse_draining(node: Node) -> None:
    """Raise NodeError if the node is being drained: it takes no new stagings."""
    about = node.brief().json(node_request("GET", "/info"), 0.0)
    if isinstance(about, dict) and about.get("draining"):
        raise NodeError(f"{node} is being drained")


def task_of() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise QueryError("rows can only be written in a Spark task")
    return task


@lru_cache(maxsize=COMMITTERS_MAX)
def committer_of(
    query: str, addresses: tuple[str, ...], lookupds: tuple[str, ...], access: Access, location: str
) -> Committer:
    """The committer of a stream, cached from batch to batch in this process."""
    options = Options(nsqd_http_addresses=addresses, lookupd_http_addresses=lookupds)
    return Committer(Cluster(options, access), location, lasting=True)


def staged_in(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    return [each.staged for each in messages if isinstance(each, StagedMessage)]


def abort_all(messages: Sequence[WriterCommitMessage | None], access: Access) -> None:
    """Discard the stagings of tasks, unless they may have been decided.

    Spark also calls abort after a failed commit; then all tasks have sent their messages.  Some of
    their stagings may be decided or published: they stay, and a repeated commit completes them.
    """
    if all(message is not None for message in messages):
        return
    for address, staged in by_address(staged_in(messages)).items():
        abort(staged, Node(address, access))


class NsqBatchWriter(DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, options: Options, shape: Shape) -> None:
        self.options = options
        self.access = Access.of(options)
        self.query = options.write_id or f"write-{uuid.uuid4().hex}"
        self.stager = Stager(options, self.access, shape)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        task = task_of()
        return self.stager.stage(
            iterator,
            self.query,
            self.options.write_batch,
            task.partitionId(),
            task.attemptNumber(),
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        cluster = Cluster(self.options, self.access)
        committer = Committer(cluster, "", lasting=bool(self.options.write_id))
        staged = staged_in(messages)
        if self.options.write_note and not staged:
            # No tasks and no rows, but a note to store.
            staged = [StagedRows(self.query, self.options.write_batch, 0)]
        committer.commit(staged, self.options.write_note)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_all(messages, self.access)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, options: Options, shape: Shape, location: str) -> None:
        self.options = options
        self.access = Access.of(options)
        self.location = location
        self.stager = Stager(options, self.access, shape)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        task = task_of()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise QueryError("Spark does not provide the ids of the query and the batch")
        return self.stager.stage(
            iterator, query, int(batch), task.partitionId(), task.attemptNumber()
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = staged_in(messages)
        if not staged:
            return
        options = self.options
        committer = committer_of(
            staged[0].query,
            options.nsqd_http_addresses,
            options.lookupd_http_addresses,
            self.access,
            self.location,
        )
        committer.commit(staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort_all(messages, self.access)
