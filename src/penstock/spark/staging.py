"""Writes rows to topics: tasks stage them, one broker decides, the driver publishes them.

    task      PUT /staging/part ...         rows in parts, on one node; not visible yet
              POST /staging/seal            the staging is complete, and synced
    driver    POST /staging/decide          on the coordinator: which staging of which task wins
              POST /staging/publish         on each winner's node: into the topics, once

R19: all or nothing after recovery, never twice.  The decision comes before the first publish and is
durable, so a repeated commit completes the same one, whatever was killed: a staging of a repeated
task loses and is removed.  The coordinator of a query is fixed at its first commit: in the
checkpoint folder if that is local, otherwise on the brokers.

Rule 1: a batch waits for a node that does not respond; it cannot move to another.
Rule 2: a staging that may have been decided is never aborted.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.errors import NodeError, QueryError
from penstock.spark.cluster import Cluster
from penstock.spark.node_client import Node, PendingRequest, node_request

log = logging.getLogger("penstock.spark")

PART_COUNT_MAX = 65536
PUBLISHERS_MAX = 16
COORDINATOR_FILE = "nsq-coordinator.json"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A staging of a task; without ``attempt`` if the task had no rows."""

    query: str
    batch: int
    partition: int
    attempt: str = ""
    node: str = ""
    address: str = ""
    count: int = 0


