# The turn: work that arrives in one turn of the loop is batched and done at its end.
#
#     run:    flush     topics that got publishes write one batch each
#             pump      channels with new messages, or a consumer with room, deliver
#             arm       the timer is set to the next deadline
#     tick:   expire    requeue timed-out and deferred messages, fire due deferred publishes
#
# Rule 1: work that is asked for schedules one call of run(), with `turns.soon`.  In nsqd that is the
#         poller, which calls it in the same turn (net/poller.pyx).
# Rule 2: a scheduled call that finds nothing to do does nothing.
# Rule 3: a defect in one topic or channel does not stop the others.
#
# Slower work is done in rounds (engine/rounds.py).

from libc.stdint cimport INT64_MAX, int64_t

from penstock.clock cimport Clock
from penstock.engine.writer cimport TopicWriter

from penstock.core.latency import Histogram
from penstock.engine.scan import WALL_POLL_NS
from penstock.engine.writer import SYNC_SPACING_NS

cdef enum:
    # How long channels are served before the loop polls its sockets again.  Most take microseconds,
    # one with a backlog and many consumers a millisecond.
    PUMP_NS = 1_000_000

# Deferred publishes fired at once: reading their bodies back takes one or two milliseconds.
FIRE_COUNT_MAX = 256
FIRE_SIZE_MAX = 4 << 20


cdef class Turn:
    """The work for the end of this turn, and the timer for the next deadline."""

    def __init__(self, context, scan):
        self._turns = context.turns
        self._clock = context.clock
        self._supervisor = context.supervisor
        self._sync_every = context.options.sync_every
        self._scan = scan
        self.lateness = Histogram()
        self._dirty = []
        self._woken = []
        self._roomy = set()
        self._timer_ns = INT64_MAX

    def serve(self, deferred, by_instance):
        """Flush ``deferred``, which reports to this turn, and fire what is due into its topics."""
        self._deferred = deferred
        self._by_instance = by_instance

    def start(self):
        """Check all deadlines in this turn."""
        self._arm_wanted = True
        self.ask()

    def stop(self):
        """Shutdown has begun: nothing expires or fires any more."""
        if self._timer is not None:
            self._timer.cancel()

    # ---- work for this turn

    cpdef flush_later(self, topic):
        """Flush a topic, or its writer, in this turn; called once per batch."""
        self._dirty.append(topic)
        self.ask()

    cpdef wake(self, channel):
        """Call ``channel.pump()`` in this turn."""
        self._woken.append(channel)
        self.ask()

    cpdef watch(self, channel):
        """The channel's deadlines may have changed."""
        if self._scan.watch(channel):
            self._arm_wanted = True
            self.ask()

    def deferred_changed(self):
        self._deferred_dirty = True
        self.ask()

    def fire_soon(self):
        if not self._tick_asked:
            self._tick_asked = True
            self._turns.soon(self._tick)

    cpdef room_at(self, topic):
        """Something was finished in a topic in which something waits for room (R20)."""
        self._roomy.add(topic)
        self.fire_soon()

    def unfired(self, dues):
        """These could not be written to their topic's log: retry them soon."""
        self._deferred.failed(dues)
        self._arm_wanted = True
        self.ask()

    # ---- the turn

    cpdef run(self):
        """Do the work that was asked for; some may be asked for again meanwhile."""
        if not self.asked:
            return
        self._running = True
        try:
            if self._dirty:
                self.flush()
            if self._deferred_dirty:
                self._flush_deferred()
            if self._woken:
                self.pump()
            if self._arm_wanted:
                self._arm()
        finally:
            self._running = False
            self.asked = bool(
                self._dirty or self._woken or self._deferred_dirty or self._arm_wanted)
            if self.asked:
                self.schedule()

    cdef int ask(self) except -1:
        self.asked = True
        if not self._running:
            self.schedule()
        return 0

    cdef int schedule(self) except -1:
        if not self._scheduled:
            self._scheduled = True
            self._turns.soon(self._run_scheduled)
        return 0

    def _run_scheduled(self):
        self._scheduled = False
        self.run()

    cdef int flush(self) except -1:
        cdef list dirty = self._dirty
        cdef bint alone = len(dirty) == 1
        self._dirty = []
        for topic in dirty:
            try:
                if type(topic) is TopicWriter:
                    (<TopicWriter>topic).flush(alone)
                else:
                    topic.flush()
            except Exception:
                self._supervisor.defect(topic.name)
        return 0

    cdef int pump(self) except -1:
        cdef list woken = self._woken
        cdef Py_ssize_t served = 0
        cdef int64_t started_ns = self._clock.monotonic_ns()
        cdef int64_t now_ns = started_ns
        self._woken = []
        for channel in woken:
            try:
                channel.pump(now_ns)
            except Exception:
                self._supervisor.defect(channel.name)
            served += 1
            if served < len(woken):
                now_ns = self._clock.monotonic_ns()
                if now_ns - started_ns >= PUMP_NS:
                    self._woken = woken[served:] + self._woken
                    break
        return 0

    def _flush_deferred(self):
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

    def _fire_deferred(self):
        wall_ns = self._clock.wall_ns()
        if self._deferred.next_due_ns > wall_ns:
            return
        groups = {}
        for due in self._deferred.take(wall_ns, FIRE_COUNT_MAX, FIRE_SIZE_MAX):
            self.lateness.add(wall_ns - due.due_ns)
            groups.setdefault((due.instance, due.slot), []).append(due)
        for (instance, _), dues in groups.items():
            topic = self._by_instance.get(instance)
            if topic is None:
                self._deferred.void(dues)
            else:
                self._fire(topic, dues)

    def _fire(self, topic, dues):
        """Fire what the topic has room for; the rest waits."""
        room = topic.room(len(dues))
        if room:
            topic.fire(dues[:room])
        if room < len(dues):
            topic.park(dues[room:])

    def _use_room(self):
        roomy, self._roomy = self._roomy, set()
        for topic in roomy:
            topic.use_room()

    def _tick(self):
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = INT64_MAX
        self._tick_asked = False
        if self._supervisor.exiting:
            return
        self._arm_wanted = self.asked = True
        self._supervisor.guard("scan", self._scan.run)
        if self._roomy:
            self._supervisor.guard("bounds", self._use_room)
        self._supervisor.guard("deferred", self._fire_deferred)
        self.run()

    def _arm(self):
        """Set the timer to the next deadline."""
        cdef int64_t next_ns = self._scan.next_ns
        cdef int64_t due_ns = self._deferred.next_due_ns
        cdef int64_t wait_ns
        self._arm_wanted = False
        if due_ns < INT64_MAX:
            # The wall clock may be stepped.
            wait_ns = max(0, min(due_ns - self._clock.wall_ns(), <int64_t>WALL_POLL_NS))
            next_ns = min(next_ns, self._clock.monotonic_ns() + wait_ns)
        if next_ns < self._timer_ns and not self._supervisor.exiting:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ns = next_ns
            delay_ns = max(0, next_ns - self._clock.monotonic_ns())
            self._timer = self._turns.after(delay_ns, self._tick)
