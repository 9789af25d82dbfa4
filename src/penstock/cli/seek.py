"""`penstock seek`: send a channel to another place of its topic's log, on all nodes.

penstock seek --lookupd-http-address=lookup:4161 --topic=orders --channel=email --to=-1h
penstock seek --nsqd-http-address=nsqd:4151 --topic=orders --channel=email --to=latest --yes

Rule 1: every node is asked first what a seek would do.  Without a good answer of all nodes nothing
        is changed on any.
Rule 2: nothing is changed without a yes, from the terminal or by --yes.
Rule 3: a node on which messages since the place are missing needs --partial.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.cli.flags import FlagTable
from penstock.cli.node_commands import (
    NodeAnswer,
    NodeOptions,
    NodeSet,
    check_nodes,
    report_failures,
)
from penstock.cli.tool import Signals, ToolError, confirmed, start_tool
from penstock.errors import OptionError
from penstock.settings.places import INDEX, NOUN, QUEUED, parse_place
from penstock.settings.table import boolean, string
from penstock.wire.names import is_valid_name

PROGRAM = "penstock seek"
STATUSES = (
    (0, "done on all nodes, or only shown"),
    (1, "a node failed, or none was found, or the answer was no, or flags do not fit together"),
    (2, "wrong usage of the command line"),
)
COLUMNS = ("node", "from", "to", "messages", "in flight", "deferred", "buried", "complete")
_KEYS = ("from", "to", "messages", "in_flight", "deferred", "buried", "whole")


@dataclasses.dataclass(frozen=True, slots=True)
class SeekOptions(NodeOptions):
    topic: str = string("Seek", "", "topic", own=True)
    channel: str = string("Seek", "", "channel", own=True)
    to: str = string("Seek", "", NOUN, own=True)
    partial: bool = boolean(
        "Seek", False, "seek even where messages since the place were removed", own=True
    )
    dry_run: bool = boolean("Seek", False, "only show what would be done", own=True)
    yes: bool = boolean("Seek", False, "do not ask", own=True)
    json: bool = boolean("Output", False, "print JSON, with a part for each node", own=True)


def flag_table() -> FlagTable[SeekOptions]:
    return FlagTable(
        PROGRAM,
        SeekOptions,
        summary="Delivers messages of a channel again, or skips them, on all nodes.",
        environment_prefix="PENSTOCK_SEEK_",
        statuses=STATUSES,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Show what the seek does, ask, and do it; return the exit status."""
    return start_tool(flag_table(), argv, run, checked)


def checked(options: SeekOptions) -> SeekOptions:
    check_nodes(options)
    for name in ("topic", "channel"):
        if not is_valid_name(getattr(options, name)):
            raise OptionError(f"--{name} is required, and must be a valid name")
    try:
        place = parse_place(options.to)
    except ValueError:
        raise OptionError(f"--to must be {NOUN}") from None
    if place.kind == QUEUED:
        raise OptionError(f"--to must be {NOUN}")
    nodes = options.nsqd_http_address
    if place.kind == INDEX and len(dict.fromkeys(nodes)) != 1:
        raise OptionError("an index belongs to one node: give it with --nsqd-http-address")
    return options


async def run(options: SeekOptions, signals: Signals) -> int:
    nodes = NodeSet(options)
    addresses = await nodes.addresses(options.topic)
    query = {"topic": options.topic, "channel": options.channel, "to": options.to}
    if options.partial:
        query["partial"] = "true"
    plans = await nodes.ask_all(addresses, "POST", "/channel/seek", {**query, "dry_run": "true"})
    if options.dry_run:
        show(plans, options)
        return report_failures(nodes, plans)
    if not options.json:
        show(plans, options)
    if report_failures(nodes, plans):
        others = "; to leave nodes out, name the others with --nsqd-http-address"
        print(f"nothing was changed{others if len(plans) > 1 else ''}", file=sys.stderr)
        return 1
    missing = [plan.node for plan in plans if not _field(plan, "whole")]
    if missing and not options.partial:
        raise ToolError(
            f"messages since {options.to} were removed on {', '.join(missing)}:"
            " nothing was changed. --partial takes what is left, earliest is the first"
            " place that is complete"
        )
    if not options.yes and not await confirmed(question_of(options, plans), signals.stop):
        print("nothing was changed", file=sys.stderr)
        return 1
    done = await nodes.ask_all(addresses, "POST", "/channel/seek", query)
    if options.json:
        show(done, options)
    else:
        print(f"done on {sum(answer.ok for answer in done)} of {len(done)} nodes")
    return report_failures(nodes, done)


def question_of(options: SeekOptions, plans: Sequence[NodeAnswer]) -> str:
    count = sum(int(_field(plan, "messages") or 0) for plan in plans)
    return (
        f"Seek channel {options.channel} of topic {options.topic} to {options.to}"
        f" on {len(plans)} {'node' if len(plans) == 1 else 'nodes'}?"
        f" {count} messages will be queued."
    )


def show(answers: Sequence[NodeAnswer], options: SeekOptions) -> None:
    """Print a row for each node that answered."""
    found = {answer.node: answer.body for answer in answers if answer.ok}
    if options.json:
        print(json.dumps({"nodes": found}, indent=2))
        return
    if not found:
        return
    rows = [COLUMNS, *(_row(answer) for answer in answers if answer.ok)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(COLUMNS))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def _row(answer: NodeAnswer) -> tuple[str, ...]:
    cells = [answer.node]
    for key in _KEYS:
        value = _field(answer, key)
        cells.append(("yes" if value else "no") if key == "whole" else str(value))
    return tuple(cells)


def _field(answer: NodeAnswer, key: str) -> Any:
    body = answer.body
    return body.get(key, "?") if isinstance(body, Mapping) else "?"
