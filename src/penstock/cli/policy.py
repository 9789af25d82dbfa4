"""`penstock policy`: show and change the policies of topics and channels, on all nodes.

penstock policy show --lookupd-http-address=lookup:4161
penstock policy show --lookupd-http-address=lookup:4161 --topic=orders --channel=email
penstock policy set --nsqd-http-address=nsqd:4151 --topic=orders retain=7d max_bytes=10GB
penstock policy unset --nsqd-http-address=nsqd:4151 --topic=orders retain
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
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
from penstock.cli.tool import Signals
from penstock.errors import OptionError
from penstock.settings.table import boolean, string
from penstock.wire.peer_answers import channels_in, topics_in

PROGRAM = "penstock policy"
USAGE = "show|set|unset [key=value ...]"
STATUSES = (
    (0, "done on all nodes"),
    (1, "a node failed, or none was found, or flags do not fit together"),
    (2, "wrong usage of the command line"),
)
WORDS = """\
Actions:
  show
        effective values, where each comes from, and where nodes differ;
        without -topic, all topics and channels with a policy
  set key=value ...
        set keys of a topic or channel
  unset key ...
        unset keys, so that the policy file or the default applies again
"""

# What one node said of the keys of a topic or channel.
Shown = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyOptions(NodeOptions):
    topic: str = string("Policy", "", "topic", own=True)
    channel: str = string(
        "Policy", "", "channel of the topic; without it, the topic itself", own=True
    )
    json: bool = boolean("Output", False, "print JSON, with a part for each node", own=True)


def flag_table(action: str = USAGE) -> FlagTable[PolicyOptions]:
    return FlagTable(
        f"{PROGRAM} {action}",
        PolicyOptions,
        summary="Shows and changes the policies of topics and channels, on all nodes.",
        environment_prefix="PENSTOCK_POLICY_",
        statuses=STATUSES,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one action on all nodes; return the exit status."""
    return start_action(argv, PROGRAM, USAGE, WORDS, flag_table, run, checked)


def checked(action: str, words: Sequence[str], options: PolicyOptions) -> PolicyOptions:
    check_nodes(options)
    if options.channel and not options.topic:
        raise OptionError("--channel needs --topic")
    if action == "show":
        if words:
            raise OptionError(f'unexpected argument "{words[0]}"')
        return options
    if not options.topic:
        raise OptionError("--topic is required")
    changes(action, words)
    return options


def changes(action: str, words: Sequence[str]) -> dict[str, str | None]:
    """The body of PUT /policy.  Values are checked by the nodes, which may know further keys."""
    found: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if action == "set" and not equals:
            raise OptionError(f'"{word}" must be key=value')
        if action == "unset" and equals:
            raise OptionError(f'"{word}" must be a key without a value')
        if key in found:
            raise OptionError(f"{key} is given twice")
        found[key] = value if equals else None
    if not found:
        raise OptionError(f"{action} needs at least one key")
    return found


async def run(action: str, words: Sequence[str], options: PolicyOptions, signals: Signals) -> int:
    nodes = NodeSet(options)
    addresses = await nodes.addresses(options.topic)
    query = {"topic": options.topic} | ({"channel": options.channel} if options.channel else {})
    if not options.topic:
        answers = await nodes.ask_all(addresses, "GET", "/stats", _STATS)
        print_all(answers, options)
    elif action == "show":
        answers = await nodes.ask_all(addresses, "GET", "/policy", query)
        print_one(answers, options)
    else:
        body = changes(action, words)
        answers = await nodes.ask_all(addresses, "PUT", "/policy", query, body)
        print_one(answers, options, set(body))
    return report_failures(nodes, answers)


_STATS = {"format": "json", "include_clients": "false", "include_mem": "false"}


def print_one(
    answers: Sequence[NodeAnswer], options: PolicyOptions, only: set[str] | None = None
) -> None:
    """Print the keys of one topic or channel: one line, or several where nodes differ."""
    found = {answer.node: _policy(answer.body) for answer in answers if answer.ok}
    if options.json:
        print(json.dumps({"nodes": found}, indent=2))
        return
    if not found:
        return
    place = f"topic={options.topic}"
    print(f"{place} channel={options.channel}" if options.channel else place)
    rows: list[tuple[str, str, str]] = []
    for key in dict.fromkeys(key for shown in found.values() for key in shown):
        if only is None or key in only:
            rows += _rows(key, found)
    widths = [max((len(row[n]) for row in rows), default=0) for n in (0, 1)]
    for key, value, origin in rows:
        print(f"    {key:<{widths[0]}}  {value:<{widths[1]}}  {origin}".rstrip())


def _rows(key: str, found: Mapping[str, Shown]) -> list[tuple[str, str, str]]:
    """(key, value, where it comes from, and on which nodes if they differ)."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node, shown in found.items():
        entry = shown.get(key, {"value": "", "origin": "not known there"})
        value, origin = entry.get("value"), str(entry.get("origin", ""))
        if note := entry.get("note"):
            origin += f"; {note}"
        groups.setdefault((str(value) if value != "" else '""', origin), []).append(node)
    rows = []
    for at, ((value, origin), nodes) in enumerate(groups.items()):
        where = f"  on {', '.join(nodes)}" if len(groups) > 1 else ""
        rows.append((key if at == 0 else "", value, origin + where))
    return rows


def _policy(body: Any) -> Shown:
    """The keys of an answer of /policy; nothing if it is not one."""
    policy = body.get("policy") if isinstance(body, dict) else None
    if not isinstance(policy, dict):
        return {}
    return {key: entry for key, entry in policy.items() if isinstance(entry, dict)}


def print_all(answers: Sequence[NodeAnswer], options: PolicyOptions) -> None:
    """Print every topic and channel that has a policy somewhere."""
    found = {answer.node: _policies(answer.body) for answer in answers if answer.ok}
    if options.json:
        print(json.dumps({"nodes": found}, indent=2))
        return
    places = sorted({place for policies in found.values() for place in policies})
    if found and not places:
        print("no topic or channel has a policy")
    for place in places:
        groups: dict[str, list[str]] = {}
        for node, policies in found.items():
            policy = policies.get(place)
            text = "-" if policy is None else " ".join(f"{k}={v}" for k, v in policy.items())
            groups.setdefault(text, []).append(node)
        print(place)
        for text, nodes in groups.items():
            print(f"    {text}" + (f"  on {', '.join(nodes)}" if len(groups) > 1 else ""))


def _policies(stats: Any) -> dict[str, dict[str, Any]]:
    """The policies in an answer of /stats, by topic and channel."""
    found: dict[str, dict[str, Any]] = {}
    try:
        for name, topic in topics_in(stats):
            if isinstance(policy := topic.get("policy"), dict):
                found[f"topic={name}"] = policy
        for name, channel, each in channels_in(stats):
            if isinstance(policy := each.get("policy"), dict):
                found[f"topic={name} channel={channel}"] = policy
    except ValueError:
        return found
    return found
