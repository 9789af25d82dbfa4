"""The rules of a policy file, and which of them are for a topic or a channel.

Rule 1: rules are applied in the order of the file; a later one wins, key by key.
Rule 2: of rules with the same patterns only the last value of each key is kept.  Nothing can see
        the others, and a file of 10,000 equal rules is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.engine.policy.globs import GlobIndex, plain
from penstock.record import record
from penstock.settings.policy import BOTH, BY_KEY, CHANNEL, TOPIC

# Topics, and names of channels, whose rules are remembered for those that come next.
# With 10,000 rules that match everything one takes half a megabyte.
FOUND_COUNT_MAX = 64

TOPIC_KEYS = frozenset(key for key, row in BY_KEY.items() if row.group in (TOPIC, BOTH))
CHANNEL_KEYS = frozenset(key for key, row in BY_KEY.items() if row.group in (CHANNEL, BOTH))


class Given(NamedTuple):
    """A key's value in a file, and where."""

    value: Any
    origin: str


@record
class Rule:
    """One ``[[policy]]``; without a ``channel`` it is for the topic and for all its channels."""

    topic: str
    channel: str | None
    values: dict[str, Given]
    place: int = 0  # among the rules that are used
    alone: dict[str, Given] = field(default_factory=dict)  # of the values those of channels alone


class Rules:
    """All rules of one file; immutable."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self.count = len(rules)
        self._rules = _distinct(rules)
        self._topics = GlobIndex(rule.topic for rule in self._rules)
        # A rule without a channel is for none that one with a channel is for.
        self._channels = GlobIndex(rule.channel or "" for rule in self._rules)
        # Topics that some rule moves failed messages to.
        self.dead_topics = frozenset(
            given.value
            for rule in self._rules
            if (given := rule.values.get("dead_topic")) is not None and given.value
        )
        self._of = lru_cache(FOUND_COUNT_MAX)(self._find)
        self.places_of = lru_cache(FOUND_COUNT_MAX)(self._find_channel)

    def of(self, topic: str) -> tuple[Rule, ...]:
        """The rules whose topic pattern matches, in order."""
        return self._of(topic) if self._rules else ()

    def _find(self, topic: str) -> tuple[Rule, ...]:
        return tuple(self._rules[place] for place in self._topics.find(topic))

    def _find_channel(self, channel: str) -> frozenset[int]:
        """The places of the rules whose channel pattern matches."""
        return frozenset(self._channels.find(channel))


def _distinct(rules: Iterable[Rule]) -> list[Rule]:
    """The rules without values that a later rule with the same patterns overrides."""
    kept: list[Rule] = []
    seen: set[tuple[str, str | None, str]] = set()
    for rule in reversed(list(rules)):
        topic = plain(rule.topic)
        channel = None if rule.channel is None else plain(rule.channel)
        values = {
            key: given for key, given in rule.values.items() if (topic, channel, key) not in seen
        }
        seen.update((topic, channel, key) for key in values)
        if values:
            kept.append(Rule(topic, channel, values))
    kept.reverse()
    return [
        Rule(rule.topic, rule.channel, rule.values, place, _alone(rule.values))
        for place, rule in enumerate(kept)
    ]


def _alone(values: Mapping[str, Given]) -> dict[str, Given]:
    return {key: given for key, given in values.items() if BY_KEY[key].group == CHANNEL}
