"""The components of a running broker: each is created here once and passed to those that use it.

    context     options, files, disk, turns, clock                  engine/context.py
      <- health, damage, identity, registry, deferred, turn,
         rounds, policies                                       what topics share
        <- topics, channels                                         engine/shared.py
          <- broker                                                 which topics exist
          <- staging, pulls, patterns, polls, reads                 work on the broker's topics

A component knows those above it in this list.  Where it has to reach a later one (a topic notifies
the polls of a batch), it gets a callable.
"""

from __future__ import annotations

from penstock.engine.base import BaseTopic
from penstock.engine.broker import Broker
from penstock.engine.catalog.data_path import DataPathCheck
from penstock.engine.catalog.identity import Identity
from penstock.engine.catalog.registry import Registry
from penstock.engine.context import Context
from penstock.engine.damage import DamageLog
from penstock.engine.deferred.counts import Reports
from penstock.engine.deferred.queue import FOREVER, DeferredQueue
from penstock.engine.disk import Here, Lane
from penstock.engine.drain.drain import Drain
from penstock.engine.health import Health, Retries
from penstock.engine.limits.episodes import Episodes
from penstock.engine.limits.expiry import Expiry
from penstock.engine.moves.moves import Moves
from penstock.engine.policy.policies import Policies
from penstock.engine.pull.channel import Pulls
from penstock.engine.pull.patterns import Patterns
from penstock.engine.pull.polls import Polls
from penstock.engine.pull.reads import Reads
from penstock.engine.retention.wakes import Retention
from penstock.engine.retention.watermark import Room
from penstock.engine.rounds import Rounds
from penstock.engine.scan import DeadlineScan, SampleScan, Scan
from penstock.engine.shared import EphemeralMemory, Shared
from penstock.engine.staging.area import Staging
from penstock.engine.turn import Turn
from penstock.storage.damage import DamageKind
from penstock.storage.slots import SlotStore

# Topics that get zeros ahead of the end of their log at once.
ZEROS_WORK_COUNT_MAX = 1
# Disk work that creates, changes or deletes topics and channels: at most this many at once.
CHANGE_WORK_COUNT_MAX = 2


class Components:
    """All components of one broker; engine/recovery.py opens its data path."""

    def __init__(self, context: Context) -> None:
        self.context = context
        options, clock = context.options, context.clock
        topics: dict[str, BaseTopic] = {}
        by_instance: dict[int, BaseTopic] = {}
        self.health = Health(context)
        self.damage = DamageLog(context, self.health)
        self.identity = Identity(context, self.health, self.damage)
        self.retries = Retries(context, self.health)
        self.scan: Scan = (
            SampleScan(clock, options) if options.queue_scan == "sample" else DeadlineScan(clock)
        )
        self.turn = Turn(context, self.scan)
        self.deferred = self._open_deferred(by_instance)
        self.turn.serve(self.deferred, by_instance)
        self.rounds = Rounds(context, self.identity, self.deferred, by_instance)
        self.policies = Policies(context, topics)
        self.retention = Retention(context, self.rounds)
        self.room = Room(context, self.health, self.retention)
        changes_disk = Lane(context.disk, CHANGE_WORK_COUNT_MAX)
        self.registry = Registry(context, self.health, changes_disk, topics)
        self.polls = Polls(context, topics)
        self.shared = Shared(
            context,
            self.identity,
            self.health,
            self.damage,
            self.retries,
            self.registry,
            self.deferred,
            self.rounds,
            self.policies,
            self.retention,
            self.scan,
            self.turn,
            Lane(context.disk, ZEROS_WORK_COUNT_MAX),
            changes_disk,
            Here(context.clock),
            EphemeralMemory(options.mem_queue_bytes),
            Expiry(context),
            Episodes(context),
            self.polls.awaited,
            self.polls.arrived,
            self.polls.changed,
        )
        self.pulls = Pulls(context)
        self.patterns = Patterns(context, self.health, self.damage, self.pulls, topics)
        self.broker = Broker(self.shared, topics, by_instance, self.patterns.add_channels)
        self.moves = Moves(self.shared, topics, self.broker.create_topic)
        self.shared.hooks.move_out = self.moves.owe
        self.shared.hooks.search_moves = self.moves.search
        self.staging = Staging(self.shared, topics, self.broker.create_topic)
        self.drain = Drain(
            context,
            self.health,
            self.damage,
            self.identity,
            self.broker,
            self.deferred,
            self.staging,
        )
        self.reads = Reads(context, self.retries, self.polls)
        self._data_path_check = DataPathCheck(context, self.health)

    def _open_deferred(self, by_instance: dict[int, BaseTopic]) -> DeferredQueue:
        context, options = self.context, self.context.options

        def void_before(instance: int) -> int:
            topic = by_instance.get(instance)
            return FOREVER if topic is None else topic.void_stamp

        def damaged(text: str, path: str, messages: int | None) -> None:
            self.damage.report(DamageKind.DEFERRED, text, path=path, messages=messages)

        return DeferredQueue(
            SlotStore(context.files, context.data.deferred),
            context.disk,
            context.clock,
            void_before=void_before,
            health=self.health.record,
            reports=Reports(damaged, self.health.failing, self.health.working),
            dirty=self.turn.deferred_changed,
            wake=self.turn.fire_soon,
            sync_every=options.sync_every,
            memory_count_max=options.mem_queue_size,
            memory_size_max=options.mem_queue_bytes,
        )

    def start(self) -> None:
        """Start; everything is recovered.  The listeners are open already (R17)."""
        self.broker.start()
        self.moves.start()
        self.rounds.start(
            (
                self.retention.check,
                self.pulls.expire,
                self.patterns.expire,
                self.policies.lapses.expire,
                self.staging.check_notes,
                self._data_path_check.run,
                self.health.probe,
                self.drain.check,
                self.shared.episodes.run,
                self.shared.expiry.run,
            )
        )
        self.staging.start()
        self.room.start()

    def refuse_all(self) -> None:
        """Shutdown has begun: accept nothing new, and answer all long polls."""
        self.broker.refuse_all()
        self.polls.close()
