"""`penstock dead`: the buried messages of a channel, on all nodes: list, kick, move, discard.

penstock dead list --lookupd-http-address=lookup:4161 --topic=orders --channel=email
penstock dead kick --nsqd-http-address=nsqd:4151 --topic=orders --channel=email --rate=100
penstock dead move --nsqd-http-address=nsqd:4151 --topic=orders --channel=email --to=orders.repaired
penstock dead discard --nsqd-http-address=nsqd:4151 --topic=orders --channel=email 015a3185c53e9000

Rule 1: a request is about BATCH_COUNT_MAX messages at most, so that it is answered in time; the
        next one follows.
Rule 2: nothing is discarded without a yes, from the terminal or by --yes.
Rule 3: a batch of a kick begins where the one before ended: messages that fail again meanwhile are
        among the oldest again.
Rule 4: a node without the channel is skipped, if another one has it.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from penstock.cli.actions import start_action
from penstock.cli.flags import FlagTable
from penstock.cli.node_commands import (
    NodeAnswer,
    NodeOptions,
    NodeSet,
    check_nodes,
    report_failures,
)
from penstock.cli.tool import Signals, confirmed
from penstock.errors import OptionError
from penstock.settings.table import boolean, integer, string
from penstock.storage.text import time_of
from penstock.wire.ids import split_id
from penstock.wire.names import is_ephemeral, is_valid_name

PROGRAM = "penstock dead"
LIST = "list"
DONE = {"kick": "kicked", "move": "moved", "discard": "discarded"}
USAGE = "list|kick|move|discard [id ...]"
REASONS = ("attempts", "bury", "expired")
STATUSES = (
    (0, "done on all nodes"),
    (
        1,
        "a node failed, or none was found, or an id is not buried, or the answer was no, or flags"
        " do not fit together",
    ),
    (2, "wrong usage of the command line"),
)
WORDS = """\
Actions:
  list
        show buried messages, oldest first
  kick [id ...]
        make them ready again, with new attempts
  move [id ...]
        move them to the topic --to, each exactly once
  discard [id ...]
        finish them, after asking
"""

BATCH_COUNT_MAX = 10_000
PAGE_COUNT_MAX = 1000
IDS_MAX = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class DeadOptions(NodeOptions):
    topic: str = string("Messages", "", "topic", own=True)
    channel: str = string("Messages", "", "channel of the topic", own=True)
    reason: str = string(
        "Messages", "", "only messages buried for this reason: " + ", ".join(REASONS), own=True
    )
    count: int = integer(
        "Messages",
        0,
        "how many messages at most, over all nodes; 0: all, or 100 with list",
        minimum=0,
        own=True,
    )
    to: str = string("Messages", "", "the topic that move moves to", own=True)
    rate: int = integer(
        "Messages",
        0,
        "messages a second on each node, in the background; 0: all at once",
        minimum=0,
        maximum=1_000_000,
        own=True,
    )
    stop: bool = boolean(
        "Messages", False, "stop what runs in the background, on all nodes", own=True
    )
    yes: bool = boolean("Messages", False, "discard without asking", own=True)
    body_size: int = integer(
        "Output", 60, "bytes of each body that list shows", minimum=0, maximum=65_536, own=True
    )
    json: bool = boolean("Output", False, "print JSON: list a line for each message", own=True)


def flag_table(action: str = USAGE) -> FlagTable[DeadOptions]:
    return FlagTable(
        f"{PROGRAM} {action}",
        DeadOptions,
        summary="Lists, kicks, moves and discards the buried messages of a channel, on all nodes.",
        environment_prefix="PENSTOCK_DEAD_",
        statuses=STATUSES,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one action on all nodes; return the exit status."""
    return start_action(argv, PROGRAM, USAGE, WORDS, flag_table, run, checked)


def checked(action: str, ids: Sequence[str], options: DeadOptions) -> DeadOptions:
    check_nodes(options)
    for name, value in (("topic", options.topic), ("channel", options.channel)):
        if not value:
            raise OptionError(f"--{name} is required")
        if not is_valid_name(value):
            raise OptionError(f"--{name}={value} is not a valid name")
    if options.reason and options.reason not in REASONS:
        raise OptionError(f"--reason must be one of {', '.join(REASONS)}")
    if action == LIST and ids:
        raise OptionError(f'unexpected argument "{ids[0]}"')
    for id in ids:
        if split_id(id.encode("utf-8", "replace")) is None:
            raise OptionError(f'"{id}" is not the id of a message: 16 hexadecimal digits')
    if ids and (options.count or options.reason or options.rate):
        raise OptionError("--count, --reason and --rate cannot be used with ids")
    if options.stop:
        if action == LIST or ids or options.count or options.reason or options.rate or options.to:
            raise OptionError("--stop is for kick, move and discard, without a choice of messages")
        return options
    if action == "move":
        if not is_valid_name(options.to) or is_ephemeral(options.to):
            raise OptionError("--to must be the name of a topic that is not ephemeral")
        if options.to == options.topic:
            raise OptionError("--to must be another topic")
    elif options.to:
        raise OptionError("--to is for move")
    return options


