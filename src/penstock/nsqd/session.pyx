# What a connection does for every packet and every reply: receive, execute, pause reading, reply.
#
# The subclasses (nsqd/stream.py, nsqd/tcp.py) have everything else of a connection, and the
# commands that the scanner does not execute itself.
#
# Rule 1: commands run in order.  While one waits, none is executed; input is buffered.
# Rule 2: while too much input waits to be executed, or too much published data waits to be written,
#         the socket is not read.
# Rule 3: one client's commands run for a slice of time; the remainder of a packet is executed in
#         later turns, with other clients' in between.
# Rule 4: a client that does not read its replies is not read either: above a limit nothing more is
#         executed.  Commands without a reply still are: a consumer that reads large messages slowly
#         must get its FINs through, or they would time out.

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t

from penstock.core.scanner cimport WORKED, Owed, Scanner
from penstock.net.lookout cimport monotonic_ns

cdef enum:
    INPUT_SIZE = 256 << 10
    # Input buffered while a command waits: above this the socket is not read.
    BUFFERED_SIZE_MAX = 1 << 20
    # Bytes of a topic, or of all deferred messages, that wait to be written: above this their
    # producers are not read.
    PENDING_SIZE_MAX = 8 << 20
    # Replies added to an output that is already full, before the client is choked.
    REPLIES_SIZE_MAX = 64 << 10
    # How long one turn executes commands in Python for one client; the scanner has its own
    # limit.  Without it, a packet of 2,000 PUBs to new topics blocked the loop for seconds.
    SLICE_NS = 1_000_000
    # The buffered part of an incomplete command counts in the budget from this size on.  The end
    # of a packet of small messages is smaller.
    NOTED_SIZE_MIN = 4 << 10

# All connections receive into this buffer, one after the other, and copy what they have not
# executed at the end of their turn.  A bytes object per read would be one more copy of everything.
cdef bytearray INPUT = bytearray(INPUT_SIZE)


cdef class Session:
    """One client's packets and replies."""

    # ---- implemented by the subclass

    def _received(self, bytes data):
        """Handle input before the first command, and encrypted or compressed input."""
        raise NotImplementedError

    def _execute_after_owed(self, command):
        """Execute one command, after the replies of earlier publishes."""
        raise NotImplementedError

    def _held_up(self, bint full):
        """Whether to pause reading, for an encrypted or compressed stream."""
        raise NotImplementedError

    def _rest_later(self):
        """Execute the remaining commands in a later turn."""
        raise NotImplementedError

    def _note_body(self):
        """Update the budget for bodies with the size of the incomplete command."""
        raise NotImplementedError

    def _settled(self, failed):
        """Continue after replies: one failed, or a command or reading waited for them."""
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
        """Whether received commands have to wait."""
        return self.is_stopped()

    cdef bint is_stopped(self) noexcept:
        return self._waiting or self._resting or self._choked

    cpdef _run(self):
        """Execute complete commands, until one has to wait or the slice ends."""
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
        """Pause reading while input cannot be executed or stored."""
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
        """Send one or several complete frames."""
        if not self._closed and self._transport is not None:
            if self._upgrade is not None:
                frame = self._upgrade.wrap((frame,))
            self._transport.write(frame)
            self._replied_size += len(frame)
            if self._blocked:
                self._choked = self._replied_size > REPLIES_SIZE_MAX

    def _settle(self, _ticket):
        """Reply to publishes whose tickets are settled, in order."""
        cdef Scanner scanner = self._scanner
        cdef int64_t count = 0
        cdef Owed failed = scanner.take_settled(&count)
        if count:
            self._write(self._ok if count == 1 else self._ok * count)
            self._lookout.answered()
        if failed is not None or self._parked is not None or self._held or self._ended:
            self._settled(failed)
