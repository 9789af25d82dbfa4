# The bound of a topic: how much it may hold, and what happens to publishes above that (R20).
#
#     publish --> Appender.refuse: below its limits?  yes: accepted, two comparisons
#                                                     no:  judge() counts, and sets new limits
#
# Messages are those that the fullest channel has queued, in flight or deferred, with those that the
# topic holds back and those that are being written.  Bytes are those of files that retention alone
# does not keep, and where publishes are refused also of those that many buried messages keep: to
# drop other messages would not free them (retention/unfinished.py).  Both rise by publishes, so a
# count taken once says how many more may come before the next one: a topic far below its bound is
# counted rarely, one at its bound for each publish.  Then one look at the fullest channel is enough
# to refuse.  Bytes may also rise without a publish, when messages are buried: they are counted
# again each second.
#
# Rule 1: no OK is given for a message that is not stored, whatever the limits are.
# Rule 2: a batch may pass the bound; the publishes after it are refused.
# Rule 3: a finish makes room for one publish.  There is no low mark below which a full topic must
#         fall first.
# Rule 4: with drop-oldest nothing is refused.  Whole files are dropped, the oldest first, which are
#         an eighth of the bound each; all durable channels move past them.
# Rule 5: nothing is counted per message: the plain path compares two numbers.

from libc.stdint cimport INT64_MAX, int64_t

from penstock.core.appender cimport Appender
from penstock.core.ticket cimport Ticket
from penstock.core.window cimport Window
from penstock.engine.channel cimport Channel

import logging

from penstock.engine.disk import failed
from penstock.errors import TopicFullError
from penstock.settings.policy import DROP_OLDEST
from penstock.storage.log_reader import locate

log = logging.getLogger(__name__)

# A topic at its bound refuses and accepts by turns.  It is full until nothing was refused or dropped
# for so long, for the log.
EPISODE_NS = 10_000_000_000
# The parts that a bound is divided into, each a file, and the smallest useful file.
SHARES = 8
SIZE_MIN = 4096
# Bytes become fewer only when files go, so they are counted no more often than this while full.
SIZE_INTERVAL_NS = 10_000_000

# Messages that wait for room which are let go at once.
ROOM_COUNT_MAX = 4096

MAX_MESSAGES, MAX_BYTES = "max_messages", "max_bytes"

_REFUSALS = {key: failed(TopicFullError(key)) for key in (MAX_MESSAGES, MAX_BYTES)}


