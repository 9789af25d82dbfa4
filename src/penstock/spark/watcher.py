"""Long polls of all nodes at once, for the ends of their logs.

A node responds to a poll when it has more messages than the poll's positions, so an idle query
costs nothing, and a message is found a millisecond after it is stored.  There are no threads:
requests are sent to all nodes, and ``select`` waits for the first response.

Rule 1: a poll may stay pending from one call to the next.  Its positions are old then, so its
        response is used, but the node is polled again immediately.
Rule 2: a node that does not respond is skipped for a while; the query fails only if no node
        responds for retryTimeout.
"""

from __future__ import annotations

import http.client
import logging
import math
import selectors
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import NodeError
from penstock.spark.node_client import Node, Request, connect, node_request
from penstock.spark.offsets import Position, Positions

log = logging.getLogger("penstock.spark")

# Time for other nodes after the first has new messages, so that one batch covers all nodes.
GRACE_S = 0.002
QUICK_POLL_S = 1.0
AWAY_S = 1.0
AWAY_MAX_S = 15.0
WARN_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class End:
    """How far a log may be read, and from where on nothing was removed."""

    instance: str
    first: int
    whole_from: int
    end: int
    low: int = 0  # of the channel
    paused: bool = False

    def reaches_beyond(self, position: Position) -> bool:
        return not self.paused and self.end > position.index


