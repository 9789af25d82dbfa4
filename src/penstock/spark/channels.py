"""The pull channels of a stream, one for each node and topic: created, found, taken over.

    new query       channel created at startingOffsets; if it exists, the query continues at its low
    from checkpoint the checkpoint's positions; the channel must exist, or no message be missing
    new node        channel created at the earliest message, or found if nsqlookupd caused it
    no topic        created with the channel; a token with role read cannot, so the stream waits
    deleted topic   never recreated by a stream: the stream waits for it
    read before     by the channel, but no offset has the log: checkpoint and output were restored
                    from before it was found; read again, and missing messages are a loss

Rule 1: losses are checked before a channel is created, because they cannot be detected afterwards.
Rule 2: a channel is bound to its reader by the first commit (R45).  Until then the query's identity
        may change: one that is killed in its first batch restarts with another.
Rule 3: a channel is taken over by an offset's identity, never at the start of a new query: the
        identity of such a start is in no checkpoint, and a repeated first batch has another.
Rule 4: a commit has only positions of a durable offset, so if a channel is bound to the query in a
        log that no offset has, the query has read that log.  There are two exceptions: the channel
        was just taken over, or the node was dropped and is back.
"""

from __future__ import annotations

import logging
import time
import uuid as uuids
from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.errors import NodeError
from penstock.spark.batch import index_of
from penstock.spark.cluster import Cluster, LogState
from penstock.spark.loss import CAUSES, Loss, Losses
from penstock.spark.offsets import EARLIEST, INDEX_MAX, LATEST, Position, Positions
from penstock.spark.options import Options

log = logging.getLogger("penstock.spark")

# How often to check for a missing topic.
AWAIT_S = 1.0

Place = tuple[str, str]  # node and topic


