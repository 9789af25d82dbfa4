# Counts of pending deferred messages: by topic instance, by hour, and before a given stamp.
#
#     stamps   ----------|cut|------------------|cut|---------->
#     epochs      0              1                      2          each with its own counts by hour
#
# A cut is a stamp that counts are needed for: messages accepted before it are void (topic emptied)
# or skipped by a channel (channel emptied).  Counts before a cut are exact; nothing is kept per
# message.
#
# Rule 1: a cut is made before a message with a later stamp is counted: when a topic or channel is
#         emptied, and after a restart before counting starts.
# Rule 2: void messages are neither added nor removed; void_before() is called once an instance.

from bisect import bisect_left, bisect_right

from libc.stdint cimport int64_t, uint64_t

cdef int64_t HOUR_NS = 3_600_000_000_000


cdef class InstanceTally:
    """The counts of one topic instance."""

    def __init__(self, int64_t void_before):
        self.void_before = self.floor = void_before
        self.cuts = []
        self.hours = [{}]

    cdef int change(self, int64_t due_ns, int64_t stamp, int64_t step) except -1:
        cdef Py_ssize_t epoch = bisect_right(self.cuts, stamp) if self.cuts else 0
        cdef dict hours = self.hours[epoch]
        hour = due_ns // HOUR_NS
        count = hours.get(hour, 0) + step
        if count:
            hours[hour] = count
        else:
            del hours[hour]
        self.count += step
        if stamp > self.newest:
            self.newest = stamp
        return 0

    def cut(self, int64_t stamp):
        """Make ``before(stamp)`` exact from now on."""
        cdef Py_ssize_t epoch = bisect_left(self.cuts, stamp)
        if stamp <= self.floor or epoch < len(self.cuts) and self.cuts[epoch] == stamp:
            return
        if self.hours[epoch] and stamp <= self.newest:
            raise ValueError(f"cut at {stamp}, but {self.newest} is already counted")
        self.cuts.insert(epoch, stamp)
        self.hours.insert(epoch + 1, {})

    def before(self, int64_t stamp):
        """How many were accepted before ``stamp``, which is a cut."""
        cdef Py_ssize_t epoch, end = len(self.cuts)
        cdef int64_t total = 0
        if stamp <= self.floor:
            return 0
        if end and stamp <= self.cuts[end - 1]:
            end = bisect_left(self.cuts, stamp) + 1
        for epoch in range(end):
            total += sum((<dict>self.hours[epoch]).values())
        return total

    def purge(self, int64_t stamp):
        """Drop messages accepted before ``stamp``; return how many."""
        if stamp <= self.void_before:
            return 0
        self.cut(stamp)
        cdef int64_t dropped = self.before(stamp)
        cdef Py_ssize_t end = bisect_right(self.cuts, stamp)
        del self.cuts[:end]
        del self.hours[:end]
        self.count -= dropped
        self.void_before = stamp
        self.floor = max(self.floor, stamp)
        return dropped

    def prune(self):
        """Merge empty epochs with their neighbours; only after everything is counted.

        Without it there would be one more cut each time a channel is emptied.  Below the floor the
        count is 0; an empty epoch in the middle has the count of the one before it.
        """
        while self.cuts and not self.hours[0]:
            self.floor = max(self.floor, self.cuts.pop(0))
            self.hours.pop(0)
        cdef Py_ssize_t epoch
        for epoch in range(len(self.cuts) - 1, 0, -1):
            if not self.hours[epoch]:
                del self.cuts[epoch - 1]
                del self.hours[epoch]


cdef class Tallies:
    """The counts of all instances; ``void_before(instance)`` returns where valid stamps start."""

    def __init__(self, void_before):
        self.void_before = void_before
        self.tallies = {}
        self.sweep_at = 1000

    cdef InstanceTally tally(self, uint64_t instance):
        cdef InstanceTally tally
        if self.last is not None and self.last_instance == instance:
            return self.last
        tally = self.tallies.get(instance)
        if tally is None:
            if len(self.tallies) >= self.sweep_at:
                self.sweep()
            tally = self.tallies[instance] = InstanceTally(self.void_before(instance))
        self.last = tally
        self.last_instance = instance
        return tally

    cdef int change(self, uint64_t instance, int64_t due_ns, int64_t stamp, int64_t step) except -1:
        cdef InstanceTally tally = self.tally(instance)
        if stamp >= tally.void_before:
            tally.change(due_ns, stamp, step)
            self.total += step
        return 0

    cdef int sweep(self) except -1:
        # Instances are created and deleted; one without counts or cuts can be made again.
        self.tallies = {
            instance: tally
            for instance, tally in self.tallies.items()
            if (<InstanceTally>tally).count or (<InstanceTally>tally).cuts
        }
        self.last = None
        self.sweep_at = 1000 + 2 * len(self.tallies)
        return 0

    def add(self, uint64_t instance, int64_t due_ns, int64_t stamp):
        self.change(instance, due_ns, stamp, 1)

    def remove(self, uint64_t instance, int64_t due_ns, int64_t stamp):
        self.change(instance, due_ns, stamp, -1)

    def count(self, uint64_t instance):
        cdef InstanceTally tally = self.tallies.get(instance)
        return 0 if tally is None else tally.count

    def before(self, uint64_t instance, int64_t stamp):
        cdef InstanceTally tally = self.tallies.get(instance)
        return 0 if tally is None else tally.before(stamp)

    def void_stamp(self, uint64_t instance):
        """Messages of ``instance`` with a lower stamp are void."""
        return self.tally(instance).void_before

    def cut(self, uint64_t instance, int64_t stamp, bint counted):
        cdef InstanceTally tally = self.tally(instance)
        if counted and len(tally.cuts) >= 16:
            tally.prune()
        tally.cut(stamp)

    def purge(self, uint64_t instance, int64_t stamp):
        cdef int64_t dropped = self.tally(instance).purge(stamp)
        self.total -= dropped
        return dropped

    def due_hours(self, uint64_t instance):
        """Pending messages of one instance by the hour in which they are due."""
        cdef InstanceTally tally = self.tallies.get(instance)
        cdef dict total = {}
        for hours in tally.hours if tally is not None else ():
            for hour, count in (<dict>hours).items():
                total[hour] = total.get(hour, 0) + count
        return dict(sorted(total.items()))
