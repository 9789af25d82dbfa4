"""The merge of policies against a naive one: all sources in order, the last one wins."""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.policy.file import parse_rules
from penstock.engine.policy.merge import Subject, channel_values, policy_of, topic_values
from penstock.settings.policy import BOTH, BY_KEY, CHANNEL, DEFAULT, TOPIC

VALUES: dict[str, list[str]] = {
    "retain": ["1h", "7d"],
    "max_messages": ["5", "6"],
    "msg_ttl": ["1m", "2m"],
    "on_expired": ["bury", "drop", "topic"],
    "max_attempts": ["3", "4"],
    "on_max_attempts": ["bury", "drop", "topic"],
    "dead_topic": ["ab", "graves", ""],
    "channel_lapse": ["1h", "2h"],
    "requeue_backoff": ["1s..1m", ""],
    "overflow": ["refuse", "drop-oldest"],
}
PATTERNS = st.sampled_from(["*", "a*", "ab", "?b", "b", "*b*", "a?", "**", "ab*"])
LONG = "a" * 60  # its dead topic would have a name of more than 64 bytes
NAMES = st.sampled_from(["a", "b", "ab", "ba", "x.dead", LONG])


def keys_of(*groups: str) -> list[str]:
    return [key for key in VALUES if BY_KEY[key].group in groups]


def some(*groups: str) -> st.SearchStrategy[dict[str, str]]:
    each = {key: st.sampled_from(VALUES[key]) for key in keys_of(*groups)}
    return st.fixed_dictionaries({}, optional=each)


TOPIC_RULES = st.tuples(PATTERNS, st.none(), some(TOPIC, BOTH, CHANNEL))
CHANNEL_RULES = st.tuples(PATTERNS, PATTERNS, some(BOTH, CHANNEL))
Rule = tuple[str, str | None, dict[str, str]]
RULES = st.lists(st.one_of(TOPIC_RULES, CHANNEL_RULES), max_size=8)


def as_file(rules: list[Rule]) -> str:
    lines = []
    for topic, channel, values in rules:
        lines += ["[[policy]]", f'topic = "{topic}"']
        if channel is not None:
            lines.append(f'channel = "{channel}"')
        lines += [f'{key} = "{value}"' for key, value in values.items()]
    return "\n".join(lines)


def naive_topic(rules: list[Rule], subject: Subject) -> dict[str, tuple[str, str]]:
    """(value, source) by key."""
    found: dict[str, tuple[str, str]] = {}
    for topic, channel, values in rules:
        if channel is None and fnmatch.fnmatchcase(subject.topic, topic):
            found |= {k: (v, "file") for k, v in values.items() if k in keys_of(TOPIC, BOTH)}
    found |= {key: (value, "set") for key, value in subject.topic_own.items()}
    if subject.topic_ephemeral:
        found = {key: value for key, value in found.items() if key == "max_messages"}
    return found


def naive_channel(rules: list[Rule], subject: Subject) -> dict[str, str]:
    if subject.topic_ephemeral or subject.pulled:
        return {}
    found = {k: v for k, v in naive_topic(rules, subject).items() if k in keys_of(BOTH)}
    for topic, channel, values in rules:
        if not fnmatch.fnmatchcase(subject.topic, topic):
            continue
        if channel is None:
            found |= {k: (v, "file") for k, v in values.items() if k in keys_of(CHANNEL)}
        elif fnmatch.fnmatchcase(subject.channel, channel):
            found |= {k: (v, "file") for k, v in values.items()}
    found |= {key: (value, "set") for key, value in subject.channel_own.items()}
    values = {key: value for key, (value, _) in found.items()}
    if values.get("dead_topic") == subject.topic:
        values["dead_topic"] = ""
    for key, default, limit in (
        ("on_expired", "drop", "msg_ttl"),
        ("on_max_attempts", "bury", "max_attempts"),
    ):
        value, source = found.get(key, (default, "default"))
        if subject.channel_ephemeral:
            if value != "drop":
                values[limit] = "0"
        elif value == "topic" and subject.dead and source == "file":
            value = "bury"
        elif value == "topic" and not values.get("dead_topic"):
            name = f"{subject.topic}.{subject.channel}.dead"
            value = "topic" if len(name) <= 64 else "bury"
        values[key] = value
    return values


@settings(max_examples=400)
@given(
    RULES,
    NAMES,
    NAMES,
    some(TOPIC, BOTH),
    some(BOTH, CHANNEL),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
def test_the_effective_policy_is_the_naive_one(
    rules: list[Rule],
    topic: str,
    channel: str,
    topic_own: dict[str, str],
    channel_own: dict[str, str],
    flags: tuple[bool, bool, bool, bool],
) -> None:
    # The file refuses the others.
    kept = [rule for rule in rules if rule[2] and rule[2].get("dead_topic") != rule[0]]
    topic_ephemeral, dead, channel_ephemeral, pulled = flags
    subject = Subject(
        topic, topic_own, topic_ephemeral, dead, channel, channel_own, channel_ephemeral, pulled
    )
    read = parse_rules(as_file(kept), "p")
    wanted = {k: v for k, (v, _) in naive_topic(kept, subject).items()}
    assert policy_of(topic_values(read, subject)) == policy(wanted)
    assert policy_of(channel_values(read, subject)) == policy(naive_channel(kept, subject))


def policy(values: dict[str, str]) -> Any:
    fields = {BY_KEY[k].field: BY_KEY[k].kind.parse(v) for k, v in values.items()}
    return dataclasses.replace(DEFAULT, **fields)
