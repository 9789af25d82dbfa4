# A client's TCP connection: its socket, commands, replies and messages, and its end.
#
#     socket  <->  [Upgrade]  <->  Scanner, Output  <->  Commands (nsqd/commands.py)
#
# The poller calls ready() and flush() in each turn (net/poller.pyx).  The scanner executes what runs
# per message; Commands executes the rest, in Python.
#
# Rule 1: commands run in order.  While one waits, none is executed; input is buffered.
# Rule 2: while too much input waits to be executed, or too much published data waits to be written,
#         the socket is not read.
# Rule 3: one client's commands run for a slice of time; the remainder of a packet is executed in
#         later turns, with other clients' in between.
# Rule 4: a client that does not read its replies is not read either: above a limit nothing more is
#         executed.  Commands without a reply still are: a consumer that reads large messages slowly
#         must get its FINs through, or they would time out.
# Rule 5: everything received is executed, even if the connection is lost before: a producer may
#         send and close.
# Rule 6: a client is disconnected when it completes no command for two heartbeat intervals
#         (silent), or reads none of its output for a while (stuck): for a heartbeat interval if its
#         output is full, as in nsqd, and for --client-write-timeout in any case, however little is
#         unsent.  One timer per client does all of it.

import logging
import os

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport INT64_MAX, int64_t, uint32_t
from libc.string cimport memset

from penstock.core.output cimport Output, iovec
from penstock.core.scanner cimport WORKED, Owed, Scanner
from penstock.core.window cimport Consumer
from penstock.net.lookout cimport monotonic_ns
from penstock.net.poller cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, Endpoint, Poller

from penstock.errors import ProtocolError, StreamError
from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S
from penstock.net.peer import set_up_peer
from penstock.nsqd.client_stats import client_stats
from penstock.nsqd.commands import Commands
from penstock.nsqd.upgrade import Upgrade
from penstock.wire import frames

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        void* msg_name
        iovec* msg_iov
        size_t msg_iovlen
    Py_ssize_t recv(int fd, void* buffer, size_t size, int flags)
    Py_ssize_t sendmsg(int fd, const msghdr* message, int flags)
    int shutdown(int fd, int how)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
        SHUT_WR

log = logging.getLogger("penstock.nsqd.client")

MAGIC = b"  V2"

cdef enum:
    INPUT_SIZE = 256 << 10
    # Input buffered while a command waits: above this the socket is not read.
    BUFFERED_SIZE_MAX = 1 << 20
    # Bytes of a topic, or of all deferred messages, that wait to be written: above this their
    # producers are not read.
    PENDING_SIZE_MAX = 8 << 20
    # What a client that waits for its replies does not send at once: above this, while the disk is
    # behind, it is not read.
    FLOOD_SIZE_MIN = 4 << 10
    # Output that the socket has not taken: above this the client gets no more messages, until it is
    # a quarter.
    OUTPUT_SIZE_MAX = 1 << 20
    OUTPUT_SIZE_LOW = OUTPUT_SIZE_MAX // 4
    # Replies added to an output that is already full, before nothing more is executed.
    REPLIES_SIZE_MAX = 64 << 10
    # How long one turn executes commands in Python for one client; the scanner has its own
    # limit.  Without it, a packet of 2,000 PUBs to new topics blocked the loop for seconds.
    SLICE_NS = 1_000_000
    # The buffered part of an incomplete command counts in the budget from this size on.  The end
    # of a packet of small messages is smaller.
    NOTED_SIZE_MIN = 4 << 10
    # What is still read from a lost connection: about what the kernel buffers.
    LEFT_READ_SIZE = 256 << 10
    LEFT_READ_COUNT_MAX = 24
    # Compressed input that is not decompressed yet: above this the socket is not read.
    PACKED_SIZE_MAX = 256 << 10
    VECTOR_COUNT_MAX = 64
    MS_NS = 1_000_000

# How long a refused client may continue to send before it is disconnected.
LINGER_S = 1.0
# How long a connection may take to send the magic, and then its first command; nsqd waits forever
# for the first, and as long as heartbeats allow for the second.
cdef int64_t FIRST_COMMAND_TIMEOUT_NS = int(FIRST_COMMAND_TIMEOUT_S * 1e9)

