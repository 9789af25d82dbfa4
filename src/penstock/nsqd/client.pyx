# A client's TCP connection: its socket, commands, replies and messages, and its end.
#
#     Stream  <->  [Upgrade]  <->  Scanner, Output  <->  Commands (nsqd/commands.py)
#
# The stream (net/stream.pyx) calls received() with each packet and sends the output at the end of a
# turn.  The scanner executes what runs per message; Commands executes the rest, in Python.
#
#     MAGIC -> OPEN <-> UPGRADING      commands are executed
#                |
#              ENDING                  the client sends no more; what it sent is executed
#                |
#            FINISHING, LINGERING      nothing is executed; what is written is sent
#                |
#              CLOSED
#
# What a client may do while OPEN depends on its scanner and its permit: docs/connections.md has all
# states, and TRANSITIONS is the part of them that this class changes.
#
# Rule 1: commands run in order.  While one waits, none is executed; input is buffered.
# Rule 2: while too much input waits to be executed, or too much published data waits to be written,
#         the socket is not read.
# Rule 3: one client's commands run for a slice of time, which is shorter if many are active; the
#         remainder of a packet is executed in later turns, with other clients' in between.
# Rule 4: a client that does not read its replies is not read either: above a limit nothing more is
#         executed.  Commands without a reply still are: a consumer that reads large messages slowly
#         must get its FINs through, or they would time out.
# Rule 5: everything received is executed, even if the connection is lost before: a producer may
#         send and close.
# Rule 6: a client that is silent or stuck is disconnected (nsqd/liveness.pyx).  One timer does that
#         and the heartbeats.

import logging

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t

from penstock.core.scanner cimport WORK_COUNT_MAX, WORKED, Owed, Scanner
from penstock.core.window cimport Consumer
from penstock.net.lookout cimport monotonic_ns
from penstock.net.stream cimport Link, Stream, Then
from penstock.nsqd.liveness cimport Liveness

from penstock.errors import ProtocolError, StreamError, TopicFullError
from penstock.net.admission import FIRST_COMMAND_TIMEOUT_S
from penstock.net.peer import set_up_peer
from penstock.nsqd.client_stats import client_stats
from penstock.nsqd.commands import Commands
from penstock.nsqd.upgrade import Upgrade
from penstock.wire import frames

log = logging.getLogger("penstock.nsqd.client")

GREETING = b"  V2"

cdef enum:
    # Input buffered while a command waits: above this the socket is not read.
    BUFFERED_SIZE_MAX = 1 << 20
    # Bytes of a topic, or of all deferred messages, that wait to be written: above this their
    # producers are not read.
    PENDING_SIZE_MAX = 8 << 20
    # Batches that a client waits for, one for each topic it publishes to: above this it is not read.
    OWED_COUNT_MAX = 1024
    # What a client that waits for its replies does not send at once: above this, while the disk is
    # behind, it is not read.
    FLOOD_SIZE_MIN = 4 << 10
    # Replies added to an output that is already full, before nothing more is executed.
    REPLIES_SIZE_MAX = 64 << 10
    # Input buffered for the next slice.
    LEFT_SIZE_MAX = 64 << 10
    # How long one turn executes commands in Python for one client; the scanner has its own
    # limit.  Without it, a packet of 2,000 PUBs to new topics blocked the loop for seconds.
    SLICE_NS = 1_000_000
    # Commands in one turn of each of many clients.
    WORK_COUNT_MIN = 512
    # The buffered part of an incomplete command counts in the budget from this size on.  The end
    # of a packet of small messages is smaller.
    NOTED_SIZE_MIN = 4 << 10
    # Compressed input that is not decompressed yet: above this the socket is not read.
    PACKED_SIZE_MAX = 256 << 10
    MS_NS = 1_000_000

# How long a refused client may continue to send before it is disconnected.
LINGER_S = 1.0
cdef bytes OK = frames.OK

# From each phase, those that may follow.
cdef dict NEXT = {
    Phase.MAGIC: {Phase.OPEN, Phase.LINGERING, Phase.CLOSED},
    Phase.OPEN: {Phase.UPGRADING, Phase.ENDING, Phase.LINGERING, Phase.CLOSED},
    Phase.UPGRADING: {Phase.OPEN, Phase.LINGERING, Phase.CLOSED},
    Phase.ENDING: {Phase.FINISHING, Phase.CLOSED},
    Phase.LINGERING: {Phase.FINISHING, Phase.CLOSED},
    Phase.FINISHING: {Phase.CLOSED},
    Phase.CLOSED: set(),
}
TRANSITIONS = frozenset([
    (Phase(before).name, Phase(after).name) for before, following in NEXT.items() for after in following
])


