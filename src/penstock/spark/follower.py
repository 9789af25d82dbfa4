"""A stream's place in the logs of all nodes: where it starts, what is new, what is finished.

The query is a pull channel on every node (R18), see `channels.py`.  It is made before anything is
read, keeps what the query has not committed, and its start survives with the broker: if the driver
dies before the first batch is done, the next one starts where this one did.

Rule 1: a node, topic or instance enters an offset at its start, without messages: they belong to
        the next batch.  So every range has both its ends in the checkpoint and can be read again.
Rule 2: positions are judged against the log at every start and every poll (R46): below the
        channel's mark stands only a query that was put back, or whose channel somebody else moved.
Rule 3: a commit carries the identity of the offset that it commits (R45), and never one that is in
        no checkpoint: the first offset, which this process made, is not committed.
Rule 4: a run that reads what is there (AvailableNow) ends without error only if it has read it.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

from penstock.errors import NodeError, QueryError
from penstock.spark.batch import check_named
from penstock.spark.channels import AWAIT_S, Channels
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.cluster import Cluster
from penstock.spark.holdback import Hold
from penstock.spark.loss import Loss, Losses
from penstock.spark.node_client import HAS_READER, Access, asked
from penstock.spark.offsets import INDEX_MAX, Position, Positions, flat
from penstock.spark.options import Options
from penstock.spark.ranges import Range, limited
from penstock.spark.watcher import Watches

log = logging.getLogger("penstock.spark")

NS = 1_000_000_000
# Without a listener Spark tells of the last batch only when the next one exists.  A query that
# asks for more from the same place for so long has committed what lies before it.
IDLE_COMMIT_S = 5.0
# What of a commit one topic alone can be the reason for.
OF_ONE_TOPIC = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "NOT_A_PULL_CHANNEL", "INSTANCE_CHANGED")


class Follower:
    """The driver's side of a stream."""

    def __init__(self, options: Options, access: Access) -> None:
        self.cluster = Cluster(options, access)
        self.options = options
        self.losses = Losses(options)
        self.channels = Channels(options, self.cluster, self.losses)
        self._watches = Watches(options.channel, options.topic, access.retry_timeout_s)
        self._checkpoint = Checkpoint(options.checkpoint)
        self._hold = Hold(options.hold_interval_ns, options.hold_messages)
        self._reader = options.reader or f"Spark query on {socket.gethostname()}, pid {os.getpid()}"
        self._initial: Positions | None = None  # made by this process, in no checkpoint
        self._discovered = False
        self._resumed = False
        self._discover_s = 0.0
        self._target: Positions | None = None
        self._paused: set[tuple[str, str]] = set()  # when the target was set
        self._committed: dict[tuple[str, str], int] = {}
        self._whole: dict[tuple[str, str, str], tuple[int, int]] = {}
        self._idle: tuple[Positions, float] = ({}, 0.0)

    def name(self, identity: str) -> None:
        """From now on name the channel with the identity of an offset."""
        self._watches.name(self.channels.name(identity))

    # Beginning

    def start(self) -> Positions:
        """Where a new query begins."""
        self.name(self.channels.next_identity)
        self._discover()
        check_named(self.options.starting_offsets, "startingOffsets", self.cluster)
        positions: Positions = {}
        if self.options.resume_from is not None:
            # Judged and opened like a checkpoint's, when the query goes on from them.
            positions = {uuid: dict(each) for uuid, each in self.options.resume_from.items()}
        new = [
            (uuid, topic)
            for uuid in self.cluster.nodes
            for topic in self.options.topic
            if topic not in positions.get(uuid, {})
        ]
        for uuid, topics in self.channels.start(new).items():
            positions.setdefault(uuid, {}).update(topics)
        self._initial = {uuid: dict(topics) for uuid, topics in positions.items()}
        return positions

    def resume(self, positions: Positions, *, judged: bool = True) -> None:
        """Open the channels of a query that goes on; ``judged`` as of Channels.open."""
        if not self._resumed:
            self._discover()
            self._open(positions, judged=judged)
            self._resumed = judged

    def _discover(self) -> None:
        if not self._discovered:
            self.cluster.discover(strict=True)
            self._discovered = True

    def _open(self, positions: Positions, *, judged: bool = True) -> None:
        self.channels.open(positions, judged=judged, waits=self._target is None)
        self._discover_s = time.monotonic() + self.options.discovery_interval_ns / NS
        self._watches.follow(self.cluster.nodes)

    # Going on

    def prepare_available_now(self) -> None:
        """What is there now is all that this run reads."""
        self._target = {}

    def newest(self, positions: Positions, rows_max: int | None) -> Positions:
        """How far the next batch goes, after a wait if there is nothing new."""
        self.resume(positions)
        self._look_for_nodes(positions)
        if self._target is not None:
            self._aim(positions)
            self._watches.poll(positions, 0.0)
        else:
            self._commit_if_idle(positions)
            self._wait(positions, rows_max)
        self._judge(positions)
        ranges, following = self._reachable(positions)
        if rows_max is not None:
            ranges = limited(ranges, rows_max, self.count)
        for each in ranges:
            following[each.node][each.topic] = Position(each.instance, each.end)
        if self._hold.goal is not None and not ranges:
            self._hold.finish()
        if self._target is not None and following == positions:
            self._end(positions)
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
        if each.node not in self.cluster.nodes:
            return end - start
        try:
            found = self.cluster.count(each.node, each.topic, start, end)
        except NodeError as error:
            if error.code != "TOPIC_NOT_FOUND":
                raise
            return end - start  # it was deleted: whoever reads the range, or the next look, tells
        if found == end - start:
            self._whole[key] = (start, end)
        return found

    # Waiting

    def _wait(self, positions: Positions, rows_max: int | None) -> None:
        """Until there is more to read, for pollTimeout at most."""
        wait_s = self.options.poll_timeout_ns / NS
        if self.channels.awaits:
            wait_s = min(wait_s, AWAIT_S)
        hold = self._hold
        if not hold.wanted or hold.goal is not None:
            self._watches.poll(positions, wait_s, rows_max)
            return
        self._watches.poll(positions, 0.0 if hold.left_s() else wait_s)
        if not self._watches.reach(positions) and not hold.left_s():
            return
        if not hold.left_s() or self._enough_wait(positions):
            hold.goal = self.reached()
        else:
            time.sleep(min(wait_s, hold.left_s()))

    def _enough_wait(self, positions: Positions) -> bool:
        """Whether holdMessages wait; counted only if there may be so many."""
        wanted = self._hold.messages
        if wanted is None or self._watches.reach(positions) < wanted:
            return False
        ranges, _ = self._ranges(positions, held=False)
        return sum(self.count(each, each.start, each.end) for each in ranges) >= wanted

    def _look_for_nodes(self, positions: Positions) -> None:
        astray, self._watches.astray = self._watches.astray, set()
        for uuid in astray:
            self.cluster.forget(uuid)
            self.channels.close(uuid)
        if self._target is not None:
            if astray:
                self.cluster.discover(strict=True)
                self._open(positions)
            return
        if not astray and time.monotonic() < self._discover_s:
            return
        try:
            self.cluster.discover(strict=False)
            self._open({uuid: positions[uuid] for uuid in astray & set(positions)})
        except NodeError as error:
            if error.status:
                raise
            log.warning("%s", error)

    # Judging

    def _judge(self, positions: Positions) -> None:
        """Rule 2, by what the last poll told."""
        losses = []
        for (uuid, topic), end in self._watches.ends.items():
            position = positions.get(uuid, {}).get(topic)
            if position is None or position.index >= end.low or position.instance != end.instance:
                continue
            missing = min(end.low, end.whole_from)
            if position.index >= missing:
                self.channels.warn_below(uuid, topic, position.index, end.low)
                continue
            what = f"lacks messages below the mark of channel {self.options.channel}"
            loss = self.channels.missing(self._loss(uuid, topic, position, missing, what))
            if loss is not None:
                losses.append(loss)
        self.losses.tell(losses)

    def _loss(self, uuid: str, topic: str, position: Position, end: int, what: str) -> Loss:
        address = self.cluster.nodes[uuid].address if uuid in self.cluster.nodes else ""
        return Loss(uuid, address, topic, position.instance, position.index, end, None, what)

    # What there is

    def _aim(self, positions: Positions) -> None:
        """Find the ends of an AvailableNow run, the first time."""
        if self._target:
            return
        if not self.cluster.nodes:
            lookupds = ", ".join(self.options.lookupd_http_addresses)
            raise QueryError(f"no nsqd is registered with nsqlookupd {lookupds}: nothing was read")
        target: Positions = {}
        for uuid in self.cluster.nodes:
            for topic in self.options.topic:
                found = self.cluster.log_of(uuid, topic)
                if found is None:
                    if topic in positions.get(uuid, {}):
                        self._watches.gone.add((uuid, topic))
                    continue
                channel = self.options.channel if self.options.channel in found.channels else ""
                if channel in found.pulls and found.pulls[channel].paused:
                    self._paused.add((uuid, topic))
                identity = self.channels.identity
                end = self.cluster.settled(uuid, topic, found, channel, identity)
                target.setdefault(uuid, {})[topic] = Position(found.instance, end)
        self._target = target

    def _end(self, positions: Positions) -> None:
        """The last batch of an AvailableNow run is done, and no next one says so (Rule 4)."""
        paused = []
        for uuid, topic, end in flat(self._target or {}):
            position = positions.get(uuid, {}).get(topic)
            if position is None or position.instance != end.instance or position.index >= end.index:
                continue
            if not self._is_paused(uuid, topic):
                raise QueryError(
                    f"topic {topic} on node {uuid} was to be read up to {end.index} and was read "
                    f"up to {position.index}: the node is not there any more; start again"
                )
            paused.append(topic)
        if paused:
            log.warning(
                "channel=%s: paused, so messages of %s were not read; unpause it and run again",
                *(self.options.channel, ", ".join(sorted(set(paused)))),
            )
        self.commit(positions)

    def _reachable(self, positions: Positions) -> tuple[list[Range], Positions]:
        """What may be read now, and the positions with what enters them (Rule 1)."""
        following = {
            uuid: dict(topics)
            for uuid, topics in positions.items()
            if uuid not in self.channels.dropped or uuid in self.cluster.nodes
        }
        for (uuid, topic), set_back in self.channels.set_back.items():
            following[uuid][topic] = set_back
        self.channels.set_back.clear()
        ranges, changed = self._ranges(positions)
        lost = self._begin_anew(changed, positions, following)
        absent = []
        for uuid in self.cluster.nodes:
            for topic in self.options.topic:
                position = following.get(uuid, {}).get(topic)
                if position is None or position.is_deleted:
                    absent.append((uuid, topic))
        due = [place for place in absent if self.channels.is_due(*place)]
        self.channels.enter(due, positions, following, lost)
        return ranges, following

    def _ranges(
        self, positions: Positions, *, held: bool = True
    ) -> tuple[list[Range], list[tuple[str, str]]]:
        """What may be read now, and the (node, topic) whose instance is not there any more.

        Not ``held``: also what is held back.
        """
        ranges, changed = [], []
        gone = self._watches.gone | self.channels.changed
        for uuid, node in self.cluster.nodes.items():
            for topic in self.options.topic:
                position = positions.get(uuid, {}).get(topic)
                if position is None or position.is_deleted:
                    self._watches.gone.discard((uuid, topic))
                    self.channels.changed.discard((uuid, topic))
                    continue
                end = self._end_of(uuid, topic, held=held)
                if (uuid, topic) in gone or (end is not None and end.instance != position.instance):
                    changed.append((uuid, topic))
                elif end is not None and end.index > position.index:
                    where = (uuid, node.address, topic, position.instance)
                    ranges.append(Range(*where, position.index, end.index))
        return ranges, changed

    def _end_of(self, uuid: str, topic: str, *, held: bool) -> Position | None:
        """How far a log may be read now; of one that is paused or held back the instance alone."""
        told = self._watches.ends.get((uuid, topic))
        end = None if told is None else Position(told.instance, told.end)
        if self._target is not None:
            end = self._target.get(uuid, {}).get(topic)
        if end is None:
            return None
        if self._is_paused(uuid, topic):
            return Position(end.instance, 0)
        if self._target is not None or not self._hold.wanted or not held:
            return end
        goal = (self._hold.goal or {}).get(uuid, {}).get(topic)
        if goal is None or goal.instance != end.instance:
            return Position(end.instance, 0)
        return goal

    def _is_paused(self, uuid: str, topic: str) -> bool:
        """Also a run that has begun is held by a pause."""
        told = self._watches.ends.get((uuid, topic))
        return told.paused if told is not None else (uuid, topic) in self._paused

    def _begin_anew(
        self, changed: list[tuple[str, str]], positions: Positions, following: Positions
    ) -> list[Loss]:
        """Topics that were deleted, or deleted and made again: two messages (R48).

        Returns what is lost with them.
        """
        losses = []
        for uuid, topic in changed:
            position = positions[uuid][topic]
            found = self.cluster.log_of(uuid, topic)
            self._watches.gone.discard((uuid, topic))
            self.channels.changed.discard((uuid, topic))
            if found is not None and found.instance == position.instance:
                continue
            self._watches.ends.pop((uuid, topic), None)
            what = "was deleted" if found is None else "was deleted and made again"
            losses.append(self._loss(uuid, topic, position, INDEX_MAX, what))
            following[uuid][topic] = Position(position.instance, INDEX_MAX)
        return losses

    # Finishing

    def commit(self, positions: Positions) -> None:
        """Everything before ``positions`` is finished.

        A low-water mark: a node that does not hear of it now will with the next one.
        """
        if positions == self._initial:
            return  # Rule 3
        synced = False
        for uuid, topics in positions.items():
            new = {
                topic: {"instance": position.instance, "index": position.index}
                for topic, position in topics.items()
                if self._committed.get((uuid, topic)) != position.index
                and topic in self.options.topic
                and not position.is_deleted
            }
            if new and uuid in self.cluster.nodes and not self._watches.is_away(uuid):
                if not synced:
                    self._checkpoint.sync()
                    synced = True
                self._tell(uuid, new)

    def _tell(self, uuid: str, topics: dict[str, Any]) -> None:
        body = {"channel": self.options.channel, "topics": topics}
        if self.channels.identity:
            body |= {"identity": self.channels.identity, "reader": self._reader}
        try:
            node = self.cluster.nodes[uuid].brief()
            node.json(asked("POST", "/channel/commit", None, body), 0.0)
        except NodeError as error:
            if error.code == HAS_READER:
                raise
            if error.code in OF_ONE_TOPIC and len(topics) > 1:
                # All of them move or none does; one that was deleted must not hold the others.
                for topic, position in topics.items():
                    self._tell(uuid, {topic: position})
                return
            log.warning("node=%s: %s", uuid, error)
            return
        for topic, position in topics.items():
            self._committed[uuid, topic] = position["index"]

    def _commit_if_idle(self, positions: Positions) -> None:
        now_s = time.monotonic()
        if list(flat(self._idle[0])) != list(flat(positions)):
            self._idle = (positions, now_s)
        elif now_s - self._idle[1] >= IDLE_COMMIT_S:
            self.commit(positions)

    def close(self) -> None:
        self._watches.close()
