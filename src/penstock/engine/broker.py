"""The broker: all topics, and the turns in which their work is done.

One thread, the event loop, owns everything here.  What arrives in one turn of the loop is
gathered and done together at its end:

    turn:   flush     topics that got publishes write one batch each
            pump      channels that got messages, or room at a consumer, send
            arm       the timer is set to the next deadline
    tick:   expire    timed-out and deferred messages come back, due deferred publishes fire

Slower work is done in rounds (engine/rounds.py).
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.clock import Clock
from penstock.core.appender import Appender
from penstock.core.deadlines import NEVER_NS
from penstock.core.latency import Histogram
from penstock.core.tail import TailBudget
from penstock.core.ticket import Ticket, after, settled
from penstock.engine.base import BaseTopic
from penstock.engine.catalog.creation import Creation
from penstock.engine.catalog.data_path import Premises
from penstock.engine.catalog.deletion import Deletion
from penstock.engine.catalog.identity import Identity
from penstock.engine.catalog.registry import Registry
from penstock.engine.channel import Channel
from penstock.engine.damage import DamageLog
from penstock.engine.deferred.counts import reports_of
from penstock.engine.deferred.queue import FOREVER, DeferredQueue, Due
from penstock.engine.disk import Disk
from penstock.engine.ephemeral import EphemeralMemory, EphemeralTopic
from penstock.engine.flushing import SYNC_SPACING_NS
from penstock.engine.health import Health
from penstock.engine.options import Options
from penstock.engine.pull.channel import Pulls
from penstock.engine.pull.patterns import Patterns
from penstock.engine.pull.polls import Polls
from penstock.engine.pull.reads import Reads
from penstock.engine.retries import Retries
from penstock.engine.rounds import Rounds
from penstock.engine.scan import DeadlineScan, SampleScan, Scan
from penstock.engine.staging.area import Staging
from penstock.engine.staging.lane import Lane
from penstock.engine.topic import Topic
from penstock.engine.turns import Timer, Turns
from penstock.storage.datapath import DataPath
from penstock.storage.files import Files
from penstock.storage.journal import Journal
from penstock.storage.slots import SlotStore
from penstock.storage.topic_log import TopicLog
from penstock.wire.names import is_ephemeral

log = logging.getLogger(__name__)

# What failed is tried again after this time.
AGAIN_NS = 1_000_000_000
# Channels served before the loop looks at its sockets again.
PUMP_COUNT_MAX = 256
# Deferred publishes fired at once: reading so many bodies back takes one or two milliseconds.
FIRE_COUNT_MAX = 256
FIRE_SIZE_MAX = 4 << 20
# Works at once that make, change and remove topics and channels, whatever waits to be.
CHANGE_WORK_COUNT_MAX = 2
# While deferred publishes wait, the wall clock is looked at this often, since it may be stepped.
WALL_LOOK_NS = 250_000_000


class Broker:
    """Topics by name, and what they share."""

    def __init__(
        self,
        options: Options,
        data: DataPath,
        files: Files,
        disk: Disk,
        turns: Turns,
        clock: Clock,
    ) -> None:
        self.options = options
        self.data = data
        self.files = files
        self.disk = disk
        self.turns = turns
        self.clock = clock
        self.start_time = clock.wall_ns() // 1_000_000_000
        self.topics: dict[str, BaseTopic] = {}
        self.appenders: dict[bytes, Appender] = {}
        self.clients: set[Any] = set()
        self.left_command_count = 0  # commands of clients that are gone
        self.unmade_channel_count = 0  # named by nsqlookupds: too many, or names that are not valid
        self.stuck_client_count = 0  # clients cut off because they did not read
        self.sync_times = Histogram()
        self.lateness = Histogram()  # of deferred publishes: fired minus due
        self.tail_budget = TailBudget()
        self.ephemeral = EphemeralMemory(options.mem_queue_bytes)
        self.exiting = False
        self.scan: Scan = (
            SampleScan(clock, options) if options.queue_scan == "sample" else DeadlineScan(clock)
        )
        self.deferred = self._open_deferred()
        self.health_of_disk = Health(self)
        self.damage = DamageLog(self)
        self.retries = Retries(self)
        self.identity = Identity(self)
        self.changes_disk = Lane(disk, CHANGE_WORK_COUNT_MAX)
        self.creation = Creation(self)
        self.registry = Registry(self)
        self.staging = Staging(self)
        self.pulls = Pulls(self)
        self.patterns = Patterns(self)
        self.polls = Polls(self)
        self.reads = Reads(self)
        self.premises = Premises(self)
        self.rounds = Rounds(self)
        # Called with a topic or channel that came or went; nsqlookupd is told by it.
        self.on_change: Callable[[BaseTopic | Channel, bool], None] = lambda _what, _exists: None
        # Asked about a new topic: whether others may know channels of it.  If so, the answer comes
        # as ``know_channels``, and until then no message flows.
        self.ask_channels: Callable[[BaseTopic], bool] = lambda _topic: False
        self._by_instance: dict[int, BaseTopic] = {}
        self._random = random.SystemRandom()
        self._stamp = 0
        self._channel_number = 0
        self._dirty: list[BaseTopic] = []
        self._woken: deque[Channel] = deque()
        self._deferred_sync_ns = 0
        self._deferred_dirty = False
        self._turn_asked = False
        self._tick_asked = False
        self._arm_wanted = False
        self._timer: Timer | None = None
        self._timer_ns = NEVER_NS

    def _open_deferred(self) -> DeferredQueue:
        return DeferredQueue(
            SlotStore(self.files, self.data.deferred),
            self.disk,
            self.clock,
            void_before=self._void_before,
            health=self.set_health,
            reports=reports_of(self),
            dirty=self._deferred_changed,
            wake=self._fire_soon,
            sync_every=self.options.sync_every,
            memory_count_max=self.options.mem_queue_size,
            memory_size_max=self.options.mem_queue_bytes,
        )

    # ---- what others ask

    @property
    def healthy(self) -> bool:
        return self.health_of_disk.problem is None

    @property
    def health(self) -> str:
        problem = self.health_of_disk.problem
        return "OK" if problem is None else f"NOK - {problem}"

    @property
    def node_uuid(self) -> str:
        return self.identity.uuid

    @property
    def node_id(self) -> int:
        return self.options.node_id

    # ---- topics

    def create_topic(self, name: str) -> tuple[BaseTopic, Ticket]:
        """The topic ``name``, made if need be; the ticket is settled when that is durable (R6)."""
        topic = self.topics.get(name)
        if topic is not None:
            if topic.created.error is not None and isinstance(topic, Topic):
                topic.created = topic.save()  # the disk may have recovered since
            return topic, topic.created
        if is_ephemeral(name):
            topic = EphemeralTopic(self, name, self.node_id, self.identity.next_base())
            self._ask_channels(topic)
            self.add_topic(topic)
            return topic, settled()
        instance = self.new_instance()
        folder = self.data.topic_folder(name, instance)
        durable = Topic(
            self,
            name,
            TopicLog(
                self.files,
                folder,
                instance,
                self.node_id,
                [],
                self.identity.next_base(),
                self.options.max_bytes_per_file,
            ),
            Journal(self.files, f"{folder}/journal", 0),
            instance,
        )
        durable.created = Ticket()
        self._ask_channels(durable)
        self.add_topic(durable)
        if self.patterns:
            self.patterns.attend(durable)
        self.creation.add(durable)
        return durable, durable.created

    def _ask_channels(self, topic: BaseTopic) -> None:
        if self.ask_channels(topic):
            topic.await_channels()

    def add_topic(self, topic: BaseTopic) -> None:
        self.topics[topic.name] = topic
        self.appenders[topic.name.encode()] = topic.appender
        self._by_instance[topic.instance] = topic
        log.info("topic=%s: created", topic.name)
        self.polls.changed(topic.name)
        self.on_change(topic, True)

    def delete_topic(self, name: str) -> Ticket:
        """Remove a topic with all it holds; KeyError if there is none."""
        topic = self.topics[name]
        if isinstance(topic, Topic):
            if topic.deletion is None:
                Deletion(self, topic).start()
            assert topic.deletion is not None
            return topic.deletion.ticket
        self.drop_topic(topic)
        self.deferred.purge(topic.instance, FOREVER)
        log.info("topic=%s: deleted", name)
        return settled()

    def drop_topic(self, topic: BaseTopic) -> None:
        """Forget a topic: its name is free."""
        del self.topics[topic.name]
        self.appenders.pop(topic.name.encode(), None)  # at a stop they are gone already
        del self._by_instance[topic.instance]
        self.identity.saw(topic.appender.next_index)
        topic.close()
        self.polls.changed(topic.name)
        self.on_change(topic, False)

    def channel_created(self, channel: Channel) -> None:
        log.info("topic=%s channel=%s: created", channel.topic.name, channel.name)
        self.scan.watch(channel)
        self.on_change(channel, True)

    def channel_deleted(self, channel: Channel) -> None:
        log.info("topic=%s channel=%s: deleted", channel.topic.name, channel.name)
        self.on_change(channel, False)

    def save_metadata(self, topic: BaseTopic) -> Ticket:
        return self.registry.save(topic)

    # ---- numbers

    def new_instance(self) -> int:
        return self._random.getrandbits(63) or 1

    def seed(self) -> int:
        return self._random.getrandbits(63)

    def channel_number(self) -> int:
        self._channel_number += 1
        return self._channel_number

    def stamp(self) -> int:
        """Ascending over all deferred publishes and purges, also over restarts."""
        wall_ns = min(self.clock.wall_ns(), self.identity.stamp_limit)
        self._stamp = max(self._stamp + 1, wall_ns)
        return self._stamp

    def raise_stamp(self, stamp: int) -> None:
        self._stamp = max(self._stamp, stamp)

    # ---- deferred publishing

    def defer(self, topic: BaseTopic, body: bytes, delay_ns: int) -> Ticket:
        """Accept a message to be published ``delay_ns`` from now."""
        refusal = self.health_of_disk.refusal()
        ticket = Ticket()
        if topic.appender.closed or refusal is not None:
            ticket.settle(refusal or OSError("exiting"))
            return ticket
        now_ns = self.clock.wall_ns()
        due_ns = now_ns + delay_ns
        stamp = self.stamp()
        if topic.ephemeral:
            # Past the bound it is dropped, as an ephemeral topic drops.
            if not self.deferred.defer_memory(
                topic.name, topic.instance, body, now_ns, due_ns, stamp
            ):
                self.ephemeral.dropped_count += 1
            self._deferred_changed()
            return settled()
        self._deferred_changed()
        accepted = self.deferred.defer(topic.name, topic.instance, body, now_ns, due_ns, stamp)
        # The topic must be there when the message is due, so its creation is waited for too.
        return accepted if topic.created.done else after(accepted, topic.created)

    def durable(self, instance: int) -> Topic | None:
        """The topic of ``instance``; None if it is gone, or ephemeral."""
        topic = self._by_instance.get(instance)
        return topic if isinstance(topic, Topic) else None

    def _void_before(self, instance: int) -> int:
        topic = self._by_instance.get(instance)
        return FOREVER if topic is None else topic.void_stamp

    def _deferred_changed(self) -> None:
        self._deferred_dirty = True
        self._turn_soon()

    def _fire_soon(self) -> None:
        if not self._tick_asked:
            self._tick_asked = True
            self.turns.soon(self._tick)

    def unfired(self, dues: list[Due]) -> None:
        """These could not be written to their topic's log: they are due again in a moment."""
        self.deferred.failed(dues)
        self._arm_wanted = True
        self._turn_soon()

    def _fire_deferred(self) -> None:
        wall_ns = self.clock.wall_ns()
        if self.deferred.next_due_ns > wall_ns:
            return
        groups: dict[tuple[int, int], list[Due]] = {}
        for due in self.deferred.take(wall_ns, FIRE_COUNT_MAX, FIRE_SIZE_MAX):
            self.lateness.add(wall_ns - due.due_ns)
            groups.setdefault((due.instance, due.slot), []).append(due)
        for (instance, _), dues in groups.items():
            topic = self._by_instance.get(instance)
            if topic is None:
                self.deferred.void(dues)
            else:
                topic.fire(dues)

    # ---- turns

    def flush_later(self, topic: BaseTopic) -> None:
        self._dirty.append(topic)
        if not self._turn_asked:
            self._turn_asked = True
            self.turns.soon(self._turn)

    def wake(self, channel: Channel) -> None:
        self._woken.append(channel)
        self._turn_soon()

    def watch(self, channel: Channel) -> None:
        if self.scan.watch(channel):
            self._arm_wanted = True
            self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self.turns.soon(self._turn)

    def _turn(self) -> None:
        self._turn_asked = False
        dirty, self._dirty = self._dirty, []
        for topic in dirty:
            try:
                topic.flush()
            except Exception:
                self.defect(topic.name)
        if self._deferred_dirty:
            self._flush_deferred()
        if self._woken:
            self._pump()
        if self._arm_wanted:
            self._arm()

    def _pump(self) -> None:
        now_ns = self.clock.monotonic_ns()
        for _ in range(min(len(self._woken), PUMP_COUNT_MAX)):
            channel = self._woken.popleft()
            self.guard(channel.name, channel.pump, now_ns)
        if self._woken:
            self._turn_soon()

    def _flush_deferred(self) -> None:
        self._deferred_dirty = False
        self._arm_wanted = True
        self.deferred.flush()
        now_ns = self.clock.monotonic_ns()
        if (
            self.deferred.unsynced_count >= self.options.sync_every
            and now_ns - self._deferred_sync_ns >= SYNC_SPACING_NS
        ):
            self._deferred_sync_ns = now_ns
            self.deferred.sync()

    def guard(self, what: str, call: Callable[..., None], *arguments: Any) -> None:
        """A defect in one topic must not stop the others."""
        try:
            call(*arguments)
        except Exception:
            self.defect(what)

    def defect(self, what: str) -> None:
        """An exception that nobody expected is being handled."""
        log.exception("%s: unexpected", what)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = NEVER_NS
        self._tick_asked = False
        if self.exiting:
            return
        self._arm_wanted = True
        self.guard("scan", self.scan.run)
        self.guard("deferred", self._fire_deferred)
        self._turn()

    def _arm(self) -> None:
        """Set the timer to what is due next."""
        self._arm_wanted = False
        next_ns = self.scan.next_ns
        due_ns = self.deferred.next_due_ns
        if due_ns < NEVER_NS:
            wait_ns = max(0, min(due_ns - self.clock.wall_ns(), WALL_LOOK_NS))
            next_ns = min(next_ns, self.clock.monotonic_ns() + wait_ns)
        if next_ns < self._timer_ns and not self.exiting:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ns = next_ns
            delay_ns = max(0, next_ns - self.clock.monotonic_ns())
            self._timer = self.turns.after(delay_ns, self._tick)

    # ---- start and end

    def start(self) -> None:
        """Begin the rounds; the broker is recovered and nobody is connected yet."""
        for topic in list(self.topics.values()):
            # The process ended before the channels of a new topic were known.
            if topic.awaiting_channels and not self.ask_channels(topic):
                topic.know_channels(())
        self.rounds.start()
        self.staging.start()
        self._arm_wanted = True
        self._turn_soon()

    def refuse_all(self) -> None:
        """The end has begun: no new publishes or subscriptions; what is pending is written."""
        self.exiting = True
        self.appenders.clear()
        self.polls.close()
        if self._timer is not None:
            self._timer.cancel()
        for topic in self.topics.values():
            self.guard(topic.name, topic.flush)
            topic.appender.closed = True
        self.guard("deferred", self.deferred.flush)

    def save_all(self) -> Ticket:
        """Write down all there is; settled when it is done.

        A defect in one topic must not keep the others from being saved: it becomes an error.
        """
        tickets = [self.registry.save_all()]
        for topic in self.topics.values():
            if isinstance(topic, Topic):
                tickets.append(self._save_exit(topic))
        # Damage is saved last: the end of the deferred queue may report some.
        return after(*tickets, self.deferred.finish(self.damage.save))

    def _save_exit(self, topic: Topic) -> Ticket:
        ticket = Ticket()

        def save(_: Ticket) -> None:
            if topic.closed:  # deleted
                ticket.settle()
                return
            try:
                after(*topic.save_exit()).add(lambda saved: ticket.settle(saved.error))
            except Exception as error:
                self.defect(topic.name)
                ticket.settle(error)

        # Its folder may be being renamed right now; if that fails, the topic stays.
        (topic.deletion.ticket if topic.deletion is not None else settled()).add(save)
        return ticket

    # ---- disk trouble

    def set_health(self, error: BaseException | None) -> None:
        self.health_of_disk.heard(error)

    def set_journal_health(self, source: str, error: BaseException | None) -> None:
        self.health_of_disk.heard_journal(source, error)

    def report(self, where: str, error: BaseException | None) -> None:
        log.error("%s: %s", where, error if error is not None else "failed")

    def later(self, call: Callable[[], None]) -> None:
        """Try something again that failed, in a while."""
        self.turns.after(AGAIN_NS, call)