cdef class Client(Stream):
    """One client."""

    def __init__(self, services):
        context = services.components.context
        Stream.__init__(self, services.loop, services.poller)
        self._services = services
        self._clock = context.clock
        self._deferred = services.components.deferred.writer
        self.liveness = Liveness(context.options.client_write_timeout_ns)
        self._magic = b""
        self.host = self.remote_address = ""
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
        self.attach(socket)
        self.connect_time = self._clock.wall_ns() // 1_000_000_000
        self._services.clients.connected.add(self)
        self._timer = self._loop.call_later(FIRST_COMMAND_TIMEOUT_S, self.abort)
        log.debug("client=%s: connected", self.remote_address)

    cdef int enter(self, Phase phase) except -1:
        assert phase in NEXT[self.phase], f"{self.phase} to {phase}"
        self.phase = phase
        return 0

    cdef bint is_closed(self) noexcept:
        # Whether no command is executed any more.
        return self.phase >= Phase.FINISHING

    cdef bint is_read(self) noexcept:
        if self._held or self._short or self._strained:
            return False
        return self.phase < Phase.ENDING or self.phase == Phase.LINGERING

    cdef int defect(self) except -1:
        self._services.components.context.supervisor.defect(f"client={self.remote_address}")
        self.abort()
        return 0

    cdef int lost(self, error) except -1:
        cdef bint shaking = self.phase == Phase.UPGRADING
        cdef bint left_out = self.is_closed() or shaking or self.phase == Phase.MAGIC
        cdef bytes left = b""
        self._services.admission.remove(self)
        self._services.bodies.forget(self, self._loop.time())
        if self._timer is not None:
            self._timer.cancel()
        if self.consumer is not None:
            self.consumer.writable = False
        if self.upgrade is not None:
            self.upgrade.cancel()
        if error is not None and not left_out:
            left = self.read_left()
        self.close_socket()
        if left_out:
            self._leave()
            return 0
        if self.phase < Phase.ENDING:
            self.enter(Phase.ENDING)
        self._choked = False
        if self.upgrade is not None:
            self.upgrade.lose()
            self._unwrap(left)
        elif left:
            self.scanner.feed(left)
        if self.is_closed() or self.is_busy():
            return 0
        if self.scanner.end != self.scanner.at:
            self._continue_later()
        else:
            self._end()
        return 0

    cdef int _leave(self) except -1:
        # The connection is lost, and no more of its commands will be executed.
        if self.phase != Phase.CLOSED:
            self.enter(Phase.CLOSED)
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

    cdef int _finish(self) except -1:
        # Close when the output is sent.
        if self.is_closed():
            if self.phase != Phase.LINGERING:
                return 0
        elif self.upgrade is not None:
            self.upgrade.close()
        if self.output.size and self.link == Link.OPEN:
            self.enter(Phase.FINISHING)
            self.then = Then.LOSE
            self.update_events()
            self._poller.flush_later(self)
            self._arm()     # it may not read
        else:
            self.enter(Phase.CLOSED)
            self.lose(None)
        return 0

    def close(self):
        """Close after pending output is sent.

        The peer may still be sending.  Closing at once would reset the connection, and the peer
        might never read the last frame; so input is read and dropped for a moment.
        """
        if self.is_closed():
            return
        self._services.bodies.forget(self, self._loop.time())
        if not self.is_connected():
            self._leave()
            return
        self._detach()
        if self._timer is not None:
            self._timer.cancel()
        if self.phase == Phase.ENDING or self.link == Link.LOSING:
            self._finish()
            return
        if self.upgrade is not None:
            self.upgrade.close()
        self.enter(Phase.LINGERING)
        self._read_on()
        self.then = Then.SHUT
        self._poller.flush_later(self)
        self._timer = self._loop.call_later(LINGER_S, self.abort)

    def abort(self):
        """Close at once, without sending what is written."""
        if self.phase != Phase.CLOSED:
            self.enter(Phase.CLOSED)
        if self.is_connected():
            self.output.clear()
            self.lose(None)
        else:
            self._leave()

    # ---- receiving

    cdef int received(self, bytearray buffer, const unsigned char* data, Py_ssize_t size) except -1:
        cdef Scanner scanner = self.scanner
        if self.is_closed():
            return 0
        if self.upgrade is not None:
            return self._unwrap(PyBytes_FromStringAndSize(<const char*>data, size))
        if self.phase == Phase.MAGIC:
            return self._greet(PyBytes_FromStringAndSize(<const char*>data, size))
        scanner.take_in(buffer, data, size)
        if not self.is_stopped():
            self._run()
        scanner.keep_held(0)
        if scanner.end != scanner.at and not self.is_stopped():
            self._poller.expecting = True
        return self._hold_back(size)

    cdef int _greet(self, bytes data) except -1:
        # Remove the magic from the stream.
        self._magic += data
        if len(self._magic) < len(GREETING) and GREETING.startswith(self._magic):
            return 0
        data, magic = self._magic[4:], self._magic[:4]
        self._magic = b""
        if magic != GREETING:
            self.fail(ProtocolError("E_BAD_PROTOCOL"))
            return 0
        self.enter(Phase.OPEN)
        self.liveness.waiting_since_ns = self._clock.monotonic_ns()
        self.beat(self.liveness.heartbeat_ns)
        if data:
            self.scanner.feed(data)
            self._run()
            self._hold_back(len(data))
        return 0

    cdef int ended(self) except -1:
        # The client sends no more: execute what it sent, and send the replies.
        if self.phase == Phase.UPGRADING:
            self._break("unexpected EOF")
        if self.phase == Phase.MAGIC or self.phase == Phase.LINGERING:
            return self._finish()
        if self.phase < Phase.ENDING:
            self.enter(Phase.ENDING)
            self.update_events()
        if not self.is_busy():
            self._end()
        return 0

    cdef bint is_stopped(self) noexcept:
        # Whether received commands have to wait.
        return self.waiting or self._resting or self._choked

    cdef bint is_busy(self) noexcept:
        # Whether received commands are still to be executed.
        return self.is_stopped() or (self.upgrade is not None and self.upgrade.pending)

    cdef int _end(self) except -1:
        # The client sends no more, and everything it sent is executed.
        if not self.is_closed():
            failure = self.scanner.eof()
            if failure is not None:
                self._execute(failure)
        if not self.is_connected():
            if not self.is_stopped():
                self._leave()
        elif not self.scanner.owed and not self.is_stopped():
            self._finish()
        return 0

    cdef int _run(self) except -1:
        # Execute complete commands, until one has to wait or the slice ends.
        cdef Scanner scanner = self.scanner
        cdef int64_t now_ns = self._clock.monotonic_ns()
        cdef int64_t wall_ns = self._clock.wall_ns()
        cdef int64_t end_ns = 0
        cdef int sharing = self._poller.sharing
        cdef int64_t work_max = max(<int64_t>WORK_COUNT_MIN, WORK_COUNT_MAX // sharing)
        self._running = True
        while not self.is_closed() and not self.is_stopped():
            command = scanner.advance(now_ns, wall_ns, work_max)
            self._poller.work_count += scanner.work_count
            if command is None:
                break
            if command is WORKED:
                self._continue_later()
                break
            if not end_ns:
                end_ns = monotonic_ns() + SLICE_NS // sharing
            self._execute(command)
            wall_ns = self._clock.wall_ns()
            if not self.waiting and not self.is_closed() and monotonic_ns() >= end_ns:
                self._continue_later()
        self._running = False
        if self._noted and scanner.end - scanner.at <= NOTED_SIZE_MIN:
            self._noted = False
            self._note_body()
        if scanner.progressed:
            scanner.progressed = False
            self.liveness.waiting_since_ns = now_ns
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
            if self.is_closed():
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
        if not self.is_closed():
            self._run()
        if not self.is_stopped():
            self._read_on()
            if self.phase == Phase.ENDING and not self.is_busy():
                self._end()

    cdef int _continue_later(self) except -1:
        self._resting = True
        self._poller.later(self._resume)
        return 0

    def _resume(self):
        """Execute the next slice of received commands."""
        self._resting = False
        try:
            if not self.is_closed() and not self.is_stopped():
                self._continue()
        except Exception:
            self._services.components.context.supervisor.defect(f"client={self.remote_address}")
            self.abort()

    cdef int _hold_back(self, Py_ssize_t size) except -1:
        # Pause reading while input cannot be executed or stored; ``size`` bytes were received.
        cdef Scanner scanner = self.scanner
        cdef Py_ssize_t left_size = scanner.end - scanner.at
        cdef bint full = (
            self._choked or (self.waiting and left_size > BUFFERED_SIZE_MAX)
            or (self._resting and left_size > LEFT_SIZE_MAX))
        if scanner.owed and not full:
            full = (len(scanner.owed) > OWED_COUNT_MAX
                    or (scanner.last is not None and scanner.last.size > PENDING_SIZE_MAX)
                    or self._deferred.pending_size > PENDING_SIZE_MAX)
        if self.upgrade is not None and self.upgrade.pending:
            if not full and not self.is_stopped():
                self._unpack_soon()
            full = full or self.upgrade.pending_size > PACKED_SIZE_MAX
        if (size > FLOOD_SIZE_MIN and scanner.owed and scanner.last is not None
                and scanner.last.strained and not self._strained and not self.is_closed()):
            self._strained = True
            scanner.last.hold(self._relieve)
            self.update_events()
        if full and not self._held and not self.is_closed() and self.is_connected():
            self._held = True
            self.update_events()
        if self._noted or scanner.end - scanner.at > NOTED_SIZE_MIN:
            self._noted = scanner.end - scanner.at > NOTED_SIZE_MIN
            self._note_body()
        return 0

    def _relieve(self):
        """The disk has caught up."""
        self._strained = False
        self.liveness.waiting_since_ns = self._clock.monotonic_ns()
        self.update_events()

    cdef int _read_on(self) except -1:
        if self.upgrade is not None and self.upgrade.pending and not self.is_closed():
            self._unpack_soon()
        elif (self._held or self._short) and self.is_connected():
            self._held = False
            # Input that is dropped needs no memory.
            self._short = self._short and not self.is_closed()
            # The time while nothing was read does not count as silence.
            self.liveness.waiting_since_ns = self._clock.monotonic_ns()
            self.update_events()
        return 0

    # ---- incomplete bodies

    cdef int _note_body(self) except -1:
        cdef Scanner scanner = self.scanner
        cdef bint gone = self.is_closed() or not self.is_connected()
        size = scanner.end - scanner.at if self._noted and not gone else 0
        self._services.bodies.note(self, size, scanner.wanted, self._loop.time())
        return 0

    def hold(self):
        self._short = True
        self.update_events()

    def release(self):
        self._short = False
        self.liveness.waiting_since_ns = self._clock.monotonic_ns()
        if not self.is_closed():
            self.update_events()

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
        if self.is_closed() or not self.is_connected():
            return
        if self.upgrade is not None:
            frame = self.upgrade.wrap((frame,))
        self.write_raw(frame)
        self._replied_size += len(frame)
        if self.blocked:
            self._choked = self._replied_size > REPLIES_SIZE_MAX

    cpdef write_raw(self, bytes data):
        """Send bytes as they are."""
        if self.is_connected():
            self.output.add_bytes(data, 0, len(data))
            self.added()

    def forget_topics(self):
        """The topics that it may publish to have changed."""
        self.commands.forget_topics()

    def fail(self, failure):
        """Send the error to the client; close if it is fatal."""
        self.write(frames.error(failure))
        if failure.fatal:
            log.info("client=%s: %s", self.remote_address, failure)
            self.close()

    def _settle(self, _ticket):
        """Reply to publishes whose tickets are settled, in order."""
        cdef int64_t count = 0
        cdef Owed failed = self.scanner.take_settled(&count)
        self._confirm(count)
        while failed is not None and type(failed.ticket.error) is TopicFullError:
            # As in nsqd a failed publish ends the connection, but not a refused one (R20).
            self.write(frames.error(_failure(failed, False)) * failed.count)
            count = 0
            failed = self.scanner.take_settled(&count)
            self._confirm(count)
        if (failed is not None or self._parked is not None or self._held
                or self.phase == Phase.ENDING):
            self._settled(failed)

    cdef int _confirm(self, int64_t count) except -1:
        cdef int64_t i
        if count and self.upgrade is not None:
            self.write(OK * count)
        elif count and self.is_connected() and not self.is_closed():
            for i in range(count):
                self.output.add(PyBytes_AS_STRING(OK), len(OK))
            self.added()
            self._replied_size += count * len(OK)
            if self.blocked:
                self._choked = self._replied_size > REPLIES_SIZE_MAX
        return 0

    def _settled(self, Owed failed):
        """Continue after replies: one failed, or a command or reading waited for them."""
        if self.is_closed():
            return
        if failed is not None:
            self.fail(_failure(failed, True))
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
        consumer.writable = not self.blocked and self.is_connected()
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
        if self.is_closed() or not self.is_connected():
            return
        if self.upgrade is not None:
            self.write_raw(self.upgrade.wrap(parts))
            return
        for part in parts:
            self.output.write(part)
        self.added()

    cdef int filled(self) except -1:
        self._replied_size = 0
        self.liveness.filled(self.output.size, self._clock.monotonic_ns())
        if self.consumer is not None:
            self.consumer.writable = False
        if self.phase != Phase.MAGIC and not self.is_closed():
            self._arm()
        return 0

    cdef int emptied(self) except -1:
        cdef bint choked = self._choked
        self._choked = False
        self.liveness.emptied(self._clock.monotonic_ns())
        if self.consumer is not None and self.channel is not None:
            self.consumer.writable = True
            self.channel.offer(self.consumer)
        if choked and not self.is_stopped() and not self.is_closed():
            self._continue()
        return 0

    # ---- heartbeats and timeouts

    @property
    def heartbeat_ns(self):
        return self.liveness.heartbeat_ns

    def beat(self, int64_t interval_ns):
        """Send heartbeats at this interval from now on; 0: none."""
        self.liveness.beat_every(interval_ns, self._clock.monotonic_ns())
        self._arm()

    def expect_within(self, int64_t interval_ns):
        """Disconnect the client if it is silent for twice this interval; 0: never."""
        self.liveness.silence_ns = interval_ns

    cdef int _arm(self) except -1:
        cdef int64_t now_ns, next_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_connected():
            return 0
        now_ns = self._clock.monotonic_ns()
        next_ns = self.liveness.next_ns(self.blocked, now_ns)
        if not self.is_closed():
            next_ns = min(next_ns, self._deadline_ns(), self.liveness.next_beat_ns())
        self._timer = self._loop.call_later(max(0, next_ns - now_ns) / 1e9, self._beat)
        return 0

    cdef int64_t _deadline_ns(self) noexcept:
        # When a client that completes no command is disconnected.
        if self.is_stopped() or self._held or self._noted or self._strained:
            # An incomplete body has its own timeout (body_budget.py).
            return INT64_MAX
        return self.liveness.deadline_ns(self.scanner.command_count > 0)

    def _beat(self):
        cdef int64_t now_ns = self._clock.monotonic_ns()
        if self.liveness.is_stuck(self.output.size, self._replied_size, self.blocked, now_ns):
            self._services.clients.stuck_count += 1
            log.info("client=%s: gave up, it is stuck", self.remote_address)
            self.abort()
            return
        if not self.is_closed():
            if now_ns >= self._deadline_ns():
                log.info("client=%s: gave up, it is silent", self.remote_address)
                self.abort()
                return
            if self.liveness.beats(now_ns) and self.phase != Phase.UPGRADING:
                self.write(frames.HEARTBEAT)
        self._arm()

    # ---- TLS and compression

    def start_upgrade(self, settings):
        """Set up what IDENTIFY negotiated.

        Bytes received after IDENTIFY belong to the new stream.  nsqd loses them; executing them
        would let a man in the middle insert commands before those that TLS protects.
        """
        if not self.is_connected():
            self.close()
            return
        if settings.tls_v1 and self.phase == Phase.ENDING:
            self.fail(ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed unexpected EOF"))
            return
        held = self.scanner.take_held()
        if self.upgrade is None:
            self.upgrade = Upgrade(self.write_raw, self._services.security.tls)
        self.upgrade.begin(settings, self._loop, self._too_late)
        if self.upgrade.handshaking:
            self.enter(Phase.UPGRADING)
            self.waiting = True
        if held:
            self._unwrap(held)

    def _too_late(self):
        self._break("i/o timeout")

    cdef int _unwrap(self, bytes data) except -1:
        # As _received, for encrypted or compressed input.
        upgrade = self.upgrade
        try:
            clear = upgrade.receive(data)
        except StreamError as failure:
            self._break(str(failure))
            return 0
        if self.phase == Phase.UPGRADING and not upgrade.handshaking:
            self.enter(Phase.OPEN)
            self.scanner.tls_required = False
            self.waiting = False
            self.liveness.waiting_since_ns = self._clock.monotonic_ns()
        if clear:
            self.scanner.feed(clear)
            if not self.is_stopped():
                self._run()
        if self.is_closed():
            return 0
        self._hold_back(len(data))
        if not upgrade.pending:
            if not self.is_stopped() and not self.scanner.owed:
                self._read_on()
            if upgrade.ended or self.phase == Phase.ENDING:
                self.ended()
        return 0

    cdef int _unpack_soon(self) except -1:
        # Continue in another turn with input that is too large to decompress in one.
        if not self._unpacking:
            self._unpacking = True
            self._poller.later(self._unpack)
        return 0

    def _unpack(self):
        self._unpacking = False
        # If a command waits, _read_on calls this again.
        if not self.is_closed() and not self.is_stopped():
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


cdef object _failure(Owed failed, bint fatal):
    # The error of a publish that was refused, or whose write failed.
    command = failed.command
    return ProtocolError(
        f"E_{command}_FAILED", f"{command} failed {failed.ticket.error}", fatal=fatal)
