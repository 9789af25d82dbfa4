"""The pull channels of a stream, one for each node and topic: made, found, taken over.

    new query       channel made at startingOffsets, or found: then it goes on where that stands
    from checkpoint the checkpoint's positions; the channel must still be there, or hold it all
    new node        channel made at its earliest message, or found as nsqlookupd had it made
    no topic        made with the channel; a token that only reads makes none, so it is waited for
    deleted topic   never made again by a stream: it is waited for
    read before     by the channel, and no offset knows the log: checkpoint and output were put
                    back from before it was found; read again, and what is gone of it is a loss

Rule 1: what may be lost is judged before a channel is made, because afterwards it looks whole.
Rule 2: a channel is bound to its reader by the first commit (R45).  Until then the query's identity
        may change: one that is killed in its first batch starts again with another.
Rule 3: a channel is taken over by an offset's identity, never at the start of a new query: the
        identity of such a start is in no checkpoint, and a repeated first batch has another.
Rule 4: a commit names positions of a durable offset only, so a channel that is bound to the query
        in a log that no offset knows has been read by it.  There are two exceptions: the channel
        was taken over just now, or the node was dropped and is back.
"""

from __future__ import annotations

import logging
import time
import uuid as uuids
from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.errors import NodeError
from penstock.spark.batch import index_of
from penstock.spark.cluster import Cluster, Log
from penstock.spark.loss import CAUSES, Loss, Losses
from penstock.spark.offsets import EARLIEST, INDEX_MAX, LATEST, Position, Positions
from penstock.spark.options import Options

log = logging.getLogger("penstock.spark")

# How often a topic that is not there is looked for.
AWAIT_S = 1.0

Place = tuple[str, str]  # node and topic


