"""A stream's place in the logs of all nodes: where it starts, what is new, what is finished.

The query is a pull channel on every node (R18).  It is made before anything is read, keeps what
the query has not committed, and its start survives with the broker: if the driver dies before the
first batch is done, the next one starts where this one did.

    new query       channel made at startingOffsets, or found: then it goes on where that stands
    from checkpoint the checkpoint's positions; the channel must still be there, or hold it all
    new node        channel made at its earliest message, or found as nsqlookupd had it made
    no topic        made with the channel; a token that only reads makes none, so it is waited for

Rule 1: a node, topic or instance enters an offset at its start, without messages: they belong to
        the next batch.  So every range has both its ends in the checkpoint and can be read again.
Rule 2: what may be lost is judged before the channel is made, because afterwards it looks whole.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from penstock.errors import NodeError
from penstock.spark.batch import check_named, index_of
from penstock.spark.broker import Access, asked
from penstock.spark.cluster import Cluster, Log
from penstock.spark.offsets import EARLIEST, LATEST, Position, Positions, flat
from penstock.spark.options import Options
from penstock.spark.ranges import Range, limited
from penstock.spark.watch import Watches

log = logging.getLogger("penstock.spark")

NS = 1_000_000_000
# Without a listener Spark tells of the last batch only when the next one exists.  A query that
# asks for more from the same place for so long has committed what lies before it.
IDLE_COMMIT_S = 5.0
# How often a topic that is not there is looked for.
AWAIT_S = 1.0


class Follower:
    """The driver's side of a stream."""

    def __init__(self, options: Options, access: Access) -> None:
        self.cluster = Cluster(options, access)
        self.options = options
        self._watches = Watches(options.channel, access.retry_timeout_s)
        self._opened = False
        self._discover_s = 0.0
        self._target: Positions | None = None
        self._committed: dict[tuple[str, str], int] = {}
        self._whole: dict[tuple[str, str, str], tuple[int, int]] = {}
        self._idle: tuple[Positions, float] = ({}, 0.0)
        # (node, topic) that is not there yet, and when to look for it again.
        self._awaited: dict[tuple[str, str], float] = {}

    # Beginning

    def start(self) -> Positions:
        """Where a new query begins."""
        self.cluster.discover(strict=True)
        check_named(self.options.starting_offsets, "startingOffsets", self.cluster)
        positions: Positions = {}
        for uuid in self.cluster.nodes:
            for topic in self.options.topic:
                position = self._start(uuid, topic)
                if position is not None:
                    positions.setdefault(uuid, {})[topic] = position
        self._opened = True
        self._found()
        return positions

    def resume(self, positions: Positions) -> None:
        """Open the channels of a query that goes on; once."""
        if not self._opened:
            self.cluster.discover(strict=True)
            self._reopen(positions, set(positions))
            self._opened = True

    def _reopen(self, positions: Positions, uuids: set[str]) -> None:
        for uuid in sorted(uuids & set(positions)):
            if uuid in self.cluster.nodes:
                for topic, position in positions[uuid].items():
                    self._reopen_topic(uuid, topic, position)
            elif self.options.nsqd_http_addresses and self.cluster.complete:
                addresses = ", ".join(self.options.nsqd_http_addresses)
                self.cluster.lost(f"node {uuid} of the checkpoint is none of {addresses}")
            else:
                log.warning("node=%s: not found; waiting for it", uuid)
        self._found()

    def _reopen_topic(self, uuid: str, topic: str, position: Position) -> None:
        found = self.cluster.log_of(uuid, topic)
        # Another instance, or none, is told of by the first poll.
        if found is not None and found.instance == position.instance:
            self._judge(uuid, topic, position, found)
            self._pull(uuid, topic, min(position.index, found.end))

    def _found(self) -> None:
        self._discover_s = time.monotonic() + self.options.discovery_interval_ns / NS
        self._watches.follow(self.cluster.nodes)

    def _start(self, uuid: str, topic: str) -> Position | None:
        """Where a new query begins in one log, if there is one; the channel is there afterwards."""
        cluster, options = self.cluster, self.options
        found = cluster.log_of(uuid, topic)
        place = options.starting_offsets.of(uuid, cluster.nodes[uuid].address, topic, EARLIEST)
        start: int | str = LATEST if place == LATEST else EARLIEST
        if found is not None and options.channel not in found.channels:
            if isinstance(place, Position):
                end = cluster.settled(uuid, topic, found)
                start = min(end, index_of(place, cluster, uuid, topic, found, end))
            elif options.starting_timestamp is not None:
                cluster.settled(uuid, topic, found)
                start = cluster.seek(uuid, topic, options.starting_timestamp)
        return self._pull(uuid, topic, start)

    def _pull(self, uuid: str, topic: str, start: int | str) -> Position | None:
        """Make or find the channel; None if there is no topic and our token makes none."""
        node = self.cluster.nodes[uuid]
        try:
            told = node.post(
                "/channel/pull", topic=topic, channel=self.options.channel, start=start
            )
        except NodeError as error:
            if error.code == "TOPIC_NOT_FOUND":
                self._await(uuid, topic)
                return None
            if error.code == "CHANNEL_IN_USE":
                raise NodeError(
                    f"channel {self.options.channel} of topic {topic} on {node} is a plain one and "
                    "had or has consumers: a stream needs a channel of its own",
                    *(error.status, error.code),
                ) from None
            raise
        self._awaited.pop((uuid, topic), None)
        return Position(told["instance"], int(told["low"]))

    def _await(self, uuid: str, topic: str) -> None:
        if (uuid, topic) not in self._awaited:
            node = self.cluster.nodes[uuid]
            log.warning("topic=%s: not there yet on %s; waiting for it", topic, node)
        self._awaited[uuid, topic] = time.monotonic() + AWAIT_S

    def _judge(self, uuid: str, topic: str, position: Position, found: Log) -> None:
        """Whether a log still has what the query has not read (Rule 2)."""
        kept = self.options.channel in found.channels
        if position.index > found.end:
            self.cluster.lost(
                f"topic {topic} on {self.cluster.nodes[uuid]} ends at {found.end}, and the "
                f"checkpoint at {position.index}: was the node set back?"
            )
        elif not kept and position.index < found.whole_from:
            self.cluster.lost(
                f"channel {self.options.channel} of topic {topic} on {self.cluster.nodes[uuid]} is "
                f"gone, and with it messages from {position.index} on: "
                f"the log is whole from {found.whole_from}"
            )

    # Going on

    def prepare_available_now(self) -> None:
        """What is there now is all that this run reads."""
        self._target = {}

    def newest(self, positions: Positions, rows_max: int | None) -> Positions:
        """How far the next batch goes, after a wait if there is nothing new."""
        self.resume(positions)
        if self._target is not None:
            self._aim(positions)
        else:
            self._look_for_nodes(positions)
            self._commit_if_idle(positions)
            wait_s = self.options.poll_timeout_ns / NS
            self._watches.poll(
                positions, min(wait_s, AWAIT_S) if self._awaited else wait_s, rows_max
            )
        ranges, following = self._reachable(positions)
        if rows_max is not None:
            ranges = limited(ranges, rows_max, self.count)
        for each in ranges:
            following[each.node][each.topic] = Position(each.instance, each.end)
        if self._target is not None and following == positions:
            # The last batch of the run is done, and there will be no next one to tell us.
            self.commit(positions)
        return following

    def reached(self) -> Positions:
        """The newest ends that are known, for Spark's progress."""
        positions: Positions = {}
        for (uuid, topic), end in self._watches.ends.items():
            positions.setdefault(uuid, {})[topic] = Position(end.instance, end.end)
        return positions

    def count(self, each: Range, start: int, end: int) -> int:
        """How many messages a range has; what is known to be without gaps is not asked again."""
        key = (each.node, each.topic, each.instance)
        whole_start, whole_end = self._whole.get(key, (0, 0))
        if whole_start <= start and end <= whole_end:
            return end - start
        found = self.cluster.count(each.node, each.topic, start, end)
        if found == end - start:
            self._whole[key] = (start, end)
        return found

    def _aim(self, positions: Positions) -> None:
        """Find the ends of an AvailableNow run, the first time."""
        if self._target:
            return
        target: Positions = {}
        for uuid in self.cluster.nodes:
            for topic in self.options.topic:
                found = self.cluster.log_of(uuid, topic)
                if found is None:
                    if topic in positions.get(uuid, {}):
                        self._watches.gone.add((uuid, topic))
                    continue
                channel = self.options.channel if self.options.channel in found.channels else ""
                end = self.cluster.settled(uuid, topic, found, channel)
                target.setdefault(uuid, {})[topic] = Position(found.instance, end)
        self._target = target

    def _look_for_nodes(self, positions: Positions) -> None:
        astray, self._watches.astray = self._watches.astray, set()
        for uuid in astray:
            self.cluster.forget(uuid)
        if not astray and time.monotonic() < self._discover_s:
            return
        try:
            self.cluster.discover(strict=False)
            self._reopen(positions, astray)
        except NodeError as error:
            if error.status:
                raise
            log.warning("%s", error)

    def _reachable(self, positions: Positions) -> tuple[list[Range], Positions]:
        """What may be read now, and the positions with what enters them (Rule 1)."""
        following = {uuid: dict(topics) for uuid, topics in positions.items()}
        ranges = []
        for uuid, node in self.cluster.nodes.items():
            for topic in self.options.topic:
                position = positions.get(uuid, {}).get(topic)
                if position is None:
                    if time.monotonic() >= self._awaited.get((uuid, topic), 0.0):
                        self._enter(uuid, topic, following)
                    continue
                end = self._end_of(uuid, topic)
                gone = (uuid, topic) in self._watches.gone
                if gone or (end is not None and end.instance != position.instance):
                    self._begin_anew(uuid, topic, position, following)
                elif end is not None and end.index > position.index:
                    ranges.append(
                        Range(
                            *(uuid, node.address, topic, position.instance),
                            *(position.index, end.index),
                        )
                    )
        return ranges, following

    def _end_of(self, uuid: str, topic: str) -> Position | None:
        if self._target is not None:
            return self._target.get(uuid, {}).get(topic)
        end = self._watches.ends.get((uuid, topic))
        return None if end is None else Position(end.instance, end.end)

    def _enter(self, uuid: str, topic: str, following: Positions) -> None:
        try:
            position = self._pull(uuid, topic, EARLIEST)
        except NodeError as error:
            if error.status:
                raise
            log.warning("node=%s: %s", uuid, error)
            return
        if position is not None:
            log.info("node=%s topic=%s: new, from %d on", uuid, topic, position.index)
            following.setdefault(uuid, {})[topic] = position

    def _begin_anew(self, uuid: str, topic: str, position: Position, following: Positions) -> None:
        self.cluster.lost(
            f"topic {topic} on {self.cluster.nodes[uuid]} was deleted and made again; "
            f"what the query had not read of it, from {position.index} on, is gone"
        )
        del following[uuid][topic]
        self._watches.gone.discard((uuid, topic))
        self._enter(uuid, topic, following)

    # Finishing

    def commit(self, positions: Positions) -> None:
        """Everything before ``positions`` is finished.

        A low-water mark: a node that does not hear of it now will with the next one.
        """
        for uuid, topics in positions.items():
            new = {
                topic: {"instance": position.instance, "index": position.index}
                for topic, position in topics.items()
                if self._committed.get((uuid, topic)) != position.index
            }
            if new and uuid in self.cluster.nodes and not self._watches.is_away(uuid):
                self._tell(uuid, {"channel": self.options.channel, "topics": new})

    def _tell(self, uuid: str, body: dict[str, Any]) -> None:
        try:
            node = self.cluster.nodes[uuid].brief()
            node.json(asked("POST", "/channel/commit", None, body), 0.0)
        except NodeError as error:
            log.warning("node=%s: %s", uuid, error)
            return
        for topic, position in body["topics"].items():
            self._committed[uuid, topic] = position["index"]

    def _commit_if_idle(self, positions: Positions) -> None:
        now_s = time.monotonic()
        if list(flat(self._idle[0])) != list(flat(positions)):
            self._idle = (positions, now_s)
        elif now_s - self._idle[1] >= IDLE_COMMIT_S:
            self.commit(positions)

    def close(self) -> None:
        self._watches.close()