async def run(action: str, ids: Sequence[str], options: DeadOptions, signals: Signals) -> int:
    nodes = NodeSet(options)
    addresses = await nodes.addresses(options.topic)
    dead = Dead(nodes, options, signals)
    counted = await dead.count(addresses)
    found = [answer.node for answer in counted if answer.ok]
    failed = [answer for answer in counted if not answer.ok]
    if action == LIST:
        failed += await dead.show(found)
    elif options.stop:
        failed += await dead.end(action, found)
    elif found:
        if action == "discard" and not options.yes:
            for answer in counted:
                if answer.ok:
                    print(f"{answer.node}: {answer.body['count']} buried", file=sys.stderr)
            if not await confirmed(question_of(counted, ids, options), signals.stop):
                print("nothing was discarded", file=sys.stderr)
                return 1
        failed += await dead.act(action, found, ids)
    if signals.stop.is_set():
        print("interrupted", file=sys.stderr)
        return 1
    missing_count = len(set(ids)) - dead.done_count
    if missing_count > 0 and not failed:
        print(f"{missing_count} of {len(set(ids))} ids are not buried there", file=sys.stderr)
        return 1
    return report_failures(nodes, failed)


def question_of(counted: Sequence[NodeAnswer], ids: Sequence[str], options: DeadOptions) -> str:
    total = sum(int(answer.body["count"]) for answer in counted if answer.ok)
    what = len(ids) or min(options.count or total, total)
    return f"Discard {what} messages of topic={options.topic} channel={options.channel}?"


