"""The effective policy: defaults, then the rules of the file, then what was set.

    topic     rules without ``channel``           set for this topic
    channel   the topic's, for keys of both       rules with and without ``channel``
              set for this channel

Rule 1: a channel's own source of a key of both wins over any source of its topic.
Rule 2: an ephemeral topic has EPHEMERAL_KEYS only, and its channels have none.  Nothing is kept of
        an ephemeral channel: where the action is ``bury`` or ``topic``, its limit does not apply.
        A message is dropped only if the policy says ``drop``.
Rule 3: where ``topic`` cannot work, it is ``bury``, so that nothing is lost: on a topic for dead
        letters, unless it was set for that very topic or channel; and if the name to move to is
        too long.

What the file says and Rules 2 and 3 do not allow is shown with a note; over HTTP it is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.engine.policy.rules import CHANNEL_KEYS, TOPIC_KEYS, Given, Rules
from penstock.engine.policy.values import restored
from penstock.errors import PolicyError
from penstock.settings.policy import BOTH, BURY, BY_KEY, DEFAULT, DROP, MOVE, Policy
from penstock.wire.names import EPHEMERAL, is_valid_name

SET = "set"
DEFAULT_ORIGIN = "default"
EPHEMERAL_KEYS = frozenset({"max_bytes", "max_messages"})
# What to do with a message beyond a limit, and the limit.
ACTIONS = {"on_expired": "msg_ttl", "on_max_attempts": "max_attempts"}
DEAD_SUFFIX = ".dead"


class Value(NamedTuple):
    """The value of a key, where it comes from, and why it is not what was said there."""

    value: Any
    origin: str
    note: str = ""


Values = dict[str, Value]
Own = Mapping[str, Any]
NOTHING: Own = MappingProxyType({})


class Subject(NamedTuple):
    """A topic or channel, as the merge sees it; ``own`` is what was set for it."""

    topic: str
    topic_own: Own
    topic_ephemeral: bool
    dead: bool  # it is a topic for dead letters
    channel: str = ""
    channel_own: Own = NOTHING
    channel_ephemeral: bool = False
    pulled: bool = False


def topic_values(rules: Rules, subject: Subject) -> Values:
    """The keys of a topic that are not the default."""
    given: dict[str, Given] = {}
    for rule in rules.of(subject.topic):
        if rule.channel is None:
            given.update(rule.values)
    values = {key: Value(*each) for key, each in given.items() if key in TOPIC_KEYS}
    _take_own(values, subject.topic_own, TOPIC_KEYS)
    if subject.topic_ephemeral:
        return {key: value for key, value in values.items() if key in EPHEMERAL_KEYS}
    return values


def channel_values(rules: Rules, subject: Subject) -> Values:
    """The keys of a channel that are not the default."""
    if subject.topic_ephemeral or subject.pulled:
        return {}
    given: dict[str, Given] = {}
    matching = rules.of(subject.topic)
    places = rules.places_of(subject.channel) if matching else ()
    for rule in matching:
        if rule.channel is None:
            given.update(rule.alone)
        elif rule.place in places:
            given.update(rule.values)
    found = topic_values(rules, subject)
    values = {key: value for key, value in found.items() if BY_KEY[key].group == BOTH}
    values |= {key: Value(*each) for key, each in given.items()}
    _take_own(values, subject.channel_own, CHANNEL_KEYS)
    _restrict(values, subject)
    return values


def _take_own(values: Values, own: Own, keys: frozenset[str]) -> None:
    for key, stored in own.items():
        if key in keys:
            try:
                values[key] = Value(restored(key, stored), SET)
            except PolicyError:
                continue  # of another version; a start has logged it


def _restrict(values: Values, subject: Subject) -> None:
    """Apply Rules 2 and 3."""
    named = values.get("dead_topic")
    if named is not None and named.value == subject.topic:
        note = f"not {named.value}: it is the topic itself"
        values["dead_topic"] = Value("", named.origin, note)
    for key, limit in ACTIONS.items():
        found = values.get(key, Value(getattr(DEFAULT, key), DEFAULT_ORIGIN))
        if subject.channel_ephemeral:
            _lift(values, limit, f"{key} is {found.value}" if found.value != DROP else "")
        elif found.value == MOVE and (why := _immovable(values, subject, found.origin)):
            values[key] = Value(BURY, found.origin, f"not {MOVE}: {why}")


def _lift(values: Values, limit: str, why: str) -> None:
    """Do not apply a limit to an ephemeral channel, if there is a reason."""
    setting, found = BY_KEY[limit], values.get(limit)
    if why and found is not None and found.value:
        note = f"not {setting.kind.show(found.value)}: {why}, and nothing is kept of an ephemeral"
        values[limit] = Value(0, found.origin, f"{note} channel")


def _immovable(values: Values, subject: Subject, origin: str) -> str:
    """Why failed messages cannot be moved; "" if they can."""
    if subject.dead and origin != SET:
        return "this is a topic of dead letters"
    named = values.get("dead_topic")
    if dead_topic(subject.topic, subject.channel, named.value if named is not None else "") is None:
        return "the name of the topic to move to would be too long; set dead_topic"
    return ""


def dead_topic(topic: str, channel: str, named: str) -> str | None:
    """The topic that a channel's failed messages move to; None if its name is not valid.

    ``named`` is the effective ``dead_topic``.
    """
    name = named or f"{topic}.{channel.removesuffix(EPHEMERAL)}{DEAD_SUFFIX}"
    return name if is_valid_name(name) else None


def policy_of(values: Values) -> Policy:
    """The policy of ``values``; other keys have their defaults."""
    if not values:
        return DEFAULT
    fields = {BY_KEY[key].field: value.value for key, value in values.items()}
    return dataclasses.replace(DEFAULT, **fields)