cdef bytes OK = frames.OK

# All clients receive into this buffer, one after the other, and copy what they have not executed at
# the end of their turn.  A bytes object per read would be one more copy of everything.
cdef bytearray INPUT = bytearray(INPUT_SIZE)


cdef class Client(Endpoint):
    """One client."""

    def __init__(self, services):
        context = services.components.context
        self._services = services
        self._loop = services.loop
        self._poller = services.poller
        self._clock = context.clock
        self._deferred = services.components.deferred.writer
        self._write_timeout_ns = context.options.client_write_timeout_ns
        self._fd = -1
        self._magic = b""
        self.host = self.remote_address = ""
        self.output = Output()
        self.commands = Commands(self, services)
        options = context.options
        self.scanner = Scanner(
            self.commands.appenders,
            self._settle,
            message_size_max=options.max_msg_size,
            body_size_max=options.max_body_size,
            ready_count_max=options.max_rdy_count,
            requeue_ms_max=options.max_req_timeout_ns // MS_NS,
            defer_ms_max=options.max_defer_ns // MS_NS,
            msg_timeout_max_ns=options.max_msg_timeout_ns,
        )
        self.scanner.tls_required = services.security.tls_required

    # ---- admission

    @property
    def sent_command(self):
        return self.scanner.command_count > 0

    @property
    def idle_since_s(self):
        """Never: heartbeats detect clients that are gone."""
        return float("inf")

    def evict(self):
        """Close at once, to make room for another."""
        self.abort()

    # ---- statistics

    @property
    def pub_counts(self):
        return self.scanner.pub_counts

    @property
    def command_count(self):
        return self.scanner.command_count

    def stats(self, topic):
        """What /stats shows; ``topic`` is the request's filter, or ""."""
        return client_stats(self, topic)

    # ---- the socket

    def open(self, socket):
        """Serve an accepted socket."""
        self.host, self.remote_address = set_up_peer(socket)
        self.commands.begin()
        self._socket = socket
        self._fd = socket.fileno()
        self._events = EPOLLIN
        self._poller.add(self._fd, self, EPOLLIN)
        self.connected = True
        self.connect_time = self._clock.wall_ns() // 1_000_000_000
        self._services.clients.connected.add(self)
        self._timer = self._loop.call_later(FIRST_COMMAND_TIMEOUT_S, self.abort)
        log.debug("client=%s: connected", self.remote_address)

    cdef int _update_events(self) except -1:
        cdef uint32_t events = 0
        if self._lost_asked or not self.connected:
            return 0
        if not (self._held or self._short or self._strained or self._ended or self._finishing):
            events = EPOLLIN
        if self.output.size:
            events |= self._events & EPOLLOUT
        if events != self._events:
            self._events = events
            self._poller.change(self._fd, events)
        return 0

    cdef int ready(self, uint32_t events, Py_ssize_t size_max) except -1:
        try:
            if events & EPOLLOUT:
                self.flush()
            if self._events & EPOLLIN:
                if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                    return self._receive(size_max)
            elif events & (EPOLLERR | EPOLLHUP):
                # epoll reports these again and again.
                self._lose(ConnectionResetError())
            elif not events & EPOLLOUT:
                return 0    # it is not being read
        except Exception:
            self._services.components.context.supervisor.defect(f"client={self.remote_address}")
            self.abort()
        return 1

    cdef int _receive(self, Py_ssize_t size_max) except -1:
        cdef Py_ssize_t size = recv(
            self._fd, PyByteArray_AS_STRING(INPUT), min(size_max, INPUT_SIZE), MSG_DONTWAIT)
        if size > 0:
            self._received(size)
        elif size == 0:
            self._eof()
        elif errno == EAGAIN or errno == EINTR:
            return 0
        else:
            self._lose(OSError(errno, os.strerror(errno)))
        return 1

    cdef int flush(self) except -1:
        cdef iovec[VECTOR_COUNT_MAX] vectors
        cdef msghdr message
        cdef Py_ssize_t size
        cdef Output output = self.output
        cdef bint full = False
        if self._lost_asked or not self.connected:
            return 0
        memset(&message, 0, sizeof(message))
        message.msg_iov = vectors
        while output.size and not full:
            message.msg_iovlen = output.fill(vectors, VECTOR_COUNT_MAX)
            size = sendmsg(self._fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if size >= 0:
                output.sent(size)
            elif errno == EAGAIN:
                full = True
            elif errno != EINTR:
                self._lose(OSError(errno, os.strerror(errno)))
                return 0
        if full != bool(self._events & EPOLLOUT):
            self._events ^= EPOLLOUT
            self._poller.change(self._fd, self._events)
        if not full:
            if self._finishing:
                self._lose(None)
            elif self._shutting:
                self._shutting = False
                shutdown(self._fd, SHUT_WR)
        if self.blocked and output.size <= OUTPUT_SIZE_LOW:
            self._unblock()
        return 0

    cdef int _lose(self, error) except -1:
        # The connection is lost: nothing more is read or sent, and _lost() is called soon.
        if not self._lost_asked and self.connected:
            self._lost_asked = True
            self._events = 0
            self._poller.remove(self._fd)
            self._loop.call_soon(self._lost, error)
        return 0

    def _lost(self, error):
        cdef bint shaking = self.upgrade is not None and self.upgrade.handshaking
        cdef bytes left = b""
        self.connected = False
        self._ended = True
        self._services.admission.remove(self)
        self._services.bodies.forget(self, self._loop.time())
        if self._timer is not None:
            self._timer.cancel()
        if self.consumer is not None:
            self.consumer.writable = False
        if self.upgrade is not None:
            self.upgrade.cancel()
        if error is not None and self._greeted and not self.closed and not shaking:
            left = self._read_left()
        self._socket.close()
        self._fd = -1
        self.output.clear()
        if self.closed or shaking:
            self._leave()
            return
        self.blocked = self._choked = False
        if self.upgrade is not None:
            self.upgrade.lose()
            self._unwrap(left)
        elif left:
            self.scanner.feed(left)
        if self.closed or self.is_busy():
            return
        if self.scanner.end != self.scanner.at:
            self._continue_later()
        else:
            self._end()

    def _read_left(self):
        """Read what the kernel had received before a reply found the connection closed."""
        cdef list parts = []
        try:
            for _ in range(LEFT_READ_COUNT_MAX):
                part = self._socket.recv(LEFT_READ_SIZE)
                if not part:
                    break
                parts.append(part)
        except OSError:
            pass
        return b"".join(parts)

    cdef int _leave(self) except -1:
        # The connection is lost, and no more of its commands will be executed.
        self.closed = True
        self._detach()
        if self.commands is None:
            return 0
        self.commands.end()
        self._services.clients.connected.discard(self)
        self._services.clients.left_command_count += self.scanner.command_count
        # Break reference cycles, so that no garbage collection is needed.
        self.scanner.drop_held()
        self.scanner.on_settled = None
        self.commands = self._parked = None
        log.debug("client=%s: disconnected", self.remote_address)
        return 0

    cdef int _close_socket(self) except -1:
        # Close when the output is sent.
        if self.upgrade is not None and not self.closed:
            self.upgrade.close()
        self.closed = True
        self._finishing = True
        if self.output.size:
            self._update_events()
            self._poller.flush_later(self)
            self._arm()     # it may not read
        else:
            self._lose(None)
        return 0

    def close(self):
        """Close after pending output is sent.

        The peer may still be sending.  Closing at once would reset the connection, and the peer
        might never read the last frame; so input is read and dropped for a moment.
        """
        if self.closed:
            return
        self.closed = True
        self._services.bodies.forget(self, self._loop.time())
        if not self.connected:
            self._leave()
            return
        self._detach()
        if self._timer is not None:
            self._timer.cancel()
        if self.upgrade is not None:
            self.upgrade.close()
        if self._ended or self._finishing or self._lost_asked:
            self._close_socket()
            return
        self._read_on()
        self._shutting = True
        self._poller.flush_later(self)
        self._timer = self._loop.call_later(LINGER_S, self.abort)

    def abort(self):
        """Close at once, without sending what is written."""
        self.closed = True
        if self.connected:
            self.output.clear()
            self._lose(None)
        else:
            self._leave()

    # ---- receiving

    cdef int _received(self, Py_ssize_t size) except -1:
        cdef Scanner scanner = self.scanner
        cdef const unsigned char* data = <const unsigned char*>PyByteArray_AS_STRING(INPUT)
        if self.closed:
            return 0
        if self.upgrade is not None:
            return self._unwrap(PyBytes_FromStringAndSize(<const char*>data, size))
        if not self._greeted:
            return self._greet(PyBytes_FromStringAndSize(<const char*>data, size))
        scanner.take_in(INPUT, data, size)
        if not self.is_stopped():
            self._run()
        scanner.keep_held(0)
        if scanner.end != scanner.at and not self.is_stopped():
            self._poller.expecting = True
        return self._hold_back(size)

    cdef int _greet(self, bytes data) except -1:
        # Remove the magic from the stream.
        self._magic += data
        if len(self._magic) < len(MAGIC) and MAGIC.startswith(self._magic):
            return 0
        data, magic = self._magic[4:], self._magic[:4]
        self._magic = b""
        if magic != MAGIC:
            self.fail(ProtocolError("E_BAD_PROTOCOL"))
            return 0
        self._greeted = True
        self._waiting_since_ns = self._clock.monotonic_ns()
        self._beat_ns = self._waiting_since_ns + self.heartbeat_ns
        self._arm()
        if data:
            self.scanner.feed(data)
            self._run()
            self._hold_back(len(data))
        return 0

    cdef int _eof(self) except -1:
        # The client sends no more: execute what it sent, and send the replies.
        self._ended = True
        self._update_events()
        if self.upgrade is not None and self.upgrade.handshaking:
            self._break("unexpected EOF")
        elif not self.is_busy():
            self._end()
        if not self.scanner.owed and not self.is_busy() and not self._lost_asked:
            self._close_socket()
        return 0

    cdef bint is_stopped(self) noexcept:
        # Whether received commands have to wait.
        return self.waiting or self._resting or self._choked

    cdef bint is_busy(self) noexcept:
        # Whether received commands are still to be executed.
        return self.is_stopped() or (self.upgrade is not None and self.upgrade.pending)

    cdef int _end(self) except -1:
        # The client sends no more, and everything it sent is executed.
        if not self.closed and self._greeted:
            failure = self.scanner.eof()
            if failure is not None:
                self._execute(failure)
        if not self.connected:
            if not self.is_stopped():
                self._leave()
        elif not self.scanner.owed and not self.is_stopped():
            self._close_socket()
        return 0

    cdef int _run(self) except -1:
        # Execute complete commands, until one has to wait or the slice ends.
        cdef Scanner scanner = self.scanner
        cdef int64_t now_ns = self._clock.monotonic_ns()
        cdef int64_t wall_ns = self._clock.wall_ns()
        cdef int64_t end_ns = monotonic_ns() + SLICE_NS
        self._running = True
        while not self.closed and not self.is_stopped():
            command = scanner.advance(now_ns, wall_ns)
            if command is None:
                break
            if command is WORKED:
                self._continue_later()
                break
            self._execute(command)
            wall_ns = self._clock.wall_ns()
            if not self.waiting and not self.closed and monotonic_ns() >= end_ns:
                self._continue_later()
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
                self._poller.expecting = True
        return 0

    cdef int _execute(self, command) except -1:
        # One command, after the replies of earlier publishes, unless it is a publish too.
        if self.scanner.owed and not self.commands.is_publish(command):
            self.waiting = True
            self._parked = command
        else:
            self.commands.execute(command)
        return 0

    def wait(self, ticket, then):
        """Call ``then``, and continue with later commands, when ``ticket`` is settled."""
        if ticket.done:
            then(ticket)
            return
        self.waiting = True

        def settled(ticket):
            if self.closed:
                return
            self.waiting = False
            try:
                then(ticket)
            except ProtocolError as failure:
                self.fail(failure)
            if not self.waiting:
                self._continue()

        ticket.add(settled)

    def _continue(self):
        """Continue with received commands."""
        self.waiting = False
        if not self.closed:
            self._run()
        if not self.is_stopped():
            self._read_on()
            if self._ended and not self.is_busy():
                self._end()

    cdef int _continue_later(self) except -1:
        self._resting = True
        self._loop.call_soon(self._resume)
        return 0

    def _resume(self):
        """Execute the next slice of received commands."""
        self._resting = False
        try:
            if not self.closed and not self.is_stopped():
                self._continue()
        except Exception:
            self._services.components.context.supervisor.defect(f"client={self.remote_address}")
            self.abort()

    cdef int _hold_back(self, Py_ssize_t size) except -1:
        # Pause reading while input cannot be executed or stored; ``size`` bytes were received.
        cdef Scanner scanner = self.scanner
        cdef bint full = self._choked or (
            self.is_stopped() and scanner.end - scanner.at > BUFFERED_SIZE_MAX)
        if scanner.owed and not full:
            full = ((scanner.last is not None and scanner.last.size > PENDING_SIZE_MAX)
                    or self._deferred.pending_size > PENDING_SIZE_MAX)
        if self.upgrade is not None and self.upgrade.pending:
            if not full and not self.is_stopped():
                self._unpack_soon()
            full = full or self.upgrade.pending_size > PACKED_SIZE_MAX
        if (size > FLOOD_SIZE_MIN and scanner.owed and scanner.last is not None
                and scanner.last.strained and not self._strained and not self.closed):
            self._strained = True
            scanner.last.hold(self._relieve)
            self._update_events()
        if full and not self._held and not self.closed and self.connected:
            self._held = True
            self._update_events()
        if self._noted or scanner.end - scanner.at > NOTED_SIZE_MIN:
            self._noted = scanner.end - scanner.at > NOTED_SIZE_MIN
            self._note_body()
        return 0

    def _relieve(self):
        """The disk has caught up."""
        self._strained = False
        self._waiting_since_ns = self._clock.monotonic_ns()
        self._update_events()

    cdef int _read_on(self) except -1:
        if self.upgrade is not None and self.upgrade.pending and not self.closed:
            self._unpack_soon()
        elif (self._held or self._short) and self.connected:
            self._held = False
            # Input that is dropped needs no memory.
            self._short = self._short and not self.closed
            # The time while nothing was read does not count as silence.
            self._waiting_since_ns = self._clock.monotonic_ns()
            self._update_events()
        return 0

    # ---- incomplete bodies

    cdef int _note_body(self) except -1:
        cdef Scanner scanner = self.scanner
        cdef bint gone = self.closed or not self.connected
        size = scanner.end - scanner.at if self._noted and not gone else 0
        self._services.bodies.note(self, size, scanner.wanted, self._loop.time())
        return 0

    def hold(self):
        self._short = True
        self._update_events()

    def release(self):
        self._short = False
        self._waiting_since_ns = self._clock.monotonic_ns()
        if not self.closed:
            self._update_events()

    def end_body(self, *, late):
        """Fail the command, as if the client had stopped sending there."""
        if late and (self.is_stopped() or self._held):
            return  # the delay is ours
        failure = self.scanner.eof()
        why = "is too late" if late else "has no room"
        log.info("client=%s: gave up, its body %s", self.remote_address, why)
        if failure is not None:
            self.fail(failure)
        else:
            self.abort()
        self.scanner.drop_held()

    # ---- replies

    cpdef write(self, bytes frame):
        """Send one or several complete frames, as a reply."""
        if self.closed or not self.connected:
            return
        if self.upgrade is not None:
            frame = self.upgrade.wrap((frame,))
        self.write_raw(frame)
        self._replied_size += len(frame)
        if self.blocked:
            self._choked = self._replied_size > REPLIES_SIZE_MAX

    cpdef write_raw(self, bytes data):
        """Send bytes as they are."""
        if self.connected:
            self.output.add_bytes(data, 0, len(data))
            self._added()

    def fail(self, failure):
        """Send the error to the client; close if it is fatal."""
        self.write(frames.error(failure))
        if failure.fatal:
            log.info("client=%s: %s", self.remote_address, failure)
            self.close()

    def _settle(self, _ticket):
        """Reply to publishes whose tickets are settled, in order."""
        cdef int64_t i, count = 0
        cdef Owed failed = self.scanner.take_settled(&count)
        if count and self.upgrade is not None:
            self.write(OK * count)
        elif count and self.connected and not self.closed:
            for i in range(count):
                self.output.add(PyBytes_AS_STRING(OK), len(OK))
            self._added()
            self._replied_size += count * len(OK)
            if self.blocked:
                self._choked = self._replied_size > REPLIES_SIZE_MAX
        if failed is not None or self._parked is not None or self._held or self._ended:
            self._settled(failed)

    def _settled(self, Owed failed):
        """Continue after replies: one failed, or a command or reading waited for them."""
        if self.closed:
            return
        if failed is not None:
            command, error = failed.command, failed.ticket.error
            self.fail(ProtocolError(f"E_{command}_FAILED", f"{command} failed {error}"))
            return
        if self.scanner.owed:
            return
        parked, self._parked = self._parked, None
        if parked is not None:
            self.waiting = False
            self.commands.execute(parked)
            if not self.waiting:
                self._continue()
        elif not self.is_stopped() and not self._running:
            self._continue()

    # ---- messages

    def subscribe(self, channel, Consumer consumer not None):
        """Receive the messages of ``channel``, as ``consumer``."""
        consumer.writable = not self.blocked and self.connected
        self.consumer = consumer
        self.channel = channel
        channel.join(consumer)

    cdef int _detach(self) except -1:
        # Leave the channel, which requeues the client's messages.
        channel, self.channel = self.channel, None
        if channel is not None and self.consumer is not None:
            self.scanner.consumer = None
            self.consumer.writable = False
            channel.leave(self.consumer)
        return 0

    def send(self, list parts not None):
        """Send messages, from the channel."""
        if self.closed or not self.connected:
            return
        if self.upgrade is not None:
            self.write_raw(self.upgrade.wrap(parts))
            return
        for part in parts:
            self.output.write(part)
        self._added()

    cdef int _added(self) except -1:
        # Something was added to the output.
        self._poller.flush_later(self)
        if self.output.size > OUTPUT_SIZE_MAX and not self.blocked:
            self._block()
        return 0

    cdef int _block(self) except -1:
        # The output is full: from now on the client must read some of it.
        self.blocked = True
        self._replied_size = 0
        self._unsent_size = self._unsent_mark = self.output.size
        self._taken_ns = self._clock.monotonic_ns()
        if self.consumer is not None:
            self.consumer.writable = False
        if self._greeted and not self.closed:
            self._arm()
        return 0

    cdef int _unblock(self) except -1:
        cdef bint choked = self._choked
        self.blocked = self._choked = False
        self._taken_ns = self._clock.monotonic_ns()
        if self.consumer is not None and self.channel is not None:
            self.consumer.writable = True
            self.channel.offer(self.consumer)
        if choked and not self.is_stopped() and not self.closed:
            self._continue()
        return 0

    # ---- heartbeats and timeouts

    def beat(self, int64_t interval_ns):
        """Send heartbeats at this interval from now on; 0: none."""
        self.heartbeat_ns = interval_ns
        self._beat_ns = self._clock.monotonic_ns() + interval_ns
        self._arm()

    def expect_within(self, int64_t interval_ns):
        """Disconnect the client if it is silent for twice this interval; 0: never."""
        self._silence_ns = interval_ns

    cdef int _arm(self) except -1:
        cdef int64_t now_ns, next_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.connected:
            return 0
        now_ns = self._clock.monotonic_ns()
        # Often enough to notice whether the unsent size shrinks.
        if self.blocked or self._unsent_size:
            next_ns = now_ns + self._patience_ns() // 4
        else:
            next_ns = now_ns + self._write_timeout_ns // 2
        if not self.closed:
            next_ns = min(next_ns, self._deadline_ns())
            if self.heartbeat_ns:
                next_ns = min(next_ns, self._beat_ns)
        self._timer = self._loop.call_later(max(0, next_ns - now_ns) / 1e9, self._beat)
        return 0

    cdef int64_t _deadline_ns(self) noexcept:
        # When a client that completes no command is disconnected.
        if (not self._silence_ns or self.is_stopped() or self._held or self._noted
                or self._strained):
            # An incomplete body has its own timeout (body_budget.py).
            return INT64_MAX
        if not self.scanner.command_count:
            return self._waiting_since_ns + FIRST_COMMAND_TIMEOUT_NS
        return self._waiting_since_ns + 2 * self._silence_ns

    cdef int64_t _patience_ns(self) noexcept:
        # How long a client may read none of its output: as in nsqd, a heartbeat interval.
        if self._silence_ns and self.blocked:
            return min(self._silence_ns, self._write_timeout_ns)
        return self._write_timeout_ns

    cdef bint _is_stuck(self, int64_t now_ns) noexcept:
        cdef int64_t size = self.output.size
        cdef int64_t before = self._unsent_mark
        self._unsent_size = size
        self._unsent_mark = size - self._replied_size
        # Only replies are added to a full output; otherwise messages are too.
        if (self._unsent_mark < before or (self._unsent_mark > before and not self.blocked)
                or not size):
            self._taken_ns = now_ns
        return now_ns - self._taken_ns >= self._patience_ns()

    def _beat(self):
        cdef int64_t now_ns = self._clock.monotonic_ns()
        if self._is_stuck(now_ns):
            self._services.clients.stuck_count += 1
            log.info("client=%s: gave up, it is stuck", self.remote_address)
            self.abort()
            return
        if not self.closed:
            if now_ns >= self._deadline_ns():
                log.info("client=%s: gave up, it is silent", self.remote_address)
                self.abort()
                return
            if self.heartbeat_ns and now_ns >= self._beat_ns:
                self._beat_ns += self.heartbeat_ns
                if self.upgrade is None or not self.upgrade.handshaking:
                    self.write(frames.HEARTBEAT)
        self._arm()

    # ---- TLS and compression

    def start_upgrade(self, settings):
        """Set up what IDENTIFY negotiated.

        Bytes received after IDENTIFY belong to the new stream.  nsqd loses them; executing them
        would let a man in the middle insert commands before those that TLS protects.
        """
        if not self.connected:
            self.close()
            return
        held = self.scanner.take_held()
        if self.upgrade is None:
            self.upgrade = Upgrade(self.write_raw, self._services.security.tls)
        self.upgrade.begin(settings, self._loop, self._too_late)
        self.waiting = self.upgrade.handshaking
        if held:
            self._unwrap(held)

    def _too_late(self):
        self._break("i/o timeout")

    cdef int _unwrap(self, bytes data) except -1:
        # As _received, for encrypted or compressed input.
        upgrade = self.upgrade
        cdef bint shaking = upgrade.handshaking
        try:
            clear = upgrade.receive(data)
        except StreamError as failure:
            self._break(str(failure))
            return 0
        if shaking and not upgrade.handshaking:
            self.scanner.tls_required = False
            self.waiting = False
            self._waiting_since_ns = self._clock.monotonic_ns()
        if clear:
            self.scanner.feed(clear)
            if not self.is_stopped():
                self._run()
        if self.closed:
            return 0
        self._hold_back(len(data))
        if not upgrade.pending:
            if not self.is_stopped() and not self.scanner.owed:
                self._read_on()
            if upgrade.ended or self._ended:
                self._eof()
        return 0

    cdef int _unpack_soon(self) except -1:
        # Continue in another turn with input that is too large to decompress in one.
        if not self._unpacking:
            self._unpacking = True
            self._loop.call_soon(self._unpack)
        return 0

    def _unpack(self):
        self._unpacking = False
        # If a command waits, _read_on calls this again.
        if not self.closed and not self.is_stopped():
            self._unwrap(b"")

    def _break(self, reason):
        """The stream cannot be decoded; an error can be sent only during the handshake."""
        upgrade = self.upgrade
        upgrade.cancel()
        upgrade.flush()
        if upgrade.handshaking:
            self.upgrade = None
            self.fail(ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason}"))
        else:
            log.info("client=%s: %s", self.remote_address, reason)
            self.close()
