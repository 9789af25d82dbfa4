"""The keys of policies: one table, like the options of a daemon (docs/log.md).

A policy configures a topic or a channel.  Its values come from the defaults below, which are NSQ's
behaviour; from the rules of --policy-file; and from what was set over HTTP for this very topic or
channel.  Later ones win, key by key.

``of`` says what a key is for: topics, channels or both.  A channel's value of a key for both wins
over its topic's.
"""

from __future__ import annotations

from typing import Any

from penstock.record import record
from penstock.settings.kinds import Choice, Duration, DurationRange, Int, Size, Text, parse_duration
from penstock.settings.places import QUEUED, Place, StartKind
from penstock.settings.table import Setting, row, settings_of

TOPIC, CHANNEL, BOTH = "topic", "channel", "topic, channel"

START = Place(QUEUED)

# What happens to a message that is refused, has failed too often or has expired.
REFUSE, DROP_OLDEST = "refuse", "drop-oldest"
BURY, MOVE, DROP = "bury", "topic", "drop"

# The attempts field of a message has 16 bits and stays at its largest value.
MAX_ATTEMPTS_MAX = 65_534
MAX_BURIED_MAX = 10_000_000


class NameKind(Text):
    """A topic's name, judged by the caller, or empty."""

    kind = "topic name"
    noun = "the name of a topic"


def _key(of: str, kind: Text, default: Any, help: str) -> Any:
    return row(kind, of, default, help, own=True)


def _time() -> Duration:
    return Duration(0, parse_duration("36500d"))


@record
class Policy:
    """The effective policy of a topic or a channel."""

    retain_ns: int = _key(TOPIC, _time(), 0, "how long finished messages are kept; 0: not at all")
    retain_bytes: int = _key(
        TOPIC,
        Size(0),
        0,
        "how many bytes of finished messages are kept at most; 0: retain alone decides",
    )
    channel_start: Place = _key(
        TOPIC, StartKind(), START, "where a new channel starts, unless its creator says"
    )
    max_bytes: int = _key(
        TOPIC, Size(0), 0, "limit of the bytes of unfinished messages; 0: no limit"
    )
    max_messages: int = _key(
        TOPIC, Int(0), 0, "limit of unfinished messages in the fullest channel; 0: no limit"
    )
    overflow: str = _key(
        TOPIC,
        Choice(dict.fromkeys((REFUSE, DROP_OLDEST))),
        REFUSE,
        "at max_bytes or max_messages: refuse publishes, or drop the oldest messages",
    )
    msg_ttl_ns: int = _key(
        BOTH,
        _time(),
        0,
        "how long a message can be delivered, from when it first could be; 0: no limit",
    )
    on_expired: str = _key(
        BOTH,
        Choice(dict.fromkeys((DROP, BURY, MOVE))),
        DROP,
        "what to do with a message older than msg_ttl",
    )
    max_attempts: int = _key(
        CHANNEL,
        Int(0, MAX_ATTEMPTS_MAX),
        0,
        "how often the delivery of a message may fail; 0: no limit",
    )
    on_max_attempts: str = _key(
        CHANNEL,
        Choice(dict.fromkeys((BURY, MOVE, DROP))),
        BURY,
        "what to do with a message after max_attempts",
    )
    dead_topic: str = _key(
        CHANNEL,
        NameKind(),
        "",
        "the topic that failed messages are moved to; empty: <topic>.<channel>.dead",
    )
    max_buried: int = _key(
        CHANNEL,
        Int(1, MAX_BURIED_MAX),
        1_000_000,
        "how many messages may be buried; further ones go to dead_topic",
    )
    requeue_backoff: tuple[int, int] | None = _key(
        CHANNEL,
        DurationRange(1_000_000, parse_duration("7d")),
        None,
        "growing delay of messages that timed out or were requeued without one; empty: none",
    )
    channel_lapse_ns: int = _key(
        CHANNEL, _time(), 0, "delete the channel after this long without a client; 0: never"
    )


KEYS: tuple[Setting, ...] = settings_of(Policy)
BY_KEY = {setting.option: setting for setting in KEYS}
DEFAULT = Policy()
