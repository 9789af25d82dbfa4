"""Patterns (R47): a reader gets its channel in every new topic that matches, before messages.

    POST /channel/pattern   archive reads orders.*       kept in patterns.json
    PUB orders.new          creates the topic with the pull channel archive at its first index: one
                            journal, one creation, before any message of it is visible

Rule 1: a pattern belongs to a channel name and one identity.  Another identity is refused, unless
        it takes the pattern over by stating the current one.
Rule 2: acknowledged changes are durable.  Renewing a pattern writes nothing.
Rule 3: a pattern is applied only when a topic is created.  For existing topics the reader is
        responsible: it lists them after it has registered the pattern.
Rule 4: a pattern whose reader is gone lapses after --pull-channel-lapse, like its channels.
Rule 5: patterns do not apply to ephemeral topics: they have no log.
"""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from penstock.core.ticket import Ticket
from penstock.engine.base import BaseTopic
from penstock.engine.catalog.saved_file import SavedFile
from penstock.engine.context import Context
from penstock.engine.damage import DamageLog
from penstock.engine.health import Health
from penstock.engine.pull.channel import MS_NS, PullChannel, Pulls
from penstock.engine.topic import Topic
from penstock.errors import PenstockError
from penstock.storage.channel_reader import ChannelReader
from penstock.storage.damage import DamageKind
from penstock.storage.patterns import (
    PatternRecord,
    encode_patterns,
    load_patterns,
    write_patterns,
)

log = logging.getLogger(__name__)

PATTERN_COUNT_MAX = 64
GLOB_COUNT_MAX = 64
EXCEPTION_COUNT_MAX = 1024


class PatternError(PenstockError):
    """A pattern is refused; ``reader`` is its current reader, if there is one."""

    code = ""
    status = 409

    def __init__(self, text: str, reader: ChannelReader | None = None) -> None:
        super().__init__(text)
        self.reader = reader


class HasPatternError(PatternError):
    """Another reader has registered one for the channel."""

    code = "CHANNEL_HAS_READER"


class TakeOverPatternError(PatternError):
    """The reader to be replaced does not have it."""

    code = "TAKE_OVER_REFUSED"


class TooManyPatternsError(PatternError):
    """The limit of patterns is reached."""

    code = "TOO_MANY_PATTERNS"
    status = 503


class Pattern:
    """One reader's patterns of topic names."""

    def __init__(self, record: PatternRecord, now_ns: int) -> None:
        self.record = record
        self.visit_ns = now_ns
        self._excepted = frozenset(record.excepted)
        # One expression for all: a single call tests a topic against all of them.
        self._match = re.compile("|".join(map(fnmatch.translate, record.topics))).match

    def matches(self, topic: str) -> bool:
        return self._match(topic) is not None and topic not in self._excepted