class Channels:
    """All requests have ``identity``; "" is none, as in earlier versions."""

    def __init__(self, options: Options, cluster: Cluster, losses: Losses) -> None:
        self.identity = options.identity
        self.taken_over = False  # until the offset that records it is planned
        self.dropped: set[str] = set()  # missing nodes whose loss was accepted
        self.changed: set[Place] = set()  # logs that were deleted, or have another instance
        self.set_back: dict[Place, Position] = {}  # logs that end before the query's position
        self._options = options
        self._cluster = cluster
        self._losses = losses
        self._fresh = options.identity or uuids.uuid4().hex
        self._open: set[Place] = set()
        self._take_over_sent: set[Place] = set()
        self._below_warned: set[Place] = set()
        self._unread_warned: set[Place] = set()
        # Missing topics, and when to check again.
        self._waiting: dict[Place, float] = {}

    # Identity

    def use_identity(self, identity: str) -> str:
        """Use the identity of an offset, unless the option sets another."""
        self.identity = self._options.identity or identity
        if not self.identity and self._options.take_over:
            self.identity = self._fresh
        return self.identity

    @property
    def next_identity(self) -> str:
        """The identity for the next offset; generated if there is none."""
        return self.identity or self._fresh

    # Opening

    def start(self, places: Iterable[Place]) -> Positions:
        """The positions where a new query starts, in logs that exist."""
        found = {place: self._cluster.log_of(*place) for place in places}
        starts = {place: self._start(place, state) for place, state in found.items()}
        # With resumeFrom all logs that were read are known; without it none.
        begins = {} if self._options.resume_from is None else self._read_before(found)
        self._losses.report(self._removed_below(begins, found))
        positions: Positions = {}
        for (uuid, topic), state in found.items():
            position: Position | None
            if self._options.take_over and state is not None and self._has_other_reader(state):
                # Rule 3
                position = Position(state.instance, state.pulls[self._options.channel].low)
            else:
                position = self._pull(uuid, topic, starts[uuid, topic], state)
                position = self._set_back_to(begins, uuid, topic, state, position)
            if position is not None:
                positions.setdefault(uuid, {})[topic] = position
        return positions

    def _start(self, place: Place, found: LogState | None) -> int | str:
        """Where the options start a log; not used if its channel exists."""
        cluster, options, (uuid, topic) = self._cluster, self._options, place
        given = options.starting_offsets.of(uuid, cluster.nodes[uuid].address, topic, EARLIEST)
        if found is not None and options.channel not in found.channels:
            if isinstance(given, Position):
                end = cluster.settled(uuid, topic, found)
                return min(end, index_of(given, cluster, uuid, topic, found, end))
            if options.starting_timestamp is not None:
                cluster.settled(uuid, topic, found)
                return cluster.seek(uuid, topic, options.starting_timestamp)
        return LATEST if given == LATEST else EARLIEST

    def open(self, positions: Positions, *, judged: bool, waits: bool) -> None:
        """Open channels that are not open yet; first report all losses together (Rule 1).

        ``judged`` False: a batch is repeated, and its tasks check for losses; channels with losses
        stay closed.  ``waits``: a missing node may come back.
        """
        self._cluster.find(positions)
        found: dict[Place, LogState] = {}
        losses: dict[Place, Loss] = {}
        for uuid, topics in sorted(positions.items()):
            if uuid not in self._cluster.nodes:
                if judged:
                    losses |= self._absent(uuid, topics, waits=waits)
                continue
            for topic, position in sorted(topics.items()):
                place = (uuid, topic)
                if topic not in self._options.topic:
                    self._warn_unread(uuid, topic, position)
                    continue
                if place in self._open or position.is_deleted:
                    continue
                state = self._cluster.log_of(uuid, topic)
                if state is None or state.instance != position.instance:
                    self.changed.add(place)
                    if judged and state is not None and self._to_take_over(uuid, topic, state):
                        # Losses are checked when it enters; polls need the channel before.
                        self._pull(uuid, topic, state.first, state)
                    continue
                found[place] = state
                self.changed.discard(place)  # set for the start of a repeated batch
                if (loss := self._loss_of(uuid, topic, position, state)) is not None:
                    losses[place] = loss
        for (uuid, topic), state in found.items():
            if self._has_other_reader(state) and not self._options.take_over:
                # The node refuses and names the other reader, which explains the losses.
                self._pull(uuid, topic, positions[uuid][topic].index, state)
        if judged:
            self._losses.report(losses.values())
        for (uuid, topic), state in found.items():
            # A channel to take over exists; polls need it before losses can be checked.
            taken = self._to_take_over(uuid, topic, state)
            if judged or taken or (uuid, topic) not in losses:
                index = min(positions[uuid][topic].index, state.end)
                self._pull(uuid, topic, index, state)

    def _has_other_reader(self, found: LogState) -> bool:
        """Whether the channel is bound to another reader."""
        pull = found.pulls.get(self._options.channel)
        bound = pull.identity if pull is not None else ""
        return bool(bound) and bound != self.identity

    def _is_ours(self, found: LogState) -> bool:
        """Whether the channel is bound to this query."""
        pull = found.pulls.get(self._options.channel)
        return pull is not None and bool(self.identity) and pull.identity == self.identity

    def _warn_unread(self, uuid: str, topic: str, position: Position) -> None:
        if (uuid, topic) not in self._unread_warned and not position.is_deleted:
            self._unread_warned.add((uuid, topic))
            log.warning(
                "node=%s topic=%s: the checkpoint has it up to %d, but the query no longer reads "
                "it",
                *(uuid, topic, position.index),
            )

    def close(self, uuid: str) -> None:
        """Mark a node's channels as not open, because they have changed."""
        self._open = {place for place in self._open if place[0] != uuid}

    def _absent(self, uuid: str, topics: dict[str, Position], *, waits: bool) -> dict[Place, Loss]:
        """The losses of a missing node; empty if the stream waits for it."""
        options = self._options
        if options.nsqd_http_addresses:
            what = f"is missing: the node is not one of {', '.join(options.nsqd_http_addresses)}"
        else:
            what = "is unreachable: the node is not registered with nsqlookupd"
        losses = {
            (uuid, topic): Loss(uuid, "", topic, each.instance, each.index, INDEX_MAX, None, what)
            for topic, each in topics.items()
            if topic in options.topic and not each.is_deleted
        }
        if losses and all(map(self._losses.accepts, losses.values())):
            self.dropped.add(uuid)
            return losses
        if waits and not (options.nsqd_http_addresses and self._cluster.complete):
            log.warning("node=%s: not found; waiting for it", uuid)
            return {}
        return losses

    def _loss_of(self, uuid: str, topic: str, position: Position, found: LogState) -> Loss | None:
        """The loss of messages that the query has not read; None if there is none."""
        channel, index = self._options.channel, position.index
        where = (uuid, self._cluster.nodes[uuid].address, topic, position.instance)
        if index > found.end:
            what = f"ends before the checkpoint's {index}: was the node restored from a backup?"
            self.set_back[uuid, topic] = Position(position.instance, found.end)
            return Loss(*where, found.end, index, index - found.end, what)
        end = found.missing_below(channel, index)
        if end == index:
            pull = found.pulls.get(channel)
            if pull is not None and index < pull.low:
                self.warn_below(uuid, topic, index, pull.low)
            return None
        kept = channel in found.channels
        what = f"lacks messages below the low-water mark of channel {channel}"
        if not kept:
            what = f"lacks messages, and channel {channel}, which kept them, does not exist"
        return self.missing(Loss(*where, index, end, None, what))

    def missing(self, loss: Loss) -> Loss | None:
        """Add the count to a loss; None if none of its messages are missing."""
        if self._losses.is_reported(loss.node, loss.topic, loss.instance, loss.end):
            return replace(loss, count_max=loss.end - loss.start)
        where = (loss.node, loss.topic, loss.start, loss.end)
        count_max = self._cluster.missing_count_max(*where)
        return replace(loss, count_max=count_max) if count_max else None

    def warn_below(self, uuid: str, topic: str, index: int, low: int) -> None:
        """Warn once of a position below the channel's low whose messages still exist."""
        if (uuid, topic) not in self._below_warned:
            self._below_warned.add((uuid, topic))
            log.warning(
                "node=%s topic=%s: the query is at %d, below the low-water mark %d of channel %s; "
                "the messages still exist and are read (again).  %s",
                *(uuid, topic, index, low, self._options.channel, CAUSES),
            )

    # New logs

    def enter(
        self, places: Iterable[Place], positions: Positions, following: Positions, lost: list[Loss]
    ) -> None:
        """Add logs to ``following`` at their start; wait for deleted topics (R48).

        ``lost`` are the losses that this poll has found so far.
        """
        found: dict[Place, LogState | None] = {}
        for uuid, topic in places:
            try:
                found[uuid, topic] = self._cluster.log_of(uuid, topic)
            except NodeError as error:
                self._warn_away(uuid, error)
        begins = self._read_before(found, positions)
        self._losses.report([*lost, *self._removed_below(begins, found)])
        for (uuid, topic), state in found.items():
            if state is None and _was_deleted(topic, following):
                self._wait_for(uuid, topic)
                continue
            # A numeric start does not create a topic that was deleted just now.
            start = EARLIEST if state is None else state.first
            try:
                position = self._pull(uuid, topic, start, state)
            except NodeError as error:
                self._warn_away(uuid, error)
                continue
            position = self._set_back_to(begins, uuid, topic, state, position)
            if position is not None:
                log.info("node=%s topic=%s: new, starting at %d", uuid, topic, position.index)
                following.setdefault(uuid, {})[topic] = position

    def _warn_away(self, uuid: str, error: NodeError) -> None:
        """Raise a refusal; log a node that does not respond, which is retried."""
        if error.status:
            raise error
        log.warning("node=%s: %s", uuid, error)

    def _read_before(
        self, found: Mapping[Place, LogState | None], positions: Positions | None = None
    ) -> dict[Place, int]:
        """Where the query started in logs that it has read but no offset has (Rule 4).

        Without resumeFrom, a dropped node leaves no record in the checkpoint, so a node that is
        not in ``positions`` is left out.  ``positions`` None: the query starts.
        """
        begins: dict[Place, int] = {}
        for (uuid, topic), state in found.items():
            if state is None or not self._is_ours(state) or (uuid, topic) in self._take_over_sent:
                continue
            known = {} if positions is None else positions.get(uuid)
            if known is None and self._options.resume_from is None:
                continue
            before = (known or {}).get(topic)
            if before is not None and before.instance == state.instance:
                continue
            if not self._losses.is_dropped(uuid, topic, state.instance):
                begins[uuid, topic] = self._began(uuid, topic, state) if positions is None else 0
        return begins

    def _began(self, uuid: str, topic: str, found: LogState) -> int:
        """Where a query that starts again started the first time; 0 if unknown."""
        address = self._cluster.nodes[uuid].address
        given = self._options.starting_offsets.of(uuid, address, topic, EARLIEST)
        if isinstance(given, Position) and given.instance in ("", found.instance):
            return given.index
        return 0

    def _removed_below(
        self, begins: Mapping[Place, int], found: Mapping[Place, LogState | None]
    ) -> list[Loss]:
        """The losses in logs that the query has read but no offset has."""
        losses = []
        for (uuid, topic), begin in begins.items():
            state = found[uuid, topic]
            assert state is not None
            end = state.missing_below(self._options.channel, begin)
            if end > begin:
                where = (uuid, self._cluster.nodes[uuid].address, topic, state.instance)
                what = (
                    f"was read before, by channel {self._options.channel}, and the query's "
                    "checkpoint does not have it: it was restored from before then"
                )
                losses.append(Loss(*where, begin, end, None, what))
        return losses

    def _set_back_to(
        self,
        begins: Mapping[Place, int],
        uuid: str,
        topic: str,
        found: LogState | None,
        position: Position | None,
    ) -> Position | None:
        """Set a log that was read before back to its start."""
        begin = begins.get((uuid, topic))
        if begin is None or position is None or found is None:
            return position
        index = max(begin, found.first)
        if position.instance != found.instance or index >= position.index:
            return position
        self.warn_below(uuid, topic, index, position.index)
        return Position(position.instance, index)

    def is_due(self, uuid: str, topic: str) -> bool:
        """Whether to check for a missing topic."""
        return time.monotonic() >= self._waiting.get((uuid, topic), 0.0)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def _wait_for(self, uuid: str, topic: str) -> None:
        if (uuid, topic) not in self._waiting:
            node = self._cluster.nodes[uuid]
            log.warning("topic=%s: does not exist on %s; waiting for it", topic, node)
        self._waiting[uuid, topic] = time.monotonic() + AWAIT_S

    def _pull(
        self, uuid: str, topic: str, start: int | str, found: LogState | None
    ) -> Position | None:
        """Create or find the channel; None if there is no topic and none is created."""
        node, channel = self._cluster.nodes[uuid], self._options.channel
        parameters: dict[str, object] = {"topic": topic, "channel": channel, "start": start}
        if self.identity:
            parameters["identity"] = self.identity
        takes_over = self._takes_over(uuid, topic, found)
        if takes_over:
            parameters["take_over"] = self._options.take_over
        try:
            reply = node.post("/channel/pull", **parameters)
        except NodeError as error:
            deleted = error.code == "INVALID_START" and self._cluster.log_of(uuid, topic) is None
            if error.code == "TOPIC_NOT_FOUND" or deleted:
                self._wait_for(uuid, topic)
                return None
            if error.code == "CHANNEL_IN_USE":
                raise NodeError(
                    f"channel {channel} of topic {topic} on {node} is not a pull channel and "
                    "has or had consumers: a stream needs its own channel",
                    *(error.status, error.code),
                ) from None
            if takes_over and error.code == "FORBIDDEN":
                raise NodeError(
                    f"{error}: taking a channel over needs a token with role admin",
                    *(error.status, error.code),
                ) from None
            raise
        if takes_over:
            self.taken_over = True
            log.warning(
                "node=%s topic=%s: channel %s taken over from %s",
                *(uuid, topic, channel, self._options.take_over),
            )
        self._open.add((uuid, topic))
        self._waiting.pop((uuid, topic), None)
        return Position(reply["instance"], int(reply["low"]))

    def _to_take_over(self, uuid: str, topic: str, found: LogState) -> bool:
        """Whether another reader has the channel, and it is to be taken over."""
        sent = (uuid, topic) in self._take_over_sent
        return bool(self._options.take_over) and self._has_other_reader(found) and not sent

    def _takes_over(self, uuid: str, topic: str, found: LogState | None) -> bool:
        """Whether to take a channel over: once, and only from another reader."""
        if found is None or not self._to_take_over(uuid, topic, found):
            return False
        self._take_over_sent.add((uuid, topic))
        return True


def _was_deleted(topic: str, positions: Positions) -> bool:
    """Whether the topic was deleted on any node; then it is not created on others."""
    return any(topic in topics and topics[topic].is_deleted for topics in positions.values())
