"""Patterns (R47): the reader of a kind of topics has its channel on each from the first message on.

    POST /channel/pattern   archive reads orders.*       kept in patterns.json
    PUB orders.new          the topic is made, and the pull channel archive with it, at its first
                            index: one journal, one creation, before anything of it is visible

Rule 1: a pattern belongs to a channel's name.  One identity has it; another one is refused, unless
        it takes it over by naming the one that has it.
Rule 2: what is answered is durable.  Renewing a pattern writes nothing.
Rule 3: a pattern is only looked at when a topic is made.  Topics that are there already are their
        reader's affair: it finds them by listing them after it has left the pattern.
Rule 4: a pattern whose reader is gone lapses after --pull-channel-lapse, as its channels do.
Rule 5: never for ephemeral topics: they are not in a log.
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
    """A pattern is refused; ``reader`` is who has it, if somebody does."""

    code = ""
    status = 409

    def __init__(self, text: str, reader: ChannelReader | None = None) -> None:
        super().__init__(text)
        self.reader = reader


class HasPatternError(PatternError):
    """Another reader has left one for the channel."""

    code = "CHANNEL_HAS_READER"


class TakeOverPatternError(PatternError):
    """The reader to be replaced does not have it."""

    code = "TAKE_OVER_REFUSED"


class TooManyPatternsError(PatternError):
    """There is no room for another one."""

    code = "TOO_MANY_PATTERNS"
    status = 503


class Pattern:
    """One reader's topics."""

    def __init__(self, record: PatternRecord, now_ns: int) -> None:
        self.record = record
        self.visit_ns = now_ns
        self._excepted = frozenset(record.excepted)
        # One expression for all: a topic that matches none is told so by one call.
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
        """Load what an earlier process kept; blocking."""
        data = self._data
        found = load_patterns(self._files, data.patterns, data.patterns_copy)
        if found.problems:
            self._damage.report(DamageKind.METADATA, "; ".join(found.problems), path=data.patterns)
        now_ns = self._clock.monotonic_ns()
        for record in found.records:
            self._patterns[record.channel] = Pattern(record, now_ns)
        if found.stale:
            self._file.save()

    # What a new topic asks

    def __len__(self) -> int:
        return len(self._patterns)

    def attend(self, topic: Topic) -> None:
        """Give a new topic the channels of those who want it from its first message on."""
        for name, pattern in self._patterns.items():
            if name not in topic.channels and pattern.matches(topic.name):
                channel = PullChannel(
                    self._pulls, topic, name, topic.log.first, id=topic.next_channel_id()
                )
                topic.add_first_channel(channel)
                self.made_count += 1

    # What readers ask

    def leave(
        self,
        channel: str,
        identity: str,
        reader: str | None,
        topics: tuple[str, ...],
        excepted: tuple[str, ...],
        take_over: str | None = None,
    ) -> tuple[Pattern, Ticket, bool]:
        """Keep a pattern, or renew it; the ticket is settled when it is durable.

        Also returns whether there was none: topics made meanwhile do not have the channel.
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
        """The reader that goes on; None if it is a new one, PatternError if it may not."""
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
        """The reader of a pattern is there."""
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
        """Forget a pattern; KeyError if there is none.  The channels that it made stay."""
        pattern = self._patterns.pop(channel)
        log.info("channel=%s: the pattern of %s is deleted", channel, pattern.record.reader)
        return self._file.save()

    def look(self) -> None:
        """Let lapse what has been without its reader for too long; called once a second."""
        lapse_ns = self._lapse_ns
        if not lapse_ns or not self._patterns:
            return
        for channel, pattern in list(self._patterns.items()):
            if self._idle_ns(pattern) >= lapse_ns and not self._polled(channel):
                del self._patterns[channel]
                self.lapse_count += 1
                log.warning(
                    "channel=%s: the pattern of %s lapsed after %d s without its reader: new topics"
                    " get no channel of it",
                    *(channel, pattern.record.reader, self._idle_ns(pattern) // 1_000_000_000),
                )
                self._file.save()

    def _idle_ns(self, pattern: Pattern) -> int:
        return self._clock.monotonic_ns() - pattern.visit_ns

    def _polled(self, channel: str) -> bool:
        """Whether a long poll waits in the name of one of its channels."""
        return any(c.poll_count and c.name == channel for c in self._pulls.channels)

    # What people see

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
