"""The policy of a topic or channel on its nodes, and the changes that a form asks for.

    POLICY   keys [KEY], nodes: how many have told theirs
    KEY      key, kind, help, allowed, default, choices [word] or None,
             values [{"value", "origin", "note", "nodes": [name]}]: one if all nodes agree,
             own: what was set on all nodes, as text, "" if nothing was; mixed: only on some, or
             different

A form has for each key the fields ``set.<key>``, the text typed, and ``was.<key>``, the text that
it began with: only what was changed is sent.  An empty text unsets the key; ``unset.<key>=true``
does so where nodes differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.admin.sample import TEXT_SIZE_MAX, NodePart
from penstock.admin.upstream import Upstream, request_all
from penstock.settings.kinds import Choice
from penstock.settings.policy import BOTH, CHANNEL, KEYS, TOPIC
from penstock.settings.table import Setting

View = dict[str, Any]

SET = "set"
# What a node reports about a key.
Entry = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Policies:
    """The policy on the nodes, None if no node has policies; and the nodes that failed."""

    shown: View | None = None
    warnings: list[str] = field(default_factory=list)


async def fetch(
    upstream: Upstream, parts: Iterable[NodePart], topic: str, channel: str
) -> Policies:
    """Ask the nodes that have the topic or channel."""
    by_address = {part.address: part for part in parts}
    query = {"topic": topic} | ({"channel": channel} if channel else {})

    async def get(address: str) -> dict[str, Entry]:
        return _entries(await upstream.nsqd_get(address, "/policy", **query))

    answers, failures = await request_all(by_address, get)
    warnings = [
        f"{by_address[address].node}: {error.short}"
        for address, error in failures.items()
        if error.status != 404  # an earlier version, or the topic has just been deleted there
    ]
    found = {by_address[address].node: entries for address, entries in answers.items()}
    return Policies(_shown(found, channel) if found else None, warnings)


def _entries(answer: Any) -> dict[str, Entry]:
    """The known keys of an answer of /policy; it is not trusted."""
    policy = answer.get("policy") if isinstance(answer, dict) else None
    if not isinstance(policy, dict):
        return {}
    return {
        setting.option: {name: _text(entry.get(name)) for name in ("value", "origin", "note")}
        for setting in KEYS
        if isinstance(entry := policy.get(setting.option), dict)
    }


def _text(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text[:TEXT_SIZE_MAX].encode("utf-8", "replace").decode()


def settings_for(channel: str) -> list[Setting]:
    """The keys of a channel, or of a topic."""
    groups = (BOTH, CHANNEL) if channel else (TOPIC, BOTH)
    return [setting for setting in KEYS if setting.group in groups]


def _shown(found: Mapping[str, Mapping[str, Entry]], channel: str) -> View:
    keys = [_key(setting, found) for setting in settings_for(channel)]
    return {"keys": [key for key in keys if key["values"]], "nodes": len(found)}


def _key(setting: Setting, found: Mapping[str, Mapping[str, Entry]]) -> View:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for node, entries in sorted(found.items()):
        if (entry := entries.get(setting.option)) is not None:
            groups.setdefault((entry["value"], entry["origin"], entry["note"]), []).append(node)
    own = {value if origin == SET else None for value, origin, _ in groups}
    mixed = len(own) > 1
    kind = setting.kind
    return {
        "key": setting.option,
        "kind": kind.kind,
        "help": setting.help,
        "allowed": kind.allowed(),
        "default": setting.show_default(),
        "choices": list(kind.codes) if isinstance(kind, Choice) else None,
        "values": [
            {"value": value, "origin": origin, "note": note, "nodes": nodes}
            for (value, origin, note), nodes in groups.items()
        ],
        "own": "" if mixed else next(iter(own), None) or "",
        "mixed": mixed,
    }


def changes_of(fields: Mapping[str, str], channel: str) -> dict[str, str | None]:
    """The changes that a form asks for: a text, or None to unset the key."""
    changes: dict[str, str | None] = {}
    for setting in settings_for(channel):
        key = setting.option
        text, was = fields.get(f"set.{key}"), fields.get(f"was.{key}", "")
        if fields.get(f"unset.{key}", "").lower() == "true":
            changes[key] = None
        elif text is not None and text.strip() != was:
            changes[key] = text.strip() or None
    return changes
