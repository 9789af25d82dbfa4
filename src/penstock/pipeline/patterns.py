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
from penstock.spark.node_client import Node, node_request

log = logging.getLogger("penstock.pipeline")

NODES_AT_ONCE_MAX = 16
TOPICS_AT_ONCE_MAX = 1024
ANOTHER = (
    "a channel has one reader: stop the other one, or give this pipeline another name or channel,"
    " or take over from it"
)
# Of what was gone before, so many are told by name.
TOLD_COUNT_MAX = 20


@dataclass(frozen=True, slots=True)
class Gone:
    """Messages of a topic that were removed before the pipeline had a channel there."""

    node: str
    topic: str
    below: int  # indexes
    count_min: int  # as far as the node can tell; it may be more


@dataclass(frozen=True, slots=True)
class Wish:
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


class LeftPattern:
    """The pattern of one source, on all of its nodes."""

    def __init__(self, wish: Wish, *, new: bool) -> None:
        self._wish = wish
        self._new = new  # a pipeline that never ran: what was gone before it is no loss
        self._looked = False
        self._judged: set[str] = set()  # UUIDs of nodes
        self._failing: dict[str, str] = {}  # by address, what was told
        self._told_count = 0
        self.gone: list[Gone] = []

    def leave(self, nodes: Iterable[Node]) -> dict[Node, dict[str, Any]]:
        """Leave or renew it; what each node answered, of those that did."""
        everywhere = list(nodes)
        if len(everywhere) < 2:
            answers = [self._leave(node) for node in everywhere]
        else:
            # Side by side: one that does not answer must not hold up the others.
            with ThreadPoolExecutor(min(NODES_AT_ONCE_MAX, len(everywhere))) as pool:
                answers = list(pool.map(self._leave, everywhere))
        return {
            node: answer
            for node, answer in zip(everywhere, answers, strict=True)
            if answer is not None
        }

    def _leave(self, node: Node) -> dict[str, Any] | None:
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
                    *(self._wish.channel, error),
                )
            return None
        if self._failing.pop(node.address, None) is not None:
            log.info("channel=%s: its pattern is left with %s", self._wish.channel, node)
        return answer

    def _ask(self, node: Node) -> dict[str, Any]:
        body, brief = self._wish.body(), node.brief()
        request = node_request("POST", "/channel/pattern", None, body)
        try:
            return dict(brief.json(request, 0.0))
        except NodeError as error:
            if error.code != "CHANNEL_HAS_READER" or not self._wish.take_over:
                raise
        taking = {**body, "take_over": self._wish.take_over}
        return dict(brief.json(node_request("POST", "/channel/pattern", None, taking), 0.0))

    # What was there before

    def judge(self, answers: dict[Node, dict[str, Any]], topics: Iterable[str]) -> None:
        """Find the topics that were there before the pattern, and what they had let go of."""
        wanted, first = set(topics), not self._looked
        for node, answer in answers.items():
            uuid = str(answer["node"])
            if answer.get("made", True) or uuid not in self._judged:
                try:
                    self._judge(node, uuid, wanted - set(answer["topics"]), first=first)
                except NodeError as error:
                    log.warning("%s", error)
                    continue
            self._judged.add(uuid)
        self._looked = self._looked or bool(answers)

    def _judge(self, node: Node, uuid: str, lacking: set[str], *, first: bool) -> None:
        if not lacking or (self._new and first):
            return  # the source makes its channels where its options say
        everything = sorted(lacking)
        for at in range(0, len(everything), TOPICS_AT_ONCE_MAX):
            names = everything[at : at + TOPICS_AT_ONCE_MAX]
            told = node.post("/log/ends", {"topics": {name: {} for name in names}})["topics"]
            for name in names:
                if told[name] is not None:
                    self._judge_topic(node, uuid, name, first=first)

    def _judge_topic(self, node: Node, uuid: str, name: str, *, first: bool) -> None:
        wish = self._wish
        found = node.get("/log", topic=name)
        if wish.channel in found["channels"]:
            return
        if not first:
            place = {"topic": name, "channel": wish.channel, "identity": wish.identity}
            node.post("/channel/pull", **place, start="earliest")
            found = node.get("/log", topic=name)
        below = int(found["whole_from"])
        if below:
            count = max(0, _published(node, name) - int(found["message_count"]))
            self._tell(Gone(uuid, name, below, count), node)

    def _tell(self, gone: Gone, node: Node) -> None:
        self.gone.append(gone)
        self._told_count += 1
        if self._told_count > TOLD_COUNT_MAX:
            if self._told_count == TOLD_COUNT_MAX + 1:
                log.warning("channel=%s: and more topics", self._wish.channel)
            return
        count = f"at least {gone.count_min:,}" if gone.count_min else "an unknown number of"
        log.warning(
            "topic=%s on %s: %s messages, all with an index below %d, were finished by its"
            " consumers and removed before the pipeline found the topic; they are not read",
            *(gone.topic, node, count, gone.below),
        )