class Channels:
    """All of them are named with ``identity``; "" is none, as by readers of earlier versions."""

    def __init__(self, options: Options, cluster: Cluster, losses: Losses) -> None:
        self.identity = options.identity
        self.taken_over = False  # and the offset that says so is not planned yet
        self.dropped: set[str] = set()  # nodes that are gone, which was accepted
        self.changed: set[Place] = set()  # logs of another instance, or none
        self.set_back: dict[Place, Position] = {}  # logs that end before the query's position
        self._options = options
        self._cluster = cluster
        self._losses = losses
        self._fresh = options.identity or uuids.uuid4().hex
        self._open: set[Place] = set()
        self._take_over_sent: set[Place] = set()
        self._below_told: set[Place] = set()
        self._unread_told: set[Place] = set()
        # What is not there yet, and when to look for it again.
        self._awaited: dict[Place, float] = {}

    # Who the query is

    def name(self, identity: str) -> str:
        """Name channels with the identity of an offset, if the option gives no other."""
        self.identity = self._options.identity or identity
        if not self.identity and self._options.take_over:
            self.identity = self._fresh
        return self.identity

    @property
    def next_identity(self) -> str:
        """That of the next offset: one that has none gets one."""
        return self.identity or self._fresh

    # Opening

    def start(self, places: Iterable[Place]) -> Positions:
        """Where a new query begins in logs, as far as they are there."""
        found = {place: self._cluster.log_of(*place) for place in places}
        starts = {place: self._start(place, told) for place, told in found.items()}
        # Whoever says where to resume knows all that was read; a plain query knows nothing.
        begins = {} if self._options.resume_from is None else self._read_before(found)
        self._losses.tell(self._gone_below(begins, found))
        positions: Positions = {}
        for (uuid, topic), told in found.items():
            position: Position | None
            if self._options.take_over and told is not None and self._is_anothers(told):
                position = Position(told.instance, told.pulls[self._options.channel].low)  # Rule 3
            else:
                position = self._pull(uuid, topic, starts[uuid, topic], told)
                position = self._set_back_to(begins, uuid, topic, told, position)
            if position is not None:
                positions.setdefault(uuid, {})[topic] = position
        return positions

    def _start(self, place: Place, found: Log | None) -> int | str:
        """Where the options let a log begin; they do not count if its channel was made before."""
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
        """Open what is not open yet; what is lost is judged first, all of it at once (Rule 1).

        Not ``judged``: a batch is repeated, and only whoever reads it has to judge it; what is lost
        stays closed.  ``waits``: a node that is not found may come later.
        """
        self._cluster.find(positions)
        found: dict[Place, Log] = {}
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
                told = self._cluster.log_of(uuid, topic)
                if told is None or told.instance != position.instance:
                    self.changed.add(place)
                    if judged and told is not None and self._is_taken(uuid, topic, told):
                        # Its place is judged when it enters; polls name the channel before.
                        self._pull(uuid, topic, told.first, told)
                    continue
                found[place] = told
                self.changed.discard(place)  # that was said of a repeated batch's beginning
                if (loss := self._judge(uuid, topic, position, told)) is not None:
                    losses[place] = loss
        for (uuid, topic), told in found.items():
            if self._is_anothers(told) and not self._options.take_over:
                # The node refuses, with who reads it: that is why messages are gone.
                self._pull(uuid, topic, positions[uuid][topic].index, told)
        if judged:
            self._losses.tell(losses.values())
        for (uuid, topic), told in found.items():
            # One that is taken over is there already; its reader names it before it can judge.
            taken = self._is_taken(uuid, topic, told)
            if judged or taken or (uuid, topic) not in losses:
                index = min(positions[uuid][topic].index, told.end)
                self._pull(uuid, topic, index, told)

    def _is_anothers(self, found: Log) -> bool:
        """Whether the channel is bound to another reader."""
        pull = found.pulls.get(self._options.channel)
        bound = pull.identity if pull is not None else ""
        return bool(bound) and bound != self.identity

    def _is_ours(self, found: Log) -> bool:
        """Whether the channel is bound to this query."""
        pull = found.pulls.get(self._options.channel)
        return pull is not None and bool(self.identity) and pull.identity == self.identity

    def _warn_unread(self, uuid: str, topic: str, position: Position) -> None:
        if (uuid, topic) not in self._unread_told and not position.is_deleted:
            self._unread_told.add((uuid, topic))
            log.warning(
                "node=%s topic=%s: the checkpoint has it up to %d, and the query does not read it "
                "any more",
                *(uuid, topic, position.index),
            )

    def close(self, uuid: str) -> None:
        """A node's channels are not what they were."""
        self._open = {place for place in self._open if place[0] != uuid}

    def _absent(self, uuid: str, topics: dict[str, Position], *, waits: bool) -> dict[Place, Loss]:
        """What a node that is not there may still have; nothing if it is waited for."""
        options = self._options
        if options.nsqd_http_addresses:
            what = f"is gone: the node is none of {', '.join(options.nsqd_http_addresses)}"
        else:
            what = "is out of reach: the node is not registered with nsqlookupd"
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

    def _judge(self, uuid: str, topic: str, position: Position, found: Log) -> Loss | None:
        """Whether a log still has what the query has not read."""
        channel, index = self._options.channel, position.index
        where = (uuid, self._cluster.nodes[uuid].address, topic, position.instance)
        if index > found.end:
            what = f"ends before the checkpoint's {index}: was the node set back?"
            self.set_back[uuid, topic] = Position(position.instance, found.end)
            return Loss(*where, found.end, index, index - found.end, what)
        end = found.missing_below(channel, index)
        if end == index:
            pull = found.pulls.get(channel)
            if pull is not None and index < pull.low:
                self.warn_below(uuid, topic, index, pull.low)
            return None
        kept = channel in found.channels
        what = f"lacks messages below the mark of channel {channel}" if kept else self._gone()
        return self.missing(Loss(*where, index, end, None, what))

    def _gone(self) -> str:
        return f"lacks messages, and channel {self._options.channel}, which kept them, is gone"

    def missing(self, loss: Loss) -> Loss | None:
        """A loss with its count; None if all its messages are there."""
        if self._losses.is_told(loss.node, loss.topic, loss.instance, loss.end):
            return replace(loss, count_max=loss.end - loss.start)
        where = (loss.node, loss.topic, loss.start, loss.end)
        count_max = self._cluster.missing_count_max(*where)
        return replace(loss, count_max=count_max) if count_max else None

    def warn_below(self, uuid: str, topic: str, index: int, low: int) -> None:
        """A position below the channel's mark whose messages are still there; once."""
        if (uuid, topic) not in self._below_told:
            self._below_told.add((uuid, topic))
            log.warning(
                "node=%s topic=%s: the query stands at %d, below the mark %d of channel %s; "
                "the messages are still there and are read (again).  %s",
                *(uuid, topic, index, low, self._options.channel, CAUSES),
            )

    # Entering

    def enter(
        self, places: Iterable[Place], positions: Positions, following: Positions, lost: list[Loss]
    ) -> None:
        """Let logs enter ``following`` at their start; what was deleted is waited for (R48).

        ``lost`` is what this look has found to be lost until now.
        """
        found: dict[Place, Log | None] = {}
        for uuid, topic in places:
            try:
                found[uuid, topic] = self._cluster.log_of(uuid, topic)
            except NodeError as error:
                self._warn_away(uuid, error)
        begins = self._read_before(found, positions)
        self._losses.tell([*lost, *self._gone_below(begins, found)])
        for (uuid, topic), told in found.items():
            if told is None and _was_deleted(topic, following):
                self._await(uuid, topic)
                continue
            # A number makes no topic, should it be deleted at this moment.
            start = EARLIEST if told is None else told.first
            try:
                position = self._pull(uuid, topic, start, told)
            except NodeError as error:
                self._warn_away(uuid, error)
                continue
            position = self._set_back_to(begins, uuid, topic, told, position)
            if position is not None:
                log.info("node=%s topic=%s: new, from %d on", uuid, topic, position.index)
                following.setdefault(uuid, {})[topic] = position

    def _warn_away(self, uuid: str, error: NodeError) -> None:
        """A node that refuses is an error, one that does not answer is tried again."""
        if error.status:
            raise error
        log.warning("node=%s: %s", uuid, error)

    def _read_before(
        self, found: Mapping[Place, Log | None], positions: Positions | None = None
    ) -> dict[Place, int]:
        """Of logs that no offset knows, those that the query has read: where it began (Rule 4).

        A plain query drops a node with all its positions and keeps no record of that: of a node
        that is not in ``positions`` it knows nothing.  None: the query begins.
        """
        begins: dict[Place, int] = {}
        for (uuid, topic), told in found.items():
            if told is None or not self._is_ours(told) or (uuid, topic) in self._take_over_sent:
                continue
            known = {} if positions is None else positions.get(uuid)
            if known is None and self._options.resume_from is None:
                continue
            before = (known or {}).get(topic)
            if before is not None and before.instance == told.instance:
                continue
            if not self._losses.is_dropped(uuid, topic, told.instance):
                begins[uuid, topic] = self._began(uuid, topic, told) if positions is None else 0
        return begins

    def _began(self, uuid: str, topic: str, found: Log) -> int:
        """Where a query that begins anew began the first time; 0 if nobody knows."""
        address = self._cluster.nodes[uuid].address
        given = self._options.starting_offsets.of(uuid, address, topic, EARLIEST)
        if isinstance(given, Position) and given.instance in ("", found.instance):
            return given.index
        return 0

    def _gone_below(
        self, begins: Mapping[Place, int], found: Mapping[Place, Log | None]
    ) -> list[Loss]:
        """What the query had read of logs that no offset knows, and is not there any more."""
        losses = []
        for (uuid, topic), begin in begins.items():
            told = found[uuid, topic]
            assert told is not None
            end = told.missing_below(self._options.channel, begin)
            if end > begin:
                where = (uuid, self._cluster.nodes[uuid].address, topic, told.instance)
                what = (
                    f"was read before, as channel {self._options.channel} says, and the query "
                    "knows nothing of it: what it knew was put back from before then"
                )
                losses.append(Loss(*where, begin, end, None, what))
        return losses

    def _set_back_to(
        self,
        begins: Mapping[Place, int],
        uuid: str,
        topic: str,
        found: Log | None,
        position: Position | None,
    ) -> Position | None:
        """A log that was read before is read again from where it begins."""
        begin = begins.get((uuid, topic))
        if begin is None or position is None or found is None:
            return position
        index = max(begin, found.first)
        if position.instance != found.instance or index >= position.index:
            return position
        self.warn_below(uuid, topic, index, position.index)
        return Position(position.instance, index)

    def is_due(self, uuid: str, topic: str) -> bool:
        """Whether to look for a topic that is not there."""
        return time.monotonic() >= self._awaited.get((uuid, topic), 0.0)

    @property
    def awaits(self) -> bool:
        return bool(self._awaited)

    def _await(self, uuid: str, topic: str) -> None:
        if (uuid, topic) not in self._awaited:
            node = self._cluster.nodes[uuid]
            log.warning("topic=%s: not there on %s; waiting for it", topic, node)
        self._awaited[uuid, topic] = time.monotonic() + AWAIT_S

    def _pull(self, uuid: str, topic: str, start: int | str, found: Log | None) -> Position | None:
        """Make or find the channel; None if there is no topic and none is made."""
        node, channel = self._cluster.nodes[uuid], self._options.channel
        parameters: dict[str, object] = {"topic": topic, "channel": channel, "start": start}
        if self.identity:
            parameters["identity"] = self.identity
        takes_over = self._takes_over(uuid, topic, found)
        if takes_over:
            parameters["take_over"] = self._options.take_over
        try:
            told = node.post("/channel/pull", **parameters)
        except NodeError as error:
            gone = error.code == "INVALID_START" and self._cluster.log_of(uuid, topic) is None
            if error.code == "TOPIC_NOT_FOUND" or gone:
                self._await(uuid, topic)
                return None
            if error.code == "CHANNEL_IN_USE":
                raise NodeError(
                    f"channel {channel} of topic {topic} on {node} is a plain one and "
                    "had or has consumers: a stream needs a channel of its own",
                    *(error.status, error.code),
                ) from None
            if takes_over and error.code == "FORBIDDEN":
                raise NodeError(
                    f"{error}: taking a channel over needs a token of role admin",
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
        self._awaited.pop((uuid, topic), None)
        return Position(told["instance"], int(told["low"]))

    def _is_taken(self, uuid: str, topic: str, found: Log) -> bool:
        """Whether somebody else has the channel, and it is to be taken over."""
        sent = (uuid, topic) in self._take_over_sent
        return bool(self._options.take_over) and self._is_anothers(found) and not sent

    def _takes_over(self, uuid: str, topic: str, found: Log | None) -> bool:
        """Whether to take a channel over: once, and only from somebody."""
        if found is None or not self._is_taken(uuid, topic, found):
            return False
        self._take_over_sent.add((uuid, topic))
        return True


def _was_deleted(topic: str, positions: Positions) -> bool:
    """Somebody deleted the topic, on any node: it is not made on others either."""
    return any(topic in topics and topics[topic].is_deleted for topics in positions.values())