class Dead:
    """The requests of one command."""

    def __init__(self, nodes: NodeSet, options: DeadOptions, signals: Signals) -> None:
        self._nodes = nodes
        self._options = options
        self._stop = signals.stop
        self.done_count = 0
        self._place = {"topic": options.topic, "channel": options.channel}
        if options.reason:
            self._place["reason"] = options.reason

    async def count(self, addresses: Sequence[str]) -> list[NodeAnswer]:
        """The nodes that have the channel, and those that failed."""
        query = {**self._place, "count": "1", "size_max": "1"}
        answers = await self._nodes.ask_all(addresses, "GET", "/channel/dead", query)
        answers = [_read(answer, "count") for answer in answers]
        having = [answer for answer in answers if answer.status != 404]
        return having if any(answer.ok for answer in having) else answers

    # ---- list

    async def show(self, addresses: Sequence[str]) -> list[NodeAnswer]:
        """Print messages, node after node; returns what failed."""
        left, failed, total = self._options.count or 100, [], 0
        for node in addresses:
            after: Any = None
            while True:
                query = {**self._place, "count": str(max(1, min(left, PAGE_COUNT_MAX)))}
                query["size_max"] = str(max(1, self._options.body_size))
                if after is not None:
                    query["after"] = str(after)
                answer = _read(
                    await self._nodes.ask(node, "GET", "/channel/dead", query), "count", "messages"
                )
                if not answer.ok:
                    failed.append(answer)
                    break
                total += answer.body["count"] if after is None else 0
                for message in answer.body["messages"][:left]:
                    self._print(node, message)
                left -= len(answer.body["messages"][:left])
                after = answer.body.get("next")
                if after is None or left <= 0 or self._stop.is_set():
                    break
        shown = (self._options.count or 100) - left
        if not self._options.json and shown < total:
            print(f"{shown} of {total} shown; --count=n shows more", file=sys.stderr)
        return failed

    def _print(self, node: str, message: dict[str, Any]) -> None:
        if self._options.json:
            print(json.dumps({"node": node, **message}))
            return
        text = f" text={message['text']!r}" if message.get("text") else ""
        client = f" client={message['client']!r}" if message.get("client") else ""
        print(
            f"{node} {message['id']} reason={message['reason']} attempts={message['attempts']}"
            f" buried={time_of(message['buried'])} published={time_of(message['timestamp'])}"
            f"{client}{text} {_body(message, self._options.body_size)}"
        )

    # ---- kick, move, discard

    async def act(
        self, action: str, addresses: Sequence[str], ids: Sequence[str]
    ) -> list[NodeAnswer]:
        """Kick, move or discard; print what each node did; return what failed."""
        failed: list[NodeAnswer] = []
        left = self._options.count
        for node in addresses:
            done, remaining, answer = await self._act_on(node, action, ids, left)
            self.done_count += done
            if answer is not None:
                failed.append(answer)
            verb = DONE[action]
            if self._options.rate and answer is None:
                verb = {"kick": "kicking", "move": "moving", "discard": "discarding"}[action]
            if self._options.json:
                print(json.dumps({"node": node, verb: done, "left": remaining}))
            elif remaining is not None:
                print(f"{node}: {verb} {done}, {remaining} buried")
            elif done:
                print(f"{node}: {verb} {done}")
            if self._options.count:
                left -= done
                if left <= 0:
                    break
            if self._stop.is_set():
                break
        return failed

    async def end(self, action: str, addresses: Sequence[str]) -> list[NodeAnswer]:
        """Stop what runs at a rate; print what it has done; return what failed."""
        failed: list[NodeAnswer] = []
        for node in addresses:
            answer = await self._ask(node, action, {**self._place, "stop": "true"}, None)
            done, remaining = _int(answer, DONE[action]), _int(answer, "left")
            if not answer.ok:
                failed.append(answer)
            elif self._options.json:
                print(json.dumps({"node": node, DONE[action]: done, "left": remaining}))
            else:
                print(f"{node}: {DONE[action]} {done}, {remaining} buried")
        return failed

    async def _act_on(
        self, node: str, action: str, ids: Sequence[str], left: int
    ) -> tuple[int, int | None, NodeAnswer | None]:
        """(how many, how many are still buried, the answer if it failed) of one node.

        After a failure it may be unknown how many are buried.
        """
        query = dict(self._place)
        if action == "move":
            query["to"] = self._options.to
        if self._options.rate:
            query |= {"rate": str(self._options.rate)} | ({"count": str(left)} if left else {})
            answer = await self._ask(node, action, query, None)
            key = {"kick": "kicking", "move": "moving", "discard": "discarding"}[action]
            return _int(answer, key), _left(answer), None if answer.ok else answer
        done, remaining = 0, None
        place: int | None = 0  # where the next batch begins
        pieces = [list(ids[at : at + IDS_MAX]) for at in range(0, len(ids), IDS_MAX)]
        while not self._stop.is_set():
            want = min(left - done, BATCH_COUNT_MAX) if left else BATCH_COUNT_MAX
            body = {"ids": pieces.pop(0)} if ids else None
            batch = query if ids else {**query, "count": str(want), "after": str(place)}
            answer = await self._ask(node, action, batch, body)
            count = _int(answer, DONE[action])
            done, remaining = done + count, _left(answer)
            if not answer.ok:
                return done, remaining, answer
            # A move has no place: what was moved is not there any more.
            place = 0 if ids or action == "move" else answer.body.get("next")
            ended = not pieces if ids else count < want or place is None
            if ended or (left and done >= left):
                break
            print(f"{node}: {DONE[action]} {done}, {remaining} buried", file=sys.stderr)
        return done, remaining, None

    async def _ask(self, node: str, action: str, query: dict[str, str], body: object) -> NodeAnswer:
        if body is not None:
            query = {key: value for key, value in query.items() if key != "reason"}
        answer = await self._nodes.ask(node, "POST", f"/channel/{action}", query, body)
        return _read(answer, "left") if answer.ok else answer


def _read(answer: NodeAnswer, *keys: str) -> NodeAnswer:
    """``answer``, as a failure if it does not have the ``keys``."""
    if answer.ok and not (isinstance(answer.body, dict) and answer.body.keys() >= set(keys)):
        return answer._replace(error="this is not the answer of a Penstock nsqd")
    return answer


def _left(answer: NodeAnswer) -> int | None:
    """How many are still buried; a failure may not tell."""
    return _int(answer, "left") if isinstance(answer.body, dict) and "left" in answer.body else None


def _int(answer: NodeAnswer, key: str) -> int:
    value = answer.body.get(key) if isinstance(answer.body, dict) else 0
    return value if isinstance(value, int) else 0


def _body(message: dict[str, Any], size_max: int) -> str:
    """The beginning of a body."""
    if message.get("lost"):
        return "body is lost: the log is damaged"
    try:
        body = base64.b64decode(message["body"], validate=True)[:size_max]
    except (binascii.Error, TypeError):
        body = b""
    more = "..." if message["size"] > len(body) else ""
    return f"body={message['size']}:{repr(body)[1:]}{more}"
