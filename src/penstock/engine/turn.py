"""The turn: work that arrives in one turn of the loop is batched and done at its end.

    turn:   flush     topics that got publishes write one batch each
            pump      channels with new messages, or a consumer with room, deliver
            arm       the timer is set to the next deadline
    tick:   expire    requeue timed-out and deferred messages, fire due deferred publishes

Slower work is done in rounds (engine/rounds.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from penstock.core.deadlines import NEVER_NS
from penstock.core.latency import Histogram
from penstock.engine.context import Context, Timer
from penstock.engine.deferred.queue import DeferredQueue, Due
from penstock.engine.flushing import SYNC_SPACING_NS
from penstock.engine.scan import Scan, Scanned

# Channels served before the loop polls its sockets again.
PUMP_COUNT_MAX = 256
# Deferred publishes fired at once: reading their bodies back takes one or two milliseconds.
FIRE_COUNT_MAX = 256
FIRE_SIZE_MAX = 4 << 20
# While deferred publishes wait, the wall clock is read this often, since it may be stepped.
WALL_LOOK_NS = 250_000_000


class FlushedTopic(Protocol):
    """A topic as the turn sees it."""

    name: str

    def flush(self) -> None: ...
    def fire(self, dues: list[Due]) -> None: ...


class PumpedChannel(Protocol):
    """A channel as the turn sees it."""

    name: str

    def pump(self, now_ns: int) -> None: ...


class Turn:
    """The work for the end of this turn, and the timer for the next deadline."""

    def __init__(self, context: Context, scan: Scan) -> None:
        self._turns = context.turns
        self._clock = context.clock
        self._supervisor = context.supervisor
        self._sync_every = context.options.sync_every
        self._scan = scan
        self.lateness = Histogram()  # of deferred publishes: fired minus due
        self._deferred: DeferredQueue
        self._by_instance: Mapping[int, FlushedTopic]
        self._dirty: list[FlushedTopic] = []
        self._woken: deque[PumpedChannel] = deque()
        self._deferred_sync_ns = 0
        self._deferred_dirty = False
        self._turn_asked = False
        self._tick_asked = False
        self._arm_wanted = False
        self._timer: Timer | None = None
        self._timer_ns = NEVER_NS

    def serve(self, deferred: DeferredQueue, by_instance: Mapping[int, FlushedTopic]) -> None:
        """Flush ``deferred``, which reports to this turn, and fire what is due into its topics."""
        self._deferred = deferred
        self._by_instance = by_instance

    def start(self) -> None:
        """Check all deadlines in this turn."""
        self._arm_wanted = True
        self._turn_soon()

    def stop(self) -> None:
        """Shutdown has begun: nothing expires or fires any more."""
        if self._timer is not None:
            self._timer.cancel()

    # ---- work for this turn

    def flush_later(self, topic: FlushedTopic) -> None:
        self._dirty.append(topic)
        if not self._turn_asked:
            self._turn_asked = True
            self._turns.soon(self._turn)

    def wake(self, channel: PumpedChannel) -> None:
        self._woken.append(channel)
        self._turn_soon()

    def watch(self, channel: Scanned) -> None:
        if self._scan.watch(channel):
            self._arm_wanted = True
            self._turn_soon()

    def deferred_changed(self) -> None:
        self._deferred_dirty = True
        self._turn_soon()

    def fire_soon(self) -> None:
        if not self._tick_asked:
            self._tick_asked = True
            self._turns.soon(self._tick)

    def unfired(self, dues: list[Due]) -> None:
        """These could not be written to their topic's log: retry them soon."""
        self._deferred.failed(dues)
        self._arm_wanted = True
        self._turn_soon()

    # ---- the turn

    def _turn_soon(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._turns.soon(self._turn)

    def _turn(self) -> None:
        self._turn_asked = False
        dirty, self._dirty = self._dirty, []
        for topic in dirty:
            try:
                topic.flush()
            except Exception:
                self._supervisor.defect(topic.name)
        if self._deferred_dirty:
            self._flush_deferred()
        if self._woken:
            self._pump()
        if self._arm_wanted:
            self._arm()

    def _pump(self) -> None:
        now_ns = self._clock.monotonic_ns()
        for _ in range(min(len(self._woken), PUMP_COUNT_MAX)):
            channel = self._woken.popleft()
            self._supervisor.guard(channel.name, channel.pump, now_ns)
        if self._woken:
            self._turn_soon()

    def _flush_deferred(self) -> None:
        self._deferred_dirty = False
        self._arm_wanted = True
        writer = self._deferred.writer
        writer.flush()
        now_ns = self._clock.monotonic_ns()
        if (
            writer.syncing.unsynced_count >= self._sync_every
            and now_ns - self._deferred_sync_ns >= SYNC_SPACING_NS
        ):
            self._deferred_sync_ns = now_ns
            writer.syncing.sync()

    def _fire_deferred(self) -> None:
        wall_ns = self._clock.wall_ns()
        if self._deferred.next_due_ns > wall_ns:
            return
        groups: dict[tuple[int, int], list[Due]] = {}
        for due in self._deferred.take(wall_ns, FIRE_COUNT_MAX, FIRE_SIZE_MAX):
            self.lateness.add(wall_ns - due.due_ns)
            groups.setdefault((due.instance, due.slot), []).append(due)
        for (instance, _), dues in groups.items():
            topic = self._by_instance.get(instance)
            if topic is None:
                self._deferred.void(dues)
            else:
                topic.fire(dues)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = NEVER_NS
        self._tick_asked = False
        if self._supervisor.exiting:
            return
        self._arm_wanted = True
        self._supervisor.guard("scan", self._scan.run)
        self._supervisor.guard("deferred", self._fire_deferred)
        self._turn()

    def _arm(self) -> None:
        """Set the timer to the next deadline."""
        self._arm_wanted = False
        next_ns = self._scan.next_ns
        due_ns = self._deferred.next_due_ns
        if due_ns < NEVER_NS:
            wait_ns = max(0, min(due_ns - self._clock.wall_ns(), WALL_LOOK_NS))
            next_ns = min(next_ns, self._clock.monotonic_ns() + wait_ns)
        if next_ns < self._timer_ns and not self._supervisor.exiting:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ns = next_ns
            delay_ns = max(0, next_ns - self._clock.monotonic_ns())
            self._timer = self._turns.after(delay_ns, self._tick)
