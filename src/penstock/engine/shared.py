"""What all topics and channels of a broker share, as one frozen record.

A topic keeps direct references to what it uses for every batch.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from penstock.core.latency import Histogram
from penstock.core.tail import TailBudget
from penstock.engine.catalog.identity import Identity
from penstock.engine.catalog.registry import Registry
from penstock.engine.context import Context
from penstock.engine.damage import DamageLog
from penstock.engine.deferred.queue import DeferredQueue
from penstock.engine.disk import Here, Lane
from penstock.engine.health import Health, Retries
from penstock.engine.limits.episodes import Episodes
from penstock.engine.limits.expiry import Expiry
from penstock.engine.policy.policies import Policies
from penstock.engine.retention.wakes import Retention
from penstock.engine.rounds import Rounds
from penstock.engine.scan import Scan
from penstock.engine.turn import Turn
from penstock.record import record

if TYPE_CHECKING:
    from penstock.engine.base import BaseTopic
    from penstock.engine.channel import Channel

# All ephemeral queues together may use the memory of this many full ones.
FULL_QUEUE_COUNT = 8

_random = random.SystemRandom()


def random_number() -> int:
    """63 bits, not 0: the instance of a topic, the seed of a window."""
    return _random.getrandbits(63) or 1


class EphemeralMemory:
    """Memory used by ephemeral queues; a block counts once for each of its channels."""

    def __init__(self, queue_size_max: int) -> None:
        self.queue_size_max = queue_size_max
        self.size_max = FULL_QUEUE_COUNT * queue_size_max
        self.size = 0
        self.dropped_count = 0

    def room(self, queue_size: int) -> int:
        """Bytes that may be added to a queue of ``queue_size``."""
        return max(0, min(self.queue_size_max - queue_size, self.size_max - self.size))


class Hooks:
    """Callbacks of topics and channels, set by the broker and nsqd."""

    def __init__(self) -> None:
        # A topic or channel was created or deleted; nsqd notifies nsqlookupd.
        self.on_change: Callable[[BaseTopic | Channel, bool], None] = lambda _what, _exists: None
        # Whether nsqlookupds may know channels of a new topic.  If so, ``know_channels`` is called
        # with them later; until then no message is delivered.
        self.query_channels: Callable[[BaseTopic], bool] = lambda _topic: False
        # The appenders that clients may use have changed: they must look them up again.
        self.on_draining: Callable[[bool], None] = lambda _draining: None
        # Buried messages of a channel are to be moved to its dead topic: these, and all that its
        # policy moves.
        self.move_out: Callable[[Channel, list[int]], None] = lambda _channel, _indexes: None
        self.search_moves: Callable[[Channel], None] = lambda _channel: None
        # An ephemeral topic has lost its last channel.
        self.on_deserted: Callable[[BaseTopic], None] = lambda _topic: None


@record
class Shared:
    """The components that topics and channels use."""

    context: Context
    identity: Identity
    health: Health
    damage: DamageLog
    retries: Retries
    registry: Registry
    deferred: DeferredQueue
    rounds: Rounds
    policies: Policies
    retention: Retention
    scan: Scan
    turn: Turn
    zeros_disk: Lane  # for zeros ahead of the ends of logs
    changes_disk: Lane  # for work that creates, changes or deletes topics and channels
    here: Here  # for writes of journals
    ephemeral: EphemeralMemory
    expiry: Expiry
    episodes: Episodes
    awaited: Mapping[str, object]  # topics that long polls wait for, by name
    arrived: Callable[[str], None]  # a batch of such a topic became visible
    changed: Callable[[str], None]  # this topic was created, deleted or changed
    hooks: Hooks = field(default_factory=Hooks)
    tail_budget: TailBudget = field(default_factory=TailBudget)
    sync_times: Histogram = field(default_factory=Histogram)
    channel_numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
