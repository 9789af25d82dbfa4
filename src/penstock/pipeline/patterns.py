"""A source's pattern, left with every node (R47): new topics that match have its channel at once.

    look     leave or renew the pattern on all nodes, then list the topics: what is made after the
             pattern has the channel from its first message on, what was there before is listed
    gone     what topics had let go of before the pipeline found them is counted and told

Rule 1: a node that does not answer now, or does not know patterns, stops nobody: it is told of
        once, and asked again with the next look.
Rule 2: another reader stops the run, with who it is.
Rule 3: a topic that is found while the query runs gets its channel at this moment, not when the
        query has started again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from penstock.errors import NodeError
from penstock.spark.node_client import Node, asked

log = logging.getLogger("penstock.pipeline")

NODES_AT_ONCE_MAX = 16
TOPICS_AT_ONCE_MAX = 1024
ANOTHER = (
    "a channel has one reader: stop the other one, or give this pipeline another name or channel,"
    " or take over from it"
)
# Of what was gone before, so many are told by name.
REPORTED_COUNT_MAX = 20


@dataclass(frozen=True, slots=True)
class RemovedMessages:
    """Messages of a topic that were removed before the pipeline had a channel there."""

    node: str
    topic: str
    below: int  # indexes
    count_min: int  # as far as the node can tell; it may be more


@dataclass(frozen=True, slots=True)
class PatternRequest:
    """What is left with each node."""

    channel: str
    identity: str
    reader: str
    topics: tuple[str, ...]
    excepted: tuple[str, ...]
    take_over: str = ""

    def body(self) -> dict[str, Any]:
        return {
            "channel": self.channel,
            "identity": self.identity,
            "reader": self.reader,
            "topics": list(self.topics),
            "except": list(self.excepted),
        }


def _published(node: Node, topic: str) -> int:
    """How many messages a topic got since its node started, if that is told to us."""
    try:
        only = {"topic": topic, "include_clients": "false", "include_mem": "false"}
        stats = node.get("/stats", format="json", **only)
        return int(stats["topics"][0]["message_count"])
    except (NodeError, TypeError, IndexError):
        return 0


class RegisteredPattern:
    """The pattern of one source, on all of its nodes."""

    def __init__(self, request: PatternRequest, *, new: bool) -> None:
        self._request = request
        self._new = new  # a pipeline that never ran: what was gone before it is no loss
        self._polled = False
        self._checked: set[str] = set()  # UUIDs of nodes
        self._failing: dict[str, str] = {}  # by address, what was told
        self._reported_count = 0
        self.removed: list[RemovedMessages] = []

    def register(self, nodes: Iterable[Node]) -> dict[Node, dict[str, Any]]:
        """Leave or renew it; what each node answered, of those that did."""
        everywhere = list(nodes)
        if len(everywhere) < 2:
            answers = [self._register(node) for node in everywhere]
        else:
            # Side by side: one that does not answer must not hold up the others.
            with ThreadPoolExecutor(min(NODES_AT_ONCE_MAX, len(everywhere))) as pool:
                answers = list(pool.map(self._register, everywhere))
        return {
            node: answer
            for node, answer in zip(everywhere, answers, strict=True)
            if answer is not None
        }

    def _register(self, node: Node) -> dict[str, Any] | None:
        try:
            answer = self._ask(node)
        except NodeError as error:
            if error.code == "CHANNEL_HAS_READER":
                raise NodeError(f"{error}; {ANOTHER}", error.status, error.code) from None
            if error.status in range(400, 500) and error.status not in (404, 405):
                raise
            if self._failing.get(node.address) != error.code:
                self._failing[node.address] = error.code
                log.warning(
                    "channel=%s: its pattern could not be left: %s; topics that are made there now"
                    " may lose messages to faster consumers before they are found",
                    *(self._request.channel, error),
                )
            return None
        if self._failing.pop(node.address, None) is not None:
            log.info("channel=%s: its pattern is left with %s", self._request.channel, node)
        return answer

    def _ask(self, node: Node) -> dict[str, Any]:
        body, brief = self._request.body(), node.brief()
        request = asked("POST", "/channel/pattern", None, body)
        try:
            return dict(brief.json(request, 0.0))
        except NodeError as error:
            if error.code != "CHANNEL_HAS_READER" or not self._request.take_over:
                raise
        taking = {**body, "take_over": self._request.take_over}
        return dict(brief.json(asked("POST", "/channel/pattern", None, taking), 0.0))

    # What was there before

    def check_existing(self, answers: dict[Node, dict[str, Any]], topics: Iterable[str]) -> None:
        """Find the topics that were there before the pattern, and what they had let go of."""
        names, first = set(topics), not self._polled
        for node, answer in answers.items():
            uuid = str(answer["node"])
            if answer.get("made", True) or uuid not in self._checked:
                try:
                    self._check_node(node, uuid, names - set(answer["topics"]), first=first)
                except NodeError as error:
                    log.warning("%s", error)
                    continue
            self._checked.add(uuid)
        self._polled = self._polled or bool(answers)

    def _check_node(self, node: Node, uuid: str, lacking: set[str], *, first: bool) -> None:
        if not lacking or (self._new and first):
            return  # the source makes its channels where its options say
        everything = sorted(lacking)
        for at in range(0, len(everything), TOPICS_AT_ONCE_MAX):
            names = everything[at : at + TOPICS_AT_ONCE_MAX]
            ends = node.post("/log/ends", {"topics": {name: {} for name in names}})["topics"]
            for name in names:
                if ends[name] is not None:
                    self._check_topic(node, uuid, name, first=first)

    def _check_topic(self, node: Node, uuid: str, name: str, *, first: bool) -> None:
        request = self._request
        found = node.get("/log", topic=name)
        if request.channel in found["channels"]:
            return
        if not first:
            place = {"topic": name, "channel": request.channel, "identity": request.identity}
            node.post("/channel/pull", **place, start="earliest")
            found = node.get("/log", topic=name)
        below = int(found["whole_from"])
        if below:
            count = max(0, _published(node, name) - int(found["message_count"]))
            self._report(RemovedMessages(uuid, name, below, count), node)

    def _report(self, removed: RemovedMessages, node: Node) -> None:
        self.removed.append(removed)
        self._reported_count += 1
        if self._reported_count > REPORTED_COUNT_MAX:
            if self._reported_count == REPORTED_COUNT_MAX + 1:
                log.warning("channel=%s: and more topics", self._request.channel)
            return
        count = f"at least {removed.count_min:,}" if removed.count_min else "an unknown number of"
        log.warning(
            "topic=%s on %s: %s messages, all with an index below %d, were finished by its"
            " consumers and removed before the pipeline found the topic; they are not read",
            *(removed.topic, node, count, removed.below),
        )