class TaskStaging:
    """One task's rows on one node."""

    def __init__(self, node: Node, query: str, batch: int, partition: int, attempt: str) -> None:
        self.node = node
        self.key: dict[str, Any] = {
            "query": query,
            "batch": batch,
            "partition": partition,
            "attempt": attempt,
        }
        self.part_count = 0
        self.count = 0
        self._pending: PendingRequest | None = None

    def put(self, topic: str, body: bytes, count: int, *, deferred: bool) -> None:
        """Send a part.  The node works on it while the next one is packed."""
        if self.part_count == PART_COUNT_MAX:
            raise QueryError(f"more than {PART_COUNT_MAX} parts in a partition: repartition first")
        self._settle()
        parameters = {**self.key, "part": self.part_count, "topic": topic}
        if deferred:
            parameters["deferred"] = "true"
        self._pending = self.node.begin(node_request("PUT", "/staging/part", parameters, body))
        self.part_count += 1
        self.count += count

    def seal(self) -> StagedRows:
        """Complete and sync the staging."""
        self._settle()
        reply = self.node.post("/staging/seal", **self.key, parts=self.part_count, count=self.count)
        return StagedRows(
            **self.key, node=str(reply["node"]), address=self.node.address, count=self.count
        )

    def abort(self) -> None:
        """Discard the staging of a failed task.  If that fails too, it expires."""
        if self._pending is not None:
            self._pending.drop()
        if self.part_count:
            abort([StagedRows(**self.key, address=self.node.address)], self.node)

    def _settle(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.answer()


def abort(staged: Sequence[StagedRows], node: Node) -> None:
    """Discard stagings of one node, if it can be reached."""
    first = staged[0]
    stagings = [{"partition": each.partition, "attempt": each.attempt} for each in staged]
    body = {"query": first.query, "batch": first.batch, "stagings": stagings}
    try:
        node.json(node_request("POST", "/staging/abort", None, body), 0.0)
    except NodeError as error:
        log.warning("query=%s batch=%d: %s", first.query, first.batch, error)


def by_address(staged: Iterable[StagedRows]) -> dict[str, list[StagedRows]]:
    found: dict[str, list[StagedRows]] = {}
    for each in staged:
        if each.attempt:
            found.setdefault(each.address, []).append(each)
    return found


class Committer:
    """Decides and publishes batches of one query."""

    def __init__(self, cluster: Cluster, location: str, *, lasting: bool) -> None:
        self._cluster = cluster
        self._file = coordinator_file(location)
        self._lasting = lasting  # another process may repeat the commit
        self._coordinator = ""

    def commit(self, staged: Sequence[StagedRows], note: str = "") -> int:
        """Publish what is staged, or what was decided before; return the number of rows."""
        if not staged:
            return 0
        first = staged[0]
        own = [each for each in staged if each.attempt]
        for each in own:
            self._cluster.nodes[each.node] = Node(each.address, self._cluster.access)
        winners = self._decide(first.query, first.batch, own, note)
        count = self._publish(first.query, first.batch, winners)
        kept = {each.attempt for each in winners}
        for address, losers in by_address(each for each in own if each.attempt not in kept).items():
            abort(losers, Node(address, self._cluster.access))
        return count

    def _decide(self, query: str, batch: int, own: list[StagedRows], note: str) -> list[StagedRows]:
        coordinator = self._node(self._coordinator_of(query), query)
        body: dict[str, Any] = {
            "query": query,
            "batch": batch,
            "winners": [
                {
                    "node": each.node,
                    "partition": each.partition,
                    "attempt": each.attempt,
                    "count": each.count,
                }
                for each in own
            ],
        }
        if note:
            body["note"] = note
        reply = coordinator.post("/staging/decide", body)
        return [
            StagedRows(
                *(query, batch, each["partition"], each["attempt"], each["node"]),
                self._node(each["node"], query).address,
                each["count"],
            )
            for each in reply["winners"]
        ]

    def _publish(self, query: str, batch: int, winners: Sequence[StagedRows]) -> int:
        def publish(address: str, staged: list[StagedRows]) -> int:
            body = {
                "query": query,
                "batch": batch,
                "winners": [
                    {"partition": each.partition, "attempt": each.attempt} for each in staged
                ],
            }
            reply = Node(address, self._cluster.access).post("/staging/publish", body)
            return int(reply["count"])

        groups = by_address(winners)
        if len(groups) == 1:
            return sum(publish(address, staged) for address, staged in groups.items())
        with ThreadPoolExecutor(min(PUBLISHERS_MAX, len(groups) or 1)) as pool:
            return sum(pool.map(publish, groups.keys(), groups.values()))

    # The coordinator

    def _node(self, uuid: str, query: str) -> Node:
        if uuid not in self._cluster.nodes:
            # A batch that an earlier process started needs the nodes of that process.
            self._cluster.nodes.clear()
            self._cluster.discover(strict=True, everywhere=True)
        node = self._cluster.nodes.get(uuid)
        if node is None:
            raise NodeError(
                f"query {query} needs node {uuid}, where its rows are staged or decided, but that "
                "node is not available; the batch waits for it"
            )
        return node

    def _coordinator_of(self, query: str) -> str:
        if not self._coordinator:
            if not self._cluster.nodes:
                self._cluster.discover(strict=True, everywhere=True)
            if not self._lasting:
                self._coordinator = min(self._cluster.nodes)
            elif self._file is not None:
                self._coordinator = self._from_file(self._file)
            else:
                self._coordinator = self._from_brokers(query)
        return self._coordinator

    def _from_file(self, path: Path) -> str:
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["coordinator"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError):
            raise QueryError(f"{path} has no coordinator; was it changed?") from None
        uuid = min(self._cluster.nodes)
        write_durably(path, json.dumps({"coordinator": uuid}) + "\n")
        return uuid

    def _from_brokers(self, query: str) -> str:
        """The coordinator that any broker has recorded; a new one once all answered 404."""
        self._cluster.discover(strict=True, everywhere=True)
        nodes = self._cluster.nodes
        for uuid in sorted(nodes):
            try:
                return str(nodes[uuid].get("/staging/coordinator", query=query)["coordinator"])
            except NodeError as error:
                if error.status != 404:
                    raise
        chosen = min(nodes)
        body = {"query": query, "coordinator": chosen, "address": nodes[chosen].address}
        recorded = [nodes[uuid].post("/staging/coordinator", body) for uuid in sorted(nodes)]
        return str(recorded[0]["coordinator"])


def coordinator_file(location: str) -> Path | None:
    """The file of a query's coordinator, if its checkpoint is a folder of this machine."""
    parts = urlsplit(location)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path)) / COORDINATOR_FILE
    return Path(location) / COORDINATOR_FILE if location.startswith("/") else None


def write_durably(path: Path, text: str) -> None:
    """Write a file atomically and durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
