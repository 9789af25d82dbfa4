"""Applies policies: to new topics and channels, after a reload of the file, and when one is set.

Rule 1: a topic has its policy before its first message, a channel before its first delivery.
Rule 2: what is set is in the topic's journal, synced, before the answer.  What cannot be journaled
        (ephemeral topics and channels) lasts as long as they do.
Rule 3: a wrong file is refused as a whole: the start fails, a reload leaves everything as it was.
Rule 4: after a reload, topics and channels get their new policies in slices of a millisecond, so
        that thousands of them and 10,000 rules do not hold the loop.  What is created or set
        meanwhile has the new rules at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from penstock.core.ticket import Ticket
from penstock.engine.context import Context
from penstock.engine.policy.lapse import Lapses
from penstock.engine.policy.merge import (
    ACTIONS,
    DEAD_SUFFIX,
    DEFAULT_ORIGIN,
    EPHEMERAL_KEYS,
    SET,
    Subject,
    Value,
    Values,
    channel_values,
    dead_topic,
    policy_of,
    topic_values,
)
from penstock.engine.policy.rules import CHANNEL_KEYS, TOPIC_KEYS, Rules
from penstock.engine.policy.subjects import RuledChannel, RuledTopic
from penstock.engine.policy.values import (
    convert,
    restored,
    setting_of,
    short,
    shown,
    stored,
)
from penstock.errors import PolicyError
from penstock.settings.policy import DEFAULT, DROP, KEYS, MOVE

# What a reload visits: a topic, or a channel of it.
Target = tuple[RuledTopic, RuledChannel | None]

log = logging.getLogger(__name__)

# Time that a reload may use in one turn of the loop.
SLICE_NS = 1_000_000
# Notes that were logged, at most; each is logged once.
NOTE_COUNT_MAX = 1000


class Policies:
    """The policies of one broker."""

    def __init__(self, context: Context, topics: Mapping[str, RuledTopic]) -> None:
        self._turns = context.turns
        self._disk = context.disk
        self._clock = context.clock
        self._supervisor = context.supervisor
        self._topics = topics
        self.path = context.options.policy_file
        self.rules = Rules()
        self.read_ns = 0  # when the file was read, wall clock
        self.error = ""  # why the last reload was refused
        self.refused_count = 0
        self.lapses = Lapses(context)
        self._noted: set[str] = set()
        self._reload_number = 0
        self._reading = self._read_wanted = False
        # Channels for which a dead_topic was set, by its name; maybe deleted ones.
        self._dead_for: dict[str, set[RuledChannel]] = {}
        if self.path:
            self.rules = self.read_again()
            self.read_ns = self._clock.wall_ns()
            log.info("policies: %d rules of %s", self.rules.count, self.path)

    # ---- new topics and channels

    def admit_topic(self, topic: RuledTopic) -> None:
        """A topic is created or recovered: give it its policy."""
        topic.apply_policy(policy_of(topic_values(self.rules, self._subject(topic))))

    def admit_channel(self, channel: RuledChannel) -> None:
        """A channel is created or recovered: give it its policy."""
        values = self._values(channel)
        channel.apply_policy(policy_of(values))
        self._note(channel, values)
        self._remember_dead(channel)
        self.lapses.watch(channel)

    def recover(self, topic: RuledTopic, channel: RuledChannel | None, own: dict[str, Any]) -> None:
        """Restore what was set; keys and values of another version are logged and kept."""
        for key, value in own.items():
            try:
                restored(key, value)
            except PolicyError as error:
                log.warning("%s: policy ignored: %s", _name(topic, channel), error)
        if channel is None:
            topic.own_policy = own
        else:
            channel.own_policy = own

    def _subject(self, topic: RuledTopic, channel: RuledChannel | None = None) -> Subject:
        dead = self.is_dead(topic.name)
        subject = Subject(topic.name, topic.own_policy, topic.ephemeral, dead)
        if channel is None:
            return subject
        return subject._replace(
            channel=channel.name,
            channel_own=channel.own_policy,
            channel_ephemeral=channel.ephemeral,
            pulled=channel.pulled,
        )

    def _values(self, channel: RuledChannel) -> Values:
        return channel_values(self.rules, self._subject(channel.topic, channel))

    # ---- topics of dead letters

    def is_dead(self, topic: str) -> bool:
        """Whether failed messages are moved to the topic of this name.

        It ends with ``.dead``, or a dead_topic names it: in the file, or set for a channel.
        """
        if topic.endswith(DEAD_SUFFIX) or topic in self.rules.dead_topics:
            return True
        channels = self._dead_for.get(topic)
        if channels is None:
            return False
        channels -= {c for c in channels if c.closed or c.policy.dead_topic != topic}
        if not channels:
            del self._dead_for[topic]
        return bool(channels)

    def _remember_dead(self, channel: RuledChannel) -> None:
        name = channel.policy.dead_topic if "dead_topic" in channel.own_policy else ""
        if not name:
            return
        known = self.is_dead(name)
        channels = self._dead_for.setdefault(name, set())
        if not len(channels) & (len(channels) - 1):  # at each doubling: deleted ones go
            channels -= {c for c in channels if c.closed}
        channels.add(channel)
        if not known and name in self._topics:
            self._turns.soon(partial(self._refresh_named, name))

    def _refresh_named(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is not None and not topic.closed:
            self._refresh_all(_targets([topic]), self._reload_number)

    # ---- showing

    def topic_shown(self, topic: RuledTopic) -> dict[str, dict[str, Any]]:
        """All keys of a topic: value, origin, and a note where it is not what was said there."""
        return _shown(topic_values(self.rules, self._subject(topic)), TOPIC_KEYS)

    def channel_shown(self, channel: RuledChannel) -> dict[str, dict[str, Any]]:
        """The same for a channel."""
        return _shown(self._values(channel), CHANNEL_KEYS)

    # ---- setting

    def set_topic(self, topic: RuledTopic, changes: Mapping[str, object]) -> Ticket:
        """Set keys of a topic, or unset those that are None; the ticket is settled when synced.

        Raises PolicyError, then nothing has changed.
        """
        own = _changed(topic.own_policy, changes, TOPIC_KEYS, "topics")
        if topic.ephemeral:
            for key in changes:
                if key not in EPHEMERAL_KEYS:
                    allowed = " and ".join(sorted(EPHEMERAL_KEYS))
                    text = f"an ephemeral topic takes {allowed} only, not {short(key)}"
                    raise PolicyError("EPHEMERAL_TOPIC", key, text, conflict=True)
        if "on_expired" in changes and own.get("on_expired") == MOVE:
            self._check_names(topic)
        topic.own_policy = own
        log.info("%s: policy: %s", _name(topic, None), _text(changes))
        self._refresh_topic(topic)
        # A topic may have thousands of channels.
        self._refresh_all(_targets([topic]), self._reload_number)
        return topic.save_policy(None)

    def set_channel(self, channel: RuledChannel, changes: Mapping[str, object]) -> Ticket:
        """The same for a channel."""
        topic = channel.topic
        own = _changed(channel.own_policy, changes, CHANNEL_KEYS, "channels")
        if topic.ephemeral and changes:
            text = "channels of an ephemeral topic have no policy"
            raise PolicyError("EPHEMERAL_TOPIC", next(iter(changes)), text, conflict=True)
        if channel.pulled and changes:
            text = "a pull channel delivers nothing: policies of channels are not for it"
            raise PolicyError("PULL_CHANNEL", next(iter(changes)), text, conflict=True)
        self._check(self._subject(topic, channel)._replace(channel_own=own), changes)
        channel.own_policy = own
        log.info("%s: policy: %s", _name(topic, channel), _text(changes))
        before = channel.policy.dead_topic
        self._refresh_channel(channel)
        if before and before != channel.policy.dead_topic:
            self._turns.soon(partial(self._refresh_named, before))
        return topic.save_policy(channel)

    def _check(self, subject: Subject, changes: Mapping[str, object]) -> None:
        """Refuse what the channel cannot do, if ``changes`` ask for it."""
        if "dead_topic" in changes and subject.channel_own.get("dead_topic") == subject.topic:
            text = "dead_topic must not be the topic itself"
            raise PolicyError("INVALID_VALUE", "dead_topic", text)
        values = channel_values(self.rules, subject)
        for key, limit in ACTIONS.items():
            found = values.get(key)
            if subject.channel_ephemeral:
                self._check_ephemeral(subject, key, limit, changes, values)
            elif found is None or found.origin != SET or not found.note:
                continue
            elif key in changes or "dead_topic" in changes:
                raise PolicyError("INVALID_VALUE", key, f"{key}: {found.note}")

    def _check_ephemeral(
        self,
        subject: Subject,
        key: str,
        limit: str,
        changes: Mapping[str, object],
        values: Values,
    ) -> None:
        wanted = subject.channel_own.get(key)
        text = f"nothing is kept of an ephemeral channel; {key} must be {DROP}"
        if key in changes and wanted is not None and wanted != DROP:
            raise PolicyError("EPHEMERAL_CHANNEL", key, text, conflict=True)
        if changes.get(limit) is not None and values[limit].note:
            raise PolicyError("EPHEMERAL_CHANNEL", limit, text, conflict=True)

    def _check_names(self, topic: RuledTopic) -> None:
        """``topic`` is to be set for all channels: refuse it if one cannot move its messages."""
        for channel in topic.channels.values():
            if dead_topic(topic.name, channel.name, channel.policy.dead_topic) is None:
                text = f"on_expired: the dead-letter topic of channel {channel.name} would have"
                text += " too long a name; set its dead_topic first"
                raise PolicyError("INVALID_VALUE", "on_expired", text)

    # ---- applying

    def _refresh_topic(self, topic: RuledTopic) -> None:
        policy = policy_of(topic_values(self.rules, self._subject(topic)))
        if policy != topic.policy:
            topic.apply_policy(policy)

    def _refresh_channel(self, channel: RuledChannel) -> None:
        values = self._values(channel)
        policy = policy_of(values)
        if policy != channel.policy:
            channel.apply_policy(policy)
            self._note(channel, values)
            self._remember_dead(channel)
            self.lapses.watch(channel)

    def _refresh_all(self, targets: Iterator[Target], number: int) -> None:
        """Refresh topics and channels, in slices; a later reload takes over."""
        end_ns = self._clock.monotonic_ns() + SLICE_NS
        for topic, channel in targets:
            if number != self._reload_number:
                return
            if channel is None and not topic.closed:
                self._supervisor.guard(topic.name, self._refresh_topic, topic)
            elif channel is not None and not channel.closed:
                self._supervisor.guard(topic.name, self._refresh_channel, channel)
            if self._clock.monotonic_ns() >= end_ns:
                self._turns.soon(partial(self._refresh_all, targets, number))
                return

    # ---- the file

    def reload(self) -> None:
        """Read the file again, on a disk thread, and apply it.

        One read at a time, so that the last one counts: what is asked for meanwhile follows.
        """
        if self._reading:
            self._read_wanted = True
            return
        self._reading, self._read_wanted = True, False
        self._disk.submit(self.read_again, self._have_read)

    def _have_read(self, rules: Rules | None, error: Exception | None) -> None:
        self._reading = False
        self.renew(rules, error)
        if self._read_wanted:
            self.reload()

    def read_again(self) -> Rules:
        """Read the file; raises OptionError.  Blocking."""
        from penstock.engine.policy.file import read_rules

        return read_rules(self.path)

    def renew(self, rules: Rules | None, error: Exception | None) -> None:
        """Apply what ``read_again`` read; if it failed, keep everything as it was."""
        if rules is None:
            self.refused_count += 1
            self.error = str(error)
            log.error("SIGHUP: policies stay as they were: %s", error)
            return
        self.rules, self.error, self.read_ns = rules, "", self._clock.wall_ns()
        self._noted.clear()
        self._reload_number += 1
        log.info("SIGHUP: %d policy rules of %s", rules.count, self.path)
        self._refresh_all(_targets(list(self._topics.values())), self._reload_number)

    def _note(self, channel: RuledChannel, values: Values) -> None:
        """Log what a rule of the file says and this channel cannot do, once for each reason."""
        for key, value in values.items():
            if not value.note or value.origin == DEFAULT_ORIGIN:
                continue
            note = f"{key} of {value.origin} is {value.note}"
            if note not in self._noted and len(self._noted) < NOTE_COUNT_MAX:
                self._noted.add(note)
                log.warning("%s: policy: %s", _name(channel.topic, channel), note)

    @property
    def stats(self) -> dict[str, Any]:
        """For /stats?policies=true."""
        return {
            "path": self.path,
            "rules": self.rules.count,
            "read": self.read_ns // 1_000_000_000,
            "refused_count": self.refused_count,
            "error": self.error,
        }


def _targets(topics: list[RuledTopic]) -> Iterator[Target]:
    """The topics, each followed by its channels."""
    for topic in topics:
        yield topic, None
        for channel in list(topic.channels.values()):
            yield topic, channel


def _changed(
    own: Mapping[str, Any], changes: Mapping[str, object], keys: frozenset[str], what: str
) -> dict[str, Any]:
    """``own`` with ``changes``, as the journal has them; raises PolicyError."""
    changed = dict(own)
    for key, value in changes.items():
        if value is None and key in own:
            del changed[key]  # also one of another version
            continue
        setting = setting_of(key)
        if key not in keys:
            raise PolicyError("INVALID_KEY", key, f"{key} is not a key of {what}")
        if value is not None:
            changed[key] = stored(setting, convert(setting, value))
    return changed


def _shown(values: Values, keys: frozenset[str]) -> dict[str, dict[str, Any]]:
    found = {}
    for setting in KEYS:
        if setting.option not in keys:
            continue
        default = Value(getattr(DEFAULT, setting.field), DEFAULT_ORIGIN)
        value = values.get(setting.option, default)
        entry = {"value": shown(setting, value.value), "origin": value.origin}
        found[setting.option] = entry | ({"note": value.note} if value.note else {})
    return found


def set_values(policy: Any, own: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    """The keys that differ from the default or were set, for /stats."""
    return {
        setting.option: shown(setting, getattr(policy, setting.field))
        for setting in KEYS
        if setting.option in keys
        and (
            setting.option in own
            or getattr(policy, setting.field) != getattr(DEFAULT, setting.field)
        )
    }


def _text(changes: Mapping[str, object]) -> str:
    parts = [f"{key} unset" if v is None else f"{key}={short(v)}" for key, v in changes.items()]
    return ", ".join(parts) or "nothing"


def _name(topic: RuledTopic, channel: RuledChannel | None) -> str:
    return f"topic={topic.name}" + (f" channel={channel.name}" if channel is not None else "")
