"""Registers a source's pattern with every node (R47): new matching topics get its channel at once.

    poll       register or renew the pattern on all nodes, then list the topics: a topic created
               after that has the channel from its first message, an older one is in the list
    removed    messages that topics had removed before the pipeline found them are counted and
               reported

Rule 1: a node that does not respond, or does not support patterns, stops nothing: it is reported
        once, and asked again at the next poll.
Rule 2: another reader stops the run; the error names it.
Rule 3: a topic found while the query runs gets its channel immediately, not when the query has
        restarted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from penstock.errors import NodeError
from penstock.spark.node_client import Node, node_request

log = logging.getLogger("penstock.pipeline")

NODES_AT_ONCE_MAX = 16
TOPICS_AT_ONCE_MAX = 1024
ANOTHER = (
    "a channel has one reader: stop the other one, use another name or channel for this pipeline,"
    " or take over from it"
)
# How many topics with removed messages are logged by name.
REPORTED_COUNT_MAX = 20


@dataclass(frozen=True, slots=True)
class RemovedMessages:
    """Messages of a topic that were removed before the pipeline had a channel there."""

    node: str
    topic: str
    below: int  # all have a smaller index
    count_min: int  # as far as the node knows; there may be more


@dataclass(frozen=True, slots=True)
class PatternRequest:
    """The pattern that each node registers."""

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
    """How many messages a topic got since its node started; 0 if unknown."""
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
        self._new = new  # the pipeline never ran: messages removed before are not a loss
        self._polled = False
        self._checked: set[str] = set()  # UUIDs of nodes
        self._failing: dict[str, str] = {}  # the error last logged, by address
        self._reported_count = 0
        self.removed: list[RemovedMessages] = []

    def register(self, nodes: Iterable[Node]) -> dict[Node, dict[str, Any]]:
        """Register or renew it; return the answers of the nodes that responded."""
        everywhere = list(nodes)
        if len(everywhere) < 2:
            answers = [self._register(node) for node in everywhere]
        else:
            # In parallel: a node that does not respond must not delay the others.
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
                    "channel=%s: its pattern could not be registered: %s; topics created there now"
                    " may lose messages to faster consumers before they are found",
                    *(self._request.channel, error),
                )
            return None
        if self._failing.pop(node.address, None) is not None:
            log.info("channel=%s: its pattern is registered with %s", self._request.channel, node)
        return answer

    def _ask(self, node: Node) -> dict[str, Any]:
        body, brief = self._request.body(), node.brief()
        request = node_request("POST", "/channel/pattern", None, body)
        try:
            return dict(brief.json(request, 0.0))
        except NodeError as error:
            if error.code != "CHANNEL_HAS_READER" or not self._request.take_over:
                raise
        taking = {**body, "take_over": self._request.take_over}
        return dict(brief.json(node_request("POST", "/channel/pattern", None, taking), 0.0))

    # Topics older than the pattern

    def check_existing(self, answers: dict[Node, dict[str, Any]], topics: Iterable[str]) -> None:
        """Find topics older than the pattern, and the messages that they have removed."""
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
            return  # the source creates its channels as its options say
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