class Watch:
    """The long poll of one node."""

    def __init__(self, uuid: str, node: Node) -> None:
        self.uuid = uuid
        self.node = node
        self.pending = False
        self.due_s = 0.0  # when the response times out
        self.away_until_s = 0.0
        self._away_s = AWAY_S
        self._connection: http.client.HTTPConnection | None = None
        self._request: Request | None = None
        self._warned_s = -WARN_AGAIN_S

    @property
    def socket(self) -> Any:
        assert self._connection is not None
        return self._connection.sock

    def send(
        self, topics: Mapping[str, Position], channel: str, identity: str, wait_s: float
    ) -> None:
        """Send a poll; raises NodeError if the node cannot be reached."""
        known = {
            topic: {"after": position.index, "instance": position.instance}
            for topic, position in topics.items()
        }
        body = {"topics": known, "channel": channel, "wait_ms": math.ceil(wait_s * 1000)}
        if identity:
            body["identity"] = identity
        request = node_request("POST", "/log/ends", None, body)
        for renewed in (False, True):
            if self._connection is None:
                self._connection = connect(self.node.address, self.node.brief().access)
            try:
                self.node.send(self._connection, request)
                break
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if renewed:
                    raise self.node.unreachable(error) from error
        self._request = request
        self.pending = True
        self.due_s = time.monotonic() + wait_s + self.node.access.request_timeout_s

    def receive(self) -> dict[str, Any]:
        """Receive the response, whose first bytes have arrived."""
        assert self._connection is not None and self._request is not None
        self.pending = False
        try:
            answer = self.node.receive(self._connection)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self.node.unreachable(error) from error
        reply = self.node.decoded(self.node.check(self._request, answer))
        self.away_until_s, self._away_s = 0.0, AWAY_S
        return dict(reply)

    def mark_away(self, error: NodeError, now_s: float) -> None:
        """Skip the node for a while; log that from time to time."""
        self.close()
        self.away_until_s = now_s + self._away_s
        self._away_s = min(2 * self._away_s, AWAY_MAX_S)
        if now_s - self._warned_s >= WARN_AGAIN_S:
            log.warning("node=%s: %s; reading from the others", self.uuid, error)
            self._warned_s = now_s

    def close(self) -> None:
        self.pending = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Watches:
    """The known ends of all logs, updated by polls."""

    def __init__(self, channel: str, topics: Iterable[str], retry_timeout_s: float) -> None:
        self.ends: dict[tuple[str, str], End] = {}
        self.stale: set[str] = set()  # nodes whose channel or UUID has changed
        self.gone: set[tuple[str, str]] = set()  # (node, topic) that was deleted
        self._channel = channel
        self._topics = frozenset(topics)
        self._identity = ""
        self._retry_timeout_s = retry_timeout_s
        self._watches: dict[str, Watch] = {}
        self._answered_s = time.monotonic()

    def follow(self, nodes: Mapping[str, Node]) -> None:
        """Watch these nodes and no others."""
        for uuid in [uuid for uuid in self._watches if uuid not in nodes]:
            self._watches.pop(uuid).close()
        for uuid, node in nodes.items():
            watch = self._watches.get(uuid)
            if watch is None or watch.node.address != node.address:
                if watch is not None:
                    watch.close()
                self._watches[uuid] = Watch(uuid, node)

    def use_identity(self, identity: str) -> None:
        """Use this identity in all further polls.

        A pending poll with another one is dropped: it would be refused as soon as a commit binds
        the channel to this one.
        """
        if identity != self._identity:
            self._identity = identity
            for watch in self._watches.values():
                watch.close()

    def is_away(self, uuid: str) -> bool:
        """Whether a node has not responded to its last poll."""
        watch = self._watches.get(uuid)
        return watch is not None and watch.away_until_s > 0

    def poll(self, positions: Positions, wait_s: float, enough: int | None = None) -> None:
        """Wait until a log has messages after ``positions``, at most ``wait_s``.

        If at least ``enough`` indexes after them are known already, do not wait.
        """
        now_s = time.monotonic()
        self._receive(self._arrived(0.0))
        if wait_s <= 0:
            self._poll_once(positions, now_s)
        elif enough is not None and self.reach(positions) >= enough:
            # A full batch is available already.
            self._send_polls(positions, wait_s, now_s)
        else:
            # A response to a poll of the last call may be a batch old: the node is polled again,
            # and GRACE_S is time for the response.
            self._wait(positions, now_s, now_s + wait_s)
        self._check_answered(time.monotonic())

    def _poll_once(self, positions: Positions, now_s: float) -> None:
        """Poll every node once, without waiting for new messages."""
        self._send_polls(positions, 0.0, now_s)
        give_up_s = now_s + QUICK_POLL_S
        while (left_s := give_up_s - now_s) > 0 and (watches := self._arrived(left_s)):
            self._receive(watches)
            now_s = time.monotonic()

    def _wait(self, positions: Positions, now_s: float, give_up_s: float) -> None:
        while now_s < give_up_s and not self.stale:
            self._send_polls(positions, give_up_s - now_s, now_s)
            if self._has_news(positions):
                give_up_s = min(give_up_s, now_s + GRACE_S)
            left_s = max(0.0, give_up_s - now_s)
            watches = self._arrived(left_s)
            if not watches and not any(watch.pending for watch in self._watches.values()):
                # All nodes are away.
                time.sleep(min(left_s, AWAY_S))
            self._receive(watches)
            now_s = time.monotonic()

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()

    def _send_polls(self, positions: Positions, wait_s: float, now_s: float) -> None:
        for uuid, watch in self._watches.items():
            if watch.pending and now_s > watch.due_s:
                watch.mark_away(watch.node.unreachable(TimeoutError("timed out")), now_s)
            topics = {
                topic: position
                for topic, position in positions.get(uuid, {}).items()
                if topic in self._topics and not position.is_deleted
            }
            if topics and not watch.pending and now_s >= watch.away_until_s:
                after = {topic: self._after_known(uuid, topic, topics[topic]) for topic in topics}
                try:
                    watch.send(after, self._channel, self._identity, wait_s)
                except NodeError as error:
                    watch.mark_away(error, now_s)

    def _after_known(self, uuid: str, topic: str, position: Position) -> Position:
        """The position to poll from: the known end, if it is of the same instance."""
        end = self.ends.get((uuid, topic))
        if end is None or end.instance != position.instance:
            return position
        return Position(position.instance, max(position.index, end.end))

    def _arrived(self, wait_s: float) -> list[Watch]:
        """The watches whose responses begin to arrive within ``wait_s``."""
        waiting = [watch for watch in self._watches.values() if watch.pending]
        if not waiting:
            return []
        with selectors.DefaultSelector() as selector:
            for watch in waiting:
                selector.register(watch.socket, selectors.EVENT_READ, watch)
            return [key.data for key, _ in selector.select(wait_s)]

    def _receive(self, watches: list[Watch]) -> None:
        for watch in watches:
            now_s = time.monotonic()
            try:
                reply = watch.receive()
            except NodeError as error:
                if error.code in ("CHANNEL_NOT_FOUND", "NOT_A_PULL_CHANNEL"):
                    self.stale.add(watch.uuid)
                elif 400 <= error.status < 500:
                    raise
                else:
                    watch.mark_away(error, now_s)
                continue
            self._answered_s = now_s
            if reply["node"] != watch.uuid:
                self.stale.add(watch.uuid)
                continue
            for topic, end in reply["topics"].items():
                self._update(watch.uuid, topic, end)

    def _update(self, uuid: str, topic: str, end: Mapping[str, Any] | None) -> None:
        if end is None:
            self.ends.pop((uuid, topic), None)
            self.gone.add((uuid, topic))
            return
        self.ends[uuid, topic] = End(
            *(end["instance"], end["first"], end["whole_from"], end["end"]),
            *(end["low"], bool(end.get("paused"))),
        )

    def reach(self, positions: Positions) -> int:
        """Indexes after ``positions`` in all logs: an upper bound of the messages."""
        return sum(
            end.end - position.index
            for (uuid, topic), end in self.ends.items()
            if (position := positions.get(uuid, {}).get(topic)) is not None
            and end.reaches_beyond(position)
        )

    def _has_news(self, positions: Positions) -> bool:
        return bool(self.gone) or any(
            (end := self.ends.get((uuid, topic))) is not None
            and (end.reaches_beyond(position) or end.instance != position.instance)
            for uuid, topics in positions.items()
            for topic, position in topics.items()
        )

    def _check_answered(self, now_s: float) -> None:
        if not all(watch.away_until_s for watch in self._watches.values()):
            self._answered_s = now_s
        silent_s = now_s - self._answered_s
        if self._watches and silent_s > self._retry_timeout_s:
            addresses = ", ".join(watch.node.address for watch in self._watches.values())
            raise NodeError(f"no nsqd has answered for {silent_s:.0f} s: {addresses}")
