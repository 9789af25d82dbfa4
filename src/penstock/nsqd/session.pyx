# What a connection does for every packet and every reply: receive, execute, hold back, answer.
#
# The class on top (nsqd/stream.py) has the rest of a connection's life, and the commands that the
# scanner does not execute itself.
#
# Rule 1: commands run in order.  While one waits, nothing is executed; what comes is kept.
# Rule 2: while what was received cannot be executed, or what was published cannot be written, and
#         either is more than a bound, the socket is not read.
# Rule 3: one client's commands hold the loop for a slice of time; the rest of a packet is executed
#         in later turns, with everybody else's in between.
# Rule 4: a client that does not read its replies is not read either: past a bound nothing more is
#         executed.  Commands that have no reply go on being so: a consumer that is slow to read
#         large messages must get its FINs through, or they would time out.

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t

from penstock.core.scanner cimport WORKED, Owed, Scanner
from penstock.net.lookout cimport monotonic_ns

cdef enum:
    INPUT_SIZE = 256 << 10
    # Received and not yet executed, while a command waits: past this the socket is not read.
    BUFFERED_SIZE_MAX = 1 << 20
    # Bytes of a topic, or of all deferred messages, that may wait to be written before whoever
    # publishes more is held back.
    PENDING_SIZE_MAX = 8 << 20
    # Replies added to an output that is full already, before the client is choked.
    REPLIES_SIZE_MAX = 64 << 10
    # How long one turn executes commands in Python for one client; the scanner counts its own.
    # Unsliced, a packet of 2,000 PUBs to new topics held the loop for seconds.
    SLICE_NS = 1_000_000
    # What is kept of an unfinished command counts from here on.  The end of a packet full of small
    # messages is less.
    NOTED_SIZE_MIN = 4 << 10

# All connections receive here, one after the other: what one has not executed when its turn is over
# it copies.  A bytes object for each read would be one more copy of everything published.
cdef bytearray INPUT = bytearray(INPUT_SIZE)


cdef class Session:
    """One client's packets and replies."""

    # ---- what the class on top does

    def _received(self, bytes data):
        """Take in what comes before the first command, encrypted or compressed."""
        raise NotImplementedError

    def _execute_after_owed(self, command):
        """Execute one command, after the replies that are owed for earlier ones."""
        raise NotImplementedError

    def _held_up(self, bint full):
        """Whether to read on, for a stream that is encrypted or compressed."""
        raise NotImplementedError

    def _rest_later(self):
        """Have the commands that are left executed in a later turn."""
        raise NotImplementedError

    def _note_body(self):
        """Note in the budget for bodies what is kept of one that is not whole."""
        raise NotImplementedError

    def _settled(self, failed):
        """Go on after replies: one failed, a command waited for them, or reading did."""
        raise NotImplementedError

    # ---- receiving

    def get_buffer(self, sizehint):
        return INPUT

    def buffer_updated(self, Py_ssize_t nbytes):
        cdef Scanner scanner = self._scanner
        cdef const unsigned char* data = <const unsigned char*>PyByteArray_AS_STRING(INPUT)
        if self._closed:
            return
        self._lookout.heard(self._fd)
        if self._upgrade is not None or not self._greeted:
            self._received(PyBytes_FromStringAndSize(<const char*>data, nbytes))
            return
        scanner.take_in(INPUT, data, nbytes)
        if not self.is_stopped():
            self._run()
        scanner.keep_held(0)
        if scanner.end != scanner.at and not self.is_stopped():
            self._lookout.expect()
        self._hold_back()

    @property
    def _stopped(self):
        """Whether what was received has to wait."""
        return self.is_stopped()

    cdef bint is_stopped(self) noexcept:
        return self._waiting or self._resting or self._choked

    cpdef _run(self):
        """Execute what is complete, up to a command that has to wait or the end of the slice."""
        cdef Scanner scanner = self._scanner
        cdef int64_t now_ns = self._clock.monotonic_ns()
        cdef int64_t end_ns = monotonic_ns() + SLICE_NS
        self._running = True
        while not self._closed and not self.is_stopped():
            command = scanner.advance(now_ns, self._clock.wall_ns())
            if command is None:
                break
            if command is WORKED:
                self._rest_later()
                break
            self._execute_after_owed(command)
            if not self._waiting and not self._closed and monotonic_ns() >= end_ns:
                self._rest_later()
        self._running = False
        if self._noted and scanner.end - scanner.at <= NOTED_SIZE_MIN:
            self._noted = False
            self._note_body()
        if scanner.progressed:
            scanner.progressed = False
            self._waiting_since_ns = now_ns
        if scanner.answered:
            scanner.answered = False
            if self.channel is not None and self.consumer is not None:
                self.channel.offer(self.consumer)
                self._lookout.answered()

    cpdef _hold_back(self):
        """Do not read on while what was read cannot be executed or stored."""
        cdef Scanner scanner = self._scanner
        cdef bint full = self._choked or (
            self.is_stopped() and scanner.end - scanner.at > BUFFERED_SIZE_MAX)
        if scanner.owed and not full:
            full = ((scanner.last is not None and scanner.last.size > PENDING_SIZE_MAX)
                    or self._deferred.pending_size > PENDING_SIZE_MAX)
        if self._upgrade is not None:
            full = self._held_up(full)
        if full and not self._held and not self._closed and self._transport is not None:
            self._held = True
            self._transport.pause_reading()
        if self._noted or scanner.end - scanner.at > NOTED_SIZE_MIN:
            self._noted = scanner.end - scanner.at > NOTED_SIZE_MIN
            self._note_body()

    # ---- answering

    cpdef _write(self, bytes frame):
        """Send one frame or several, whole."""
        if not self._closed and self._transport is not None:
            if self._upgrade is not None:
                frame = self._upgrade.wrap((frame,))
            self._transport.write(frame)
            self._replied_size += len(frame)
            if self._blocked:
                self._choked = self._replied_size > REPLIES_SIZE_MAX

    def _settle(self, _ticket):
        """Answer the publishes whose tickets are settled, in the order they came."""
        cdef Scanner scanner = self._scanner
        cdef int64_t count = 0
        cdef Owed failed = scanner.take_settled(&count)
        if count:
            self._write(self._ok if count == 1 else self._ok * count)
            self._lookout.answered()
        if failed is not None or self._parked is not None or self._held or self._ended:
            self._settled(failed)
