"""`penstock drain NODE`: have a node deliver what it has and exit, watch its progress, or cancel.

penstock drain nsqd1:4151 --wait
penstock drain nsqd1:4151 --to=nsqd2:4151 --wait
penstock drain nsqd1:4151 --status
penstock drain nsqd1:4151 --cancel
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.cli.flags import HELP, FlagTable, take_words
from penstock.cli.node_commands import (
    NodeAnswer,
    NodeOptions,
    NodeSet,
    check_nodes,
    report_failures,
)
from penstock.cli.tool import Signals, start_tool, unless_stopped
from penstock.errors import OptionError
from penstock.settings.table import boolean, string
from penstock.storage.text import time_of

PROGRAM = "penstock drain"
STATUSES = (
    (0, "done; with -wait, the nodes were drained and have exited"),
    (1, "a node failed or disappeared, a drain was cancelled, or flags do not fit together"),
    (2, "wrong usage of the command line"),
)
POLL_S = 0.5
# Between two lines about a node whose state does not change.
SHOWN_S = 10.0
# A node that does not answer may be restarting; it continues to drain.
LOST_S = 30.0
BLOCKED_COUNT_MAX = 10


@dataclasses.dataclass(frozen=True, slots=True)
class DrainOptions(NodeOptions):
    to: str = string(
        "Drain", "", "nsqd (HTTP, host:port) to hand deferred messages over to", own=True
    )
    wait: bool = boolean(
        "Drain", False, "wait until the nodes are drained and have exited", own=True
    )
    status: bool = boolean("Drain", False, "only print the progress", own=True)
    cancel: bool = boolean("Drain", False, "cancel: accept publishes again", own=True)
    json: bool = boolean("Output", False, "print JSON, with a part for each node", own=True)


def flag_table() -> FlagTable[DrainOptions]:
    return FlagTable(
        PROGRAM,
        DrainOptions,
        words="NODE...",
        summary="Drains nodes (HTTP, host:port): they refuse publishes, deliver the rest and exit.",
        environment_prefix="PENSTOCK_DRAIN_",
        statuses=STATUSES,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not HELP.isdisjoint(arguments):
        print(flag_table().help(), end="")
        return 0
    table = flag_table()
    try:
        words, flags = take_words(table, arguments)
    except OptionError as error:
        print(f'{error}\nSee "{PROGRAM} --help" for all flags.', file=sys.stderr)
        return 2
    return start_tool(table, flags, run, partial(checked, words))


def checked(words: Sequence[str], options: DrainOptions) -> DrainOptions:
    if options.lookupd_http_address:
        raise OptionError("name the nodes to drain; --lookupd-http-address is not for that")
    named = (*words, *options.nsqd_http_address)
    if not named:
        raise OptionError(f"{PROGRAM} needs a node: host:port of its HTTP API")
    options = dataclasses.replace(options, nsqd_http_address=named)
    check_nodes(options)
    if options.status + options.cancel > 1 or (options.cancel and options.wait):
        raise OptionError("use one of --status, --cancel and --wait")
    if options.to and (options.status or options.cancel):
        raise OptionError("--to begins a drain: not with --status or --cancel")
    return options


async def run(options: DrainOptions, signals: Signals) -> int:
    nodes = NodeSet(options)
    addresses = await nodes.addresses()
    method = "GET" if options.status else "DELETE" if options.cancel else "POST"
    query = {"to": options.to} if options.to else {}
    answers = await nodes.ask_all(addresses, method, "/drain", query)
    if not options.wait:
        show(answers, options.json)
        return report_failures(nodes, answers)
    status = report_failures(nodes, answers)
    watches = [Watch(nodes, answer.node, options) for answer in answers if answer.ok]

    async def wait_for_all() -> None:
        await asyncio.gather(*(watch.run() for watch in watches))

    if not await unless_stopped(wait_for_all(), signals.stop):
        print("stopped waiting; the drain continues", file=sys.stderr)
        return 1
    return max([status, *(int(not watch.drained) for watch in watches)])


def show(answers: Sequence[NodeAnswer], as_json: bool) -> None:
    """Print the state of each node that answered."""
    found = {answer.node: answer.body for answer in answers if answer.ok}
    if as_json:
        print(json.dumps(found))
        return
    for node, body in found.items():
        print("\n".join(state_lines(node, body)))


class Watch:
    """Waits for one node."""

    def __init__(self, nodes: NodeSet, node: str, options: DrainOptions) -> None:
        self.drained = False
        self._nodes = nodes
        self._node = node
        self._as_json = options.json
        self._begun = not options.status
        self._started: Any = None  # the node's start time
        self._shown = ""
        self._shown_s = 0.0

    async def run(self) -> None:
        """Return when the node has exited, or will not exit by itself."""
        loop = asyncio.get_running_loop()
        answered_s = loop.time()
        while True:
            answer = await self._nodes.ask(self._node, "GET", "/drain", {})
            now_s = loop.time()
            if answer.ok:
                answered_s = now_s
                ending = self.drained
                if ending and await self._start_time() != self._started:
                    print(f"{self._node}: ended, and was started again", flush=True)
                    return
                if not self._show(answer.body, now_s):
                    return
                if self.drained and not ending:
                    self._started = await self._start_time()
            elif self.drained and answer.status == 0:
                print(f"{self._node}: ended", flush=True)
                return
            elif answer.status or now_s - answered_s > LOST_S:
                self._fail(answer)
                return
            await asyncio.sleep(POLL_S)

    async def _start_time(self) -> Any:
        answer = await self._nodes.ask(self._node, "GET", "/info", {})
        return answer.body.get("start_time") if isinstance(answer.body, dict) else self._started

    def _show(self, body: Any, now_s: float) -> bool:
        """Print the state if it has changed or is old; return whether to go on waiting."""
        state = body.get("state") if isinstance(body, dict) else None
        self.drained = state == "drained"
        self._begun = self._begun or state in ("draining", "drained")
        lines = state_lines(self._node, body)
        text = json.dumps({self._node: body}) if self._as_json else "\n".join(lines)
        due = now_s - self._shown_s >= SHOWN_S
        if due if state == "draining" else text != self._shown:
            print(text, flush=True)
            self._shown, self._shown_s = text, now_s
        if state in ("draining", "drained"):
            return True
        why = "the drain was cancelled" if self._begun else "it is not being drained"
        print(f"{self._node}: {why}", file=sys.stderr)
        return False

    def _fail(self, answer: NodeAnswer) -> None:
        self.drained = False
        print(f"{self._node}: {answer.error}; it had not been drained", file=sys.stderr)


def state_lines(node: str, body: Any) -> list[str]:
    """One line of GET /drain, and below it what is blocked."""
    return [f"{node}: {state_text(body)}", *blocked_lines(body)]


def state_text(body: Any) -> str:
    """One line of GET /drain."""
    if not isinstance(body, dict):
        return "unexpected answer"
    text = str(body.get("state"))
    left = body.get("left")
    if isinstance(left, dict) and text == "draining":
        counts = [f"{left[key]} {key.replace('_', ' ')}" for key in COUNTED if left.get(key)]
        if left.get("deferred") and isinstance(until_ms := left.get("deferred_until_ms"), int):
            counts.append(f"the last is due by {time_of(until_ms * 1_000_000)[:16]}Z")
        text += f": {left.get('messages', 0)} messages left in {left.get('topics', 0)} topics"
        text += f" ({', '.join(counts)})" if counts else ""
    if body.get("to"):
        text += f"; {body.get('handed_over', 0)} handed over to {body['to']}"
    if body.get("handover_error"):
        text += f"; cannot hand over: {body['handover_error']}"
    return text


COUNTED = (
    *("queued", "in_flight", "requeued", "deferred", "held", "unread", "buried"),
    "stagings",
)


def blocked_lines(body: Any) -> list[str]:
    """What is blocked, a line each."""
    blocked = body.get("blocked") if isinstance(body, dict) else None
    if not isinstance(blocked, list):
        return []
    lines = []
    for entry in blocked[:BLOCKED_COUNT_MAX]:
        channel = f" channel={entry['channel']}" if entry.get("channel") else ""
        lines.append(f"    topic={entry.get('topic')}{channel}: {entry.get('why')}")
    more = body.get("blocked_count", 0) - len(lines)
    return [*lines, f"    and {more} more"] if more > 0 else lines