cdef class Bound:
    """What one durable topic may hold."""

    def __init__(self, topic):
        shared = topic.shared
        self._topic = topic
        self._episodes = shared.episodes
        self._writer = topic.writer
        self._appender = topic.appender
        self._feed = topic.feed
        self._clock = shared.context.clock
        self._deferred = shared.deferred
        self._waiters = []
        self.count_max = self.size_max = INT64_MAX
        self._size_ns = -SIZE_INTERVAL_NS
        self._appender.judge = self.judge

    def apply(self, policy):
        """The topic's policy has changed."""
        self.count_max = policy.max_messages or INT64_MAX
        self.size_max = policy.max_bytes or INT64_MAX
        cdef Appender appender = self._appender
        self.bounded = self.count_max < INT64_MAX or self.size_max < INT64_MAX
        self._end()
        appender.dropping = self.bounded and policy.overflow == DROP_OLDEST
        appender.bounded = self.bounded and not appender.dropping
        self.stale()
        self._size_ns = self._clock.monotonic_ns() - SIZE_INTERVAL_NS
        # Files go as a whole: so that room comes, and messages go, in eighths.
        size = count = INT64_MAX
        if self.size_max < INT64_MAX:
            size = max(SIZE_MIN, self.size_max // SHARES)
        if self.count_max < INT64_MAX and appender.dropping:
            count = max(1, self.count_max // SHARES)
        self._topic.log.bound_segments(size, count)
        if self.size_max < INT64_MAX:
            self._episodes.add(self)
        if appender.dropping and self._writer._open:
            self.overflow()
        elif appender.dropping:  # a start restores the channels first
            self._topic.shared.context.turns.soon(self._overflow_open)
        self.use_room()

    def stale(self):
        """Something other than a publish has added messages: count again before the next one."""
        self._appender.index_limit = self._appender.size_limit = 0

    @property
    def unfinished_count(self):
        """The messages that ``max_messages`` is about."""
        cdef Channel channel
        cdef int64_t most = 0
        for channel in self._feed.channels.values():
            most = max(most, self.load(channel))
        return most + self.coming()

    cpdef bint judge(self) except -1:
        """Whether a publish is refused now; if not, set the limits below which none is."""
        cdef str key = self.reached()
        if key is None:
            return False
        self._appender.refusal = _REFUSALS[key]
        self._full(key, "publishes are refused")
        return True

    def _full(self, key, what):
        self._full_ns = self._clock.monotonic_ns()
        if not self.full:
            self.full = True
            self._counted = self._given_up_count()
            self._episodes.add(self)
            log.warning("topic=%s: full (%s), %s", self._topic.name, key, what)

    def _given_up_count(self):
        return self.dropped_count if self._appender.dropping else self._appender.refused_count

    # ---- what was accepted earlier, and waits for room

    def room(self):
        """How many messages may be appended that were accepted earlier: they go first."""
        cdef int64_t most = 0
        cdef Channel channel
        if self.size_max < INT64_MAX and self.over_size():
            return 0
        if self.count_max == INT64_MAX:
            return ROOM_COUNT_MAX
        for channel in self._feed.channels.values():
            most = max(most, self.load(channel))
        return max(0, self.count_max - most - self.arriving() - self._writer.fired_count())

    def wait(self, waiter=None):
        """Something waits for room; ``waiter`` is called when there is some."""
        self._feed.room_wanted = True
        if waiter is not None:
            self._waiters.append(waiter)
        self._episodes.add(self)

    def use_room(self):
        """Let what waits have the room that there is."""
        instance = self._topic.instance
        count = min(self.room() if self._appender.bounded else ROOM_COUNT_MAX, ROOM_COUNT_MAX)
        if count <= 0 or not self._feed.room_wanted:
            return
        self._deferred.unpark(instance, count)
        self._feed.room_wanted = self._deferred.parked.waiting(instance) > 0
        self._release()

    def _release(self):
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    # ---- drop-oldest

    def _overflow_open(self):
        if self._appender.dropping and not self._topic.closed:
            self.overflow()

    def overflow(self):
        """Drop the oldest files until the topic is within its bound; the newest one stays.

        The writer calls it after a batch that reached a limit.
        """
        cdef int64_t end, count
        while True:
            key = self._over()
            end = 0 if key is None else self._oldest_end()
            if not end:
                break
            self._full(key, "the oldest messages are dropped")
            count = self.unfinished_count
            self._topic.drop_below(end)
            self.dropped_count += max(0, count - self.unfinished_count)

    def _over(self):
        # The key of the bound that is passed, or None; sets the limits for the next batches.
        cdef int64_t count, size
        if self.count_max < INT64_MAX:
            count = self.unfinished_count
            self._appender.index_limit = self._feed.shown_end + self.count_max - count + 1
            if count > self.count_max:
                return MAX_MESSAGES
        else:
            self._appender.index_limit = INT64_MAX
        if self.size_max < INT64_MAX:
            size = self._topic.unfinished_size
            self._appender.size_limit = self._appender.sealed_size + self.size_max - size + 1
            if size > self.size_max:
                return MAX_BYTES
        else:
            self._appender.size_limit = INT64_MAX
        return None

    def _oldest_end(self):
        # The end of the oldest file with unfinished messages; 0 if that is the newest file.
        files = self._topic.log.files
        place = locate(files, self._topic.low())
        if place >= len(files) - 1 or files[place].visible.end > self._feed.shown_end:
            return 0
        return files[place].visible.end

    # ---- counting

    cdef str reached(self):
        # The key of the bound that is reached, or None.
        if self.count_max == INT64_MAX:
            self._appender.index_limit = INT64_MAX
        elif self.over_count():
            return MAX_MESSAGES
        if self.size_max == INT64_MAX:
            self._appender.size_limit = INT64_MAX
        elif self.over_size():
            return MAX_BYTES
        return None

    cdef bint over_count(self) except -1:
        cdef int64_t coming = self.coming(), most = 0, count
        cdef Channel channel, fullest = self._fullest
        if (fullest is not None and not fullest.closed
                and self.load(fullest) + coming >= self.count_max):
            return True
        for channel in self._feed.channels.values():
            count = self.load(channel)
            if count >= most:
                most = count
                self._fullest = channel
        self._appender.index_limit = (
            self._appender.first + self._appender.count + self.count_max - most - coming)
        return most + coming >= self.count_max

    cdef bint over_size(self) except -1:
        cdef int64_t now_ns = self._clock.monotonic_ns(), room
        if now_ns - self._size_ns < SIZE_INTERVAL_NS:
            return True
        room = (self.size_max - self._topic.unfinished_size - self._topic.buried_size
                - self._writer.unshown_size)
        self._appender.size_limit = self._appender.sealed_size + room
        if room > self._appender.size:
            return False
        self._size_ns = now_ns
        return True

    cdef int64_t load(self, Channel channel) except -1:
        # Messages that the channel has not finished.  An ephemeral one drops what is too much for
        # it (R15): a slow nsq_tail does not stop publishers.
        cdef Window window = channel.window
        if channel.plain:
            return window.queued_count + window.unfinished_count
        return channel.depth if channel.pulled else 0

    cdef int64_t arriving(self) noexcept:
        # Messages that all channels will have.
        return self._feed.held_count + self._writer.unshown_count + self._appender.count

    cdef int64_t coming(self) except -1:
        # With those that wait for room: publishes come after them.
        if not self._feed.room_wanted:
            return self.arriving()
        return self.arriving() + <int64_t>self._deferred.parked.waiting(self._topic.instance)

    def check(self):
        """Whether there is anything to check again; called once a second."""
        if self._topic.closed:
            self._release()
        elif self._feed.room_wanted:
            self.use_room()
        if self.size_max < INT64_MAX:
            self._appender.size_limit = 0
        if self.full and self._clock.monotonic_ns() - self._full_ns >= EPISODE_NS:
            self._end()
        lasting = self.full or self._feed.room_wanted or self.size_max < INT64_MAX
        return lasting and not self._topic.closed

    def _end(self):
        if self.full:
            self.full = False
            log.info(
                "topic=%s: is not full any more, %d %s",
                self._topic.name,
                self._given_up_count() - self._counted,
                "messages were dropped" if self._appender.dropping else "publishes were refused",
            )