class Patterns:
    """All patterns of a broker, by channel."""

    def __init__(
        self,
        context: Context,
        health: Health,
        damage: DamageLog,
        pulls: Pulls,
        topics: Mapping[str, BaseTopic],
    ) -> None:
        self._files = context.files
        self._data = context.data
        self._clock = context.clock
        self._lapse_ns = context.options.pull_channel_lapse_ns
        self._damage = damage
        self._pulls = pulls
        self._topics = topics
        self._patterns: dict[str, Pattern] = {}
        self._file = SavedFile(context, health, "patterns.json", self._encode)
        self.lapse_count = 0
        self.made_count = 0  # channels

    def open(self) -> None:
        """Load the patterns of an earlier process.  Blocking."""
        data = self._data
        found = load_patterns(self._files, data.patterns, data.patterns_copy)
        if found.problems:
            self._damage.report(DamageKind.METADATA, "; ".join(found.problems), path=data.patterns)
        now_ns = self._clock.monotonic_ns()
        for record in found.records:
            self._patterns[record.channel] = Pattern(record, now_ns)
        if found.stale:
            self._file.save()

    # New topics

    def __len__(self) -> int:
        return len(self._patterns)

    def add_channels(self, topic: Topic) -> None:
        """Create the channels of matching patterns in a new topic."""
        for name, pattern in self._patterns.items():
            if name not in topic.channels and pattern.matches(topic.name):
                channel = PullChannel(
                    self._pulls, topic, name, topic.log.first, id=topic.next_channel_id()
                )
                topic.add_first_channel(channel)
                self.made_count += 1

    # Readers

    def register(
        self,
        channel: str,
        identity: str,
        reader: str | None,
        topics: tuple[str, ...],
        excepted: tuple[str, ...],
        take_over: str | None = None,
    ) -> tuple[Pattern, Ticket, bool]:
        """Register a pattern, or renew it; the ticket is settled when it is durable.

        Also returns whether it is new: topics created before do not have the channel.
        Raises PatternError if another reader has it, or if there are too many.
        """
        known = self._patterns.get(channel)
        before = None if known is None else known.record
        since = self._since(channel, identity, before, take_over)
        if before is None and len(self._patterns) >= PATTERN_COUNT_MAX:
            raise TooManyPatternsError(
                f"{PATTERN_COUNT_MAX} patterns are kept: {', '.join(sorted(self._patterns))};"
                " delete one with POST /channel/pattern/delete"
            )
        name = reader if reader is not None else (since.name if since is not None else "")
        since_ms = self._clock.wall_ns() // MS_NS if since is None else since.since_ms
        record = PatternRecord(channel, ChannelReader(identity, name, since_ms), topics, excepted)
        if known is not None and record == before:
            self.renew(channel, identity)
            return known, self._file.saved(), False
        made = self._patterns[channel] = Pattern(record, self._clock.monotonic_ns())
        if before is None or before.reader.identity != identity:
            log.info(
                "channel=%s: a pattern of %s: %s", channel, record.reader, ", ".join(topics[:10])
            )
        return made, self._file.save(), before is None

    def _since(
        self, channel: str, identity: str, before: PatternRecord | None, take_over: str | None
    ) -> ChannelReader | None:
        """The current reader if it is the same; None if it is a new one; or PatternError."""
        reader = None if before is None else before.reader
        if reader is not None and reader.identity == identity:
            return reader
        if take_over is not None:
            if reader is None or reader.identity != take_over:
                whose = f"is read by {reader}" if reader is not None else "has no pattern here"
                raise TakeOverPatternError(f"channel {channel} {whose}", reader)
            log.warning("channel=%s: identity %s takes over from %s", channel, identity, reader)
        elif reader is not None:
            raise HasPatternError(f"channel {channel} is read by {reader}", reader)
        return None

    def renew(self, channel: str, identity: str | None) -> None:
        """The reader of a pattern made a call."""
        pattern = self._patterns.get(channel)
        if pattern is not None and pattern.record.reader.identity == identity:
            pattern.visit_ns = self._clock.monotonic_ns()

    def topics(self, pattern: Pattern) -> Iterator[tuple[Topic, PullChannel]]:
        """The topics that match and have the channel."""
        for name, topic in list(self._topics.items()):
            made = topic.channels.get(pattern.record.channel)
            if isinstance(made, PullChannel) and isinstance(topic, Topic) and pattern.matches(name):
                yield topic, made

    def delete(self, channel: str) -> Ticket:
        """Delete a pattern; KeyError if there is none.  The channels that it created stay."""
        pattern = self._patterns.pop(channel)
        log.info("channel=%s: deleted the pattern of %s", channel, pattern.record.reader)
        return self._file.save()

    def expire(self) -> None:
        """Delete patterns whose reader has been gone too long; called once a second."""
        lapse_ns = self._lapse_ns
        if not lapse_ns or not self._patterns:
            return
        for channel, pattern in list(self._patterns.items()):
            if self._idle_ns(pattern) >= lapse_ns and not self._polled(channel):
                del self._patterns[channel]
                self.lapse_count += 1
                log.warning(
                    "channel=%s: the pattern of %s lapsed after %d s without its reader: new topics"
                    " no longer get its channel",
                    *(channel, pattern.record.reader, self._idle_ns(pattern) // 1_000_000_000),
                )
                self._file.save()

    def _idle_ns(self, pattern: Pattern) -> int:
        return self._clock.monotonic_ns() - pattern.visit_ns

    def _polled(self, channel: str) -> bool:
        """Whether a long poll waits for one of its channels."""
        return any(c.poll_count and c.name == channel for c in self._pulls.channels)

    # /stats

    @property
    def stats(self) -> list[dict[str, Any]]:
        """For /stats and GET /channel/patterns, by channel."""
        lapse_ns = self._lapse_ns
        shown = []
        for channel, pattern in sorted(self._patterns.items()):
            record, idle_ns = pattern.record, self._idle_ns(pattern)
            shown.append(
                {
                    "channel": channel,
                    "identity": record.reader.identity,
                    "reader": record.reader.name,
                    "since_ms": record.reader.since_ms,
                    "topics": list(record.topics),
                    "except": list(record.excepted),
                    "idle_ms": idle_ns // MS_NS,
                    "lapses_in_ms": max(0, lapse_ns - idle_ns) // MS_NS if lapse_ns else None,
                }
            )
        return shown

    # On disk

    def _encode(self) -> Callable[[], None]:
        data = encode_patterns([pattern.record for pattern in self._patterns.values()])
        path, copy = self._data.patterns, self._data.patterns_copy
        return partial(write_patterns, self._files, path, copy, data)
