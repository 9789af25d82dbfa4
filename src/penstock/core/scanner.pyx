# The server's view of the V2 protocol: bytes in, commands out.
#
#     NAME[ SP param]*[CR]LF             every command
#     size i32, then size bytes          after IDENTIFY, AUTH, PUB, DPUB, MPUB
#
# Commands that run per message (PUB, MPUB, FIN, REQ, TOUCH, RDY; also NOP and DPUB 0) are executed
# here, on the topic's Appender and the channel's Window.  All others are returned by advance() and
# executed in Python: a tuple whose first item is the name, or a ProtocolError.  next() is advance()
# for Python.
#
# Rule 1: no I/O, no clock, no logging.  The result is a function of the input.
# Rule 2: where the kernel splits the stream never changes the result.
# Rule 3: a peer that sends one byte a packet costs O(n), not O(n^2).
# Rule 4: sizes are checked when declared, before anything is buffered.
# Rule 5: commands run strictly in order: after advance() returned one, the following ones wait
#         until it is called again.
# Rule 6: advance() returns after a bounded amount of work, so that the caller, who has a clock, can
#         end the turn.

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport UINT64_MAX, int32_t, int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove

from penstock.core.appender cimport Appender
from penstock.core.bytes cimport load_u32
from penstock.core.layouts cimport ID_INDEX_BITS, ID_SIZE
from penstock.core.ticket cimport Ticket
from penstock.core.window cimport DONE, NO_ROOM, NOT_DURABLE, NOT_IN_FLIGHT, NOT_OWNER, Consumer, Window

from penstock.errors import ProtocolError

# Connection states, with the numbers /stats shows.
INIT = 0
SUBSCRIBED = 3
CLOSING = 4

cdef enum:
    STATE_INIT = 0
    STATE_SUBSCRIBED = 3
    STATE_CLOSING = 4
    LINE_SIZE_MAX = 16384       # nsqd's read buffer; a longer line closes without an error frame
    TOKEN_COUNT_MAX = 4
    FIN_LINE_SIZE = 21
    HELD_KEPT_MAX = 65536
    # Bodies that Python parses; nsqd accepts up to --max-body-size.
    IDENTIFY_SIZE_MAX = 65536
    AUTH_SIZE_MAX = 8192
    MULTI_COUNT = 4     # messages of an MPUB that count as one command
    BATCH_COUNT = 256   # commands that the first message of a batch counts as: writing is to come

cdef enum:
    PARSED
    NOT_DECIMAL
    TOO_LARGE       # beyond 64 bits

cdef int64_t INDEX_MASK = (<int64_t>1 << ID_INDEX_BITS) - 1
cdef object CONTINUE = object()
cdef object MORE = object()
WORKED = object()
cdef tuple LINE_TOO_LONG = ("LINE_TOO_LONG",)
cdef dict NOT_BURIED = {
    NOT_IN_FLIGHT: "ID not in flight",
    NOT_OWNER: "client does not own message",
    NO_ROOM: "too many buried messages",
    NOT_DURABLE: "channel is ephemeral",
}


cdef inline bint is_word(Token* token, const char* word, Py_ssize_t size) noexcept:
    return token.size == size and memcmp(token.at, word, size) == 0


cdef inline bytes as_bytes(Token* token):
    return PyBytes_FromStringAndSize(<const char*>token.at, token.size)


cdef inline str as_text(Token* token):
    # Bytes that are not UTF-8 are restored when the error frame is encoded.
    return as_bytes(token).decode("utf-8", "surrogateescape")


cdef int64_t parse_id(const unsigned char* p) noexcept:
    # 16 lower-case hexadecimal digits, or -1.  nsqd compares the bytes; accepting exactly one
    # spelling of each number is the same.
    cdef uint64_t value = 0
    cdef int i
    cdef unsigned char c
    for i in range(ID_SIZE):
        c = p[i]
        if c'0' <= c <= c'9':
            value = value << 4 | <uint64_t>(c - c'0')
        elif c'a' <= c <= c'f':
            value = value << 4 | <uint64_t>(c - c'a' + 10)
        else:
            return -1
    return <int64_t>value


cdef int parse_decimal(Token* token, uint64_t* value) noexcept:
    # Digits only; the empty string is 0.  In nsqd values wrap: 2^64 + 1 is 1.
    cdef Py_ssize_t i
    cdef uint64_t digit
    cdef int status = PARSED
    value[0] = 0
    for i in range(token.size):
        if not c'0' <= token.at[i] <= c'9':
            return NOT_DECIMAL
        digit = <uint64_t>(token.at[i] - c'0')
        if value[0] > (UINT64_MAX - digit) // 10:
            status = TOO_LARGE
        value[0] = value[0] * 10 + digit
    if status == TOO_LARGE:
        value[0] = UINT64_MAX
    return status


cdef bint is_name(const unsigned char* p, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    if not 1 <= size <= 64:
        return False
    if size > 10 and memcmp(p + size - 10, b"#ephemeral", 10) == 0:
        size -= 10
    for i in range(size):
        if not (c'a' <= p[i] <= c'z' or c'A' <= p[i] <= c'Z' or c'0' <= p[i] <= c'9'
                or p[i] == c'.' or p[i] == c'_' or p[i] == c'-'):
            return False
    return True


cdef object invalid(str text):
    return ProtocolError("E_INVALID", text)


@cython.freelist(64)
cdef class Owed:
    """``count`` OK replies that wait for ``ticket``."""


cdef class Scanner:
    def __cinit__(self, dict appenders, on_settled, *, int64_t message_size_max,
                  int64_t body_size_max, int64_t ready_count_max, int64_t requeue_ms_max,
                  int64_t defer_ms_max, int64_t msg_timeout_max_ns):
        """``appenders``: topic name as bytes -> Appender.  ``on_settled(ticket)`` is called when
        a ticket that replies wait for is settled."""
        self.appenders = appenders
        self.on_settled = on_settled
        self.message_size_max = message_size_max
        self.body_size_max = body_size_max
        self.ready_count_max = ready_count_max
        self.requeue_ms_max = requeue_ms_max
        self.defer_ms_max = defer_ms_max
        self.msg_timeout_max_ns = msg_timeout_max_ns
        self.state = STATE_INIT
        self.owed = []
        self.published = {}

    def __dealloc__(self):
        PyMem_Free(self.held)

    @property
    def buffered_size(self):
        """Bytes received and not yet consumed."""
        return self.end - self.at

    @property
    def pub_counts(self):
        """Messages published so far, by topic."""
        self._count_published()
        return self.published

    def feed(self, bytes data not None):
        """Add received bytes; next() runs the commands they complete."""
        self.take_in(data, <const unsigned char*>PyBytes_AS_STRING(data), len(data))

    def feed_from(self, bytearray buffer not None, Py_ssize_t size):
        """feed() the first ``size`` bytes of a buffer; it may be reused only after keep()."""
        assert 0 <= size <= len(buffer)
        self.take_in(buffer, <const unsigned char*>PyByteArray_AS_STRING(buffer), size)

    def keep(self):
        """Copy the bytes not yet consumed out of the caller's buffer."""
        self.keep_held(0)

    cdef int take_in(self, owner, const unsigned char* data, Py_ssize_t size) except -1:
        if self.at == self.end:
            self.chunk = owner
            self.at = data
            self.end = data + size
            return 0
        self.keep_held(size)
        memcpy(<unsigned char*>self.end, data, size)
        self.end += size
        return 0

    cpdef object next(self, int64_t now_ns, int64_t wall_ns):
        """Run commands up to one that Python executes; None when more input is needed."""
        cdef object result = WORKED
        while result is WORKED:
            result = self.advance(now_ns, wall_ns, WORK_COUNT_MAX)
        return result

    cdef object advance(self, int64_t now_ns, int64_t wall_ns, int64_t work_max):
        # next(), but returns WORKED after about ``work_max`` commands.
        cdef object result = CONTINUE
        self.now_ns = now_ns
        self.wall_ns = wall_ns
        self.work_count = 0
        while result is CONTINUE:
            if self.work_count >= work_max:
                return WORKED
            result = self.step()
        if result is MORE:
            self.keep_held(0)
            return None
        return result

    def eof(self):
        """The error for a peer that disconnects in the middle of a body, or None."""
        return None if self.waiting is None else ProtocolError(*self.waiting)

    def take_held(self):
        """Remove and return the bytes not consumed: they belong to the upgraded stream."""
        held = PyBytes_FromStringAndSize(<const char*>self.at, self.end - self.at)
        self.at = self.end
        self.line_scanned = 0
        self.keep_held(0)
        return held

    def drop_held(self):
        """Discard the bytes not consumed."""
        self.at = self.end
        self.line_scanned = 0
        self.waiting = None
        self.keep_held(0)

    def forget_topic(self):
        """Forget the cached topic: the next publish looks it up again."""
        self._count_published()
        self.last = None

    cdef object step(self):
        cdef const unsigned char* p = self.at
        cdef Py_ssize_t size = self.end - p
        cdef Py_ssize_t limit
        cdef int64_t value
        cdef const unsigned char* line_end
        if size == 0:
            return MORE
        if (size >= FIN_LINE_SIZE and p[20] == c'\n' and memcmp(p, b"FIN ", 4) == 0
                and self.consumer is not None and self.window is not None):
            value = parse_id(p + 4)
            if value != -1 and self.window.finish(
                    self.consumer, value & INDEX_MASK,
                    <int>(<uint64_t>value >> ID_INDEX_BITS), self.wall_ns) == DONE:
                self.answered = True
                self.consume(FIN_LINE_SIZE)
                return CONTINUE
        limit = min(size, LINE_SIZE_MAX)
        line_end = <const unsigned char*>memchr(
            p + self.line_scanned, c'\n', limit - self.line_scanned)
        if line_end == NULL:
            if size >= LINE_SIZE_MAX:
                return LINE_TOO_LONG
            self.line_scanned = limit
            return MORE
        # Until its body is complete, a command is parsed again with each packet.
        self.line_scanned = line_end - p
        return self.run_line(line_end - p)

    cdef object run_line(self, Py_ssize_t line_size):
        cdef Token tokens[TOKEN_COUNT_MAX]
        cdef Py_ssize_t body_at = line_size + 1
        cdef const unsigned char* p = self.at
        cdef const unsigned char* end = p + line_size
        cdef const unsigned char* space
        cdef int count = 0
        if line_size and (end - 1)[0] == c'\r':
            end -= 1
        while True:
            space = <const unsigned char*>memchr(p, c' ', end - p)
            if count < TOKEN_COUNT_MAX:
                tokens[count] = Token(p, (space if space != NULL else end) - p)
            count += 1
            if space == NULL:
                break
            p = space + 1
        if self.tls_required and not is_word(tokens, b"IDENTIFY", 8):
            # Even an unknown command, as in nsqd.
            return invalid(f"cannot {as_text(tokens)} in current state (TLS required)")
        if is_word(tokens, b"FIN", 3):
            return self.answer("FIN", tokens, count)
        if is_word(tokens, b"PUB", 3):
            return self.publish("PUB", tokens, count, body_at)
        if is_word(tokens, b"MPUB", 4):
            return self.publish_multi(tokens, count, body_at)
        if is_word(tokens, b"DPUB", 4):
            return self.publish_deferred(tokens, count, body_at)
        if is_word(tokens, b"REQ", 3):
            return self.answer("REQ", tokens, count)
        if is_word(tokens, b"RDY", 3):
            return self.set_ready(tokens, count)
        if is_word(tokens, b"TOUCH", 5):
            return self.answer("TOUCH", tokens, count)
        return self._run_rare(tokens, count, body_at)

    cdef object _run_rare(self, Token* tokens, int count, Py_ssize_t body_at):
        if is_word(tokens, b"NOP", 3):
            self.consume(body_at)
            return CONTINUE
        if is_word(tokens, b"IDENTIFY", 8):
            return self.with_body("IDENTIFY", body_at, IDENTIFY_SIZE_MAX)
        if is_word(tokens, b"AUTH", 4):
            if self.state == STATE_INIT and count != 1:
                return invalid("AUTH invalid number of parameters")
            return self.with_body("AUTH", body_at, AUTH_SIZE_MAX)
        if is_word(tokens, b"SUB", 3):
            if self.state != STATE_INIT:
                return invalid("cannot SUB in current state")
            params = [as_bytes(&tokens[i]) for i in range(1, min(count, 3))]
            self.consume(body_at)
            return ("SUB", params)
        if is_word(tokens, b"CLS", 3):
            if self.state != STATE_SUBSCRIBED:
                return invalid("cannot CLS in current state")
            self.consume(body_at)
            return ("CLS",)
        if self.buries and is_word(tokens, b"BURY", 4):
            return self.bury(tokens, count)
        return invalid(f"invalid command {as_text(tokens)}")

    # ---- publishing

    cdef object publish(self, str name, Token* tokens, int count, Py_ssize_t body_at):
        cdef Appender appender
        cdef int64_t size = 0
        if count < 2:
            return invalid("PUB insufficient number of parameters")
        appender = self.appender_of(&tokens[1])
        if appender is None and not is_name(tokens[1].at, tokens[1].size):
            return ("BAD_NAME", "E_BAD_TOPIC", "PUB topic name", as_bytes(&tokens[1]))
        missing = self.body_missing("PUB", body_at, &size)
        if missing is not None:
            return missing
        if appender is None:
            return ("TOPIC", "PUB", as_text(&tokens[1]))
        if appender.bounded and self.refused(appender, "PUB", body_at + 4 + size):
            return CONTINUE
        appender.append(self.at + body_at + 4, size, self.wall_ns)
        self.owe(appender, 1, "PUB")
        self.consume(body_at + 4 + size)
        return CONTINUE

    cdef object publish_deferred(self, Token* tokens, int count, Py_ssize_t body_at):
        cdef Appender appender
        cdef int64_t size = 0
        cdef uint64_t delay_ms = 0
        cdef int status
        if count < 3:
            return invalid("DPUB insufficient number of parameters")
        appender = self.appender_of(&tokens[1])
        if appender is None and not is_name(tokens[1].at, tokens[1].size):
            return ("BAD_NAME", "E_BAD_TOPIC", "DPUB topic name", as_bytes(&tokens[1]))
        status = parse_decimal(&tokens[2], &delay_ms)
        if status == NOT_DECIMAL:
            return invalid(f"DPUB could not parse timeout {as_text(&tokens[2])}")
        if delay_ms > <uint64_t>self.defer_ms_max:
            shown = as_text(&tokens[2]) if status == TOO_LARGE else str(delay_ms)
            return invalid(f"DPUB timeout {shown} out of range 0-{self.defer_ms_max}")
        missing = self.body_missing("DPUB", body_at, &size)
        if missing is not None:
            return missing
        if appender is None:
            return ("TOPIC", "DPUB", as_text(&tokens[1]))
        if appender.bounded and self.refused(appender, "DPUB", body_at + 4 + size):
            return CONTINUE
        if delay_ms:
            body = PyBytes_FromStringAndSize(<const char*>self.at + body_at + 4, size)
            topic = as_text(&tokens[1])
            self.consume(body_at + 4 + size)
            self._count_published()
            self.published[topic] = self.published.get(topic, 0) + 1
            return ("DPUB", topic, <int64_t>delay_ms, body)
        appender.append(self.at + body_at + 4, size, self.wall_ns)
        self.owe(appender, 1, "DPUB")
        self.consume(body_at + 4 + size)
        return CONTINUE

    cdef object body_missing(self, str name, Py_ssize_t body_at, int64_t* size):
        # None if the message body is complete, otherwise MORE or the error.
        cdef Py_ssize_t have = self.end - self.at - body_at
        if have < 4:
            return self.need(("E_BAD_MESSAGE", f"{name} failed to read message body size"))
        size[0] = <int32_t>load_u32(self.at + body_at)
        if size[0] <= 0:
            return ProtocolError("E_BAD_MESSAGE", f"{name} invalid message body size {size[0]}")
        if size[0] > self.message_size_max:
            return ProtocolError(
                "E_BAD_MESSAGE", f"{name} message too big {size[0]} > {self.message_size_max}")
        if have < 4 + size[0]:
            self.wanted = body_at + 4 + size[0]
            return self.need(("E_BAD_MESSAGE", f"{name} failed to read message body"))
        return None

    cdef object publish_multi(self, Token* tokens, int count, Py_ssize_t body_at):
        cdef Appender appender
        cdef Py_ssize_t have = self.end - self.at - body_at
        cdef int64_t size, message_count
        if count < 2:
            return invalid("MPUB insufficient number of parameters")
        appender = self.appender_of(&tokens[1])
        if appender is None:
            if not is_name(tokens[1].at, tokens[1].size):
                # nsqd repeats the code here, and clients match on it.
                return ("BAD_NAME", "E_BAD_TOPIC", "E_BAD_TOPIC MPUB topic name",
                        as_bytes(&tokens[1]))
            return ("TOPIC", "MPUB", as_text(&tokens[1]))
        if have < 4:
            return self.need(("E_BAD_BODY", "MPUB failed to read body size"))
        size = <int32_t>load_u32(self.at + body_at)
        if size <= 0:
            return ProtocolError("E_BAD_BODY", f"MPUB invalid body size {size}")
        if size > self.body_size_max:
            return ProtocolError("E_BAD_BODY", f"MPUB body too big {size} > {self.body_size_max}")
        self.wanted = body_at + 4 + size
        if have < 8:
            return self.need(("E_BAD_BODY", "MPUB failed to read message count"))
        message_count = <int32_t>load_u32(self.at + body_at + 4)
        if not 1 <= message_count <= (self.body_size_max - 4) // 5:
            return ProtocolError("E_BAD_BODY", f"MPUB invalid message count {message_count}")
        missing = self.check_multi(message_count, body_at + 8)
        if missing is not None:
            return missing
        if appender.bounded and self.refused(appender, "MPUB", self.multi_at):
            return CONTINUE
        appender.append_multi(self.at + body_at + 8, self.multi_at - body_at - 8, message_count,
                              self.wall_ns)
        self.owe(appender, message_count, "MPUB")
        self.work_count += message_count // MULTI_COUNT
        self.consume(self.multi_at)
        return CONTINUE

    cdef object check_multi(self, int64_t count, Py_ssize_t body_at):
        # Nothing is published unless all messages parse.  The declared total is not used: as in
        # nsqd, count and lengths drive the parsing.  Resumes where it stopped (rule 3).
        cdef Py_ssize_t have = self.end - self.at
        cdef int64_t size
        if not self.multi_at:
            self.multi_at = body_at
        while self.multi_done < count:
            if have < self.multi_at + 4:
                return self.need(("E_BAD_MESSAGE",
                                  f"MPUB failed to read message({self.multi_done}) body size"))
            size = <int32_t>load_u32(self.at + self.multi_at)
            if size <= 0:
                return ProtocolError(
                    "E_BAD_MESSAGE", f"MPUB invalid message({self.multi_done}) body size {size}")
            if size > self.message_size_max:
                return ProtocolError(
                    "E_BAD_MESSAGE", f"MPUB message too big {size} > {self.message_size_max}")
            if self.multi_at + 4 + size - body_at > self.body_size_max:
                return ProtocolError(
                    "E_BAD_BODY",
                    f"MPUB body too big {self.multi_at + 4 + size - body_at}"
                    f" > {self.body_size_max}")
            if have < self.multi_at + 4 + size:
                return self.need(("E_BAD_MESSAGE", "MPUB failed to read message body"))
            self.multi_at += 4 + size
            self.multi_done += 1
        return None

    cdef Appender appender_of(self, Token* name):
        cdef Appender found
        if (self.last is not None and not self.last.closed and len(self.last_name) == name.size
                and memcmp(PyBytes_AS_STRING(self.last_name), name.at, name.size) == 0):
            return self.last
        found = self.appenders.get(as_bytes(name))
        if found is not None and found.closed:
            # A connection's own table of topics is not updated by deletions.
            found = None
        if found is not None:
            self._count_published()
            self.last = found
            self.last_name = as_bytes(name)
        return found

    cdef bint refused(self, Appender appender, str command, Py_ssize_t size) except -1:
        # Whether the topic is full (R20).  The error is owed like an OK, so that replies stay in
        # order; the connection goes on.
        cdef Ticket refusal = appender.refuse()
        if refusal is None:
            return False
        self.consume(size)
        self.owe_ticket(refusal, command)
        return True

    cdef int owe(self, Appender appender, int64_t count, str command) except -1:
        cdef Owed owed
        self.last_published += count
        if appender.count == count:
            self.work_count += BATCH_COUNT
        if self.owed:
            owed = <Owed>self.owed[len(self.owed) - 1]
            if owed.ticket is appender.ticket and owed.command is command:
                owed.count += 1
                return 0
        self.owe_ticket(appender.ticket, command)
        return 0

    cpdef owe_ticket(self, Ticket ticket, str command):
        """Owe an OK that waits for ``ticket``."""
        cdef Owed owed = Owed.__new__(Owed)
        owed.ticket = ticket
        owed.count = 1
        owed.command = command
        self.owed.append(owed)
        ticket.add(self.on_settled)

    def settle(self):
        """Remove settled replies, in order, up to the first that failed.

        Returns (number of OK, the Owed that failed or None).
        """
        cdef int64_t count = 0
        failed = self.take_settled(&count)
        return count, failed

    cdef Owed take_settled(self, int64_t* count):
        cdef Owed owed
        cdef Owed failed = None
        cdef Py_ssize_t taken = 0
        while failed is None and taken < len(self.owed):
            owed = <Owed>self.owed[taken]
            if not owed.ticket.done:
                break
            taken += 1
            if owed.ticket.error is None:
                count[0] += owed.count
            else:
                failed = owed
        if taken == len(self.owed):
            self.owed.clear()
        else:
            del self.owed[:taken]
        return failed

    def _count_published(self):
        if self.last_published:
            self.published[self.last.topic] = (
                self.published.get(self.last.topic, 0) + self.last_published)
            self.last_published = 0

    # ---- consuming

    cdef object answer(self, str name, Token* tokens, int count):
        cdef int64_t value
        cdef int status = NOT_IN_FLIGHT
        cdef uint64_t delay_ms = 0
        cdef int64_t due_ns = 0
        if self.state != STATE_SUBSCRIBED and self.state != STATE_CLOSING:
            return invalid(f"cannot {name} in current state")
        if count < (3 if name == "REQ" else 2):
            return invalid(f"{name} insufficient number of params")
        if tokens[1].size != ID_SIZE:
            return invalid("invalid message ID")
        if name == "REQ":
            if parse_decimal(&tokens[2], &delay_ms) == NOT_DECIMAL:
                return invalid(f"REQ could not parse timeout {as_text(&tokens[2])}")
            # nsqd clamps silently.
            due_ns = <int64_t>min(delay_ms, <uint64_t>self.requeue_ms_max) * 1000000
            if due_ns:
                due_ns += self.wall_ns
        value = parse_id(tokens[1].at)
        assert self.window is not None and self.consumer is not None
        if value != -1:
            index = value & INDEX_MASK
            node_id = <int>(<uint64_t>value >> ID_INDEX_BITS)
            if name == "REQ":
                status = self.window.requeue(self.consumer, index, node_id, due_ns, self.wall_ns)
            elif name == "FIN":
                status = self.window.finish(self.consumer, index, node_id, self.wall_ns)
            else:
                status = self.window.touch(self.consumer, index, node_id, self.now_ns,
                                           self.msg_timeout_ns, self.msg_timeout_max_ns)
        failed = None
        if status == DONE:
            self.answered = True
        else:
            why = "ID not in flight" if status == NOT_IN_FLIGHT else "client does not own message"
            failed = ProtocolError(
                f"E_{name}_FAILED", f"{name} {as_text(&tokens[1])} failed {why}", fatal=False)
        self.consume(self.line_scanned + 1)
        return CONTINUE if failed is None else failed

    cdef object bury(self, Token* tokens, int count):
        # BURY <id> [<text up to the end of the line>]
        cdef int64_t value
        cdef int status = NOT_IN_FLIGHT
        cdef Token ending
        cdef str text = ""
        if self.state != STATE_SUBSCRIBED and self.state != STATE_CLOSING:
            return invalid("cannot BURY in current state")
        if count < 2:
            return invalid("BURY insufficient number of params")
        if tokens[1].size != ID_SIZE:
            return invalid("invalid message ID")
        assert self.window is not None and self.consumer is not None
        if count > 2:
            ending = Token(tokens[2].at, self.at + self.line_scanned - tokens[2].at)
            text = as_bytes(&ending).decode("utf-8", "replace").rstrip("\r")
        value = parse_id(tokens[1].at)
        if value != -1:
            status = self.window.bury(
                self.consumer, value & INDEX_MASK, <int>(<uint64_t>value >> ID_INDEX_BITS),
                self.wall_ns, text)
        failed = None
        if status == DONE:
            self.answered = True
        else:
            failed = ProtocolError(
                "E_BURY_FAILED", f"BURY {as_text(&tokens[1])} failed {NOT_BURIED[status]}",
                fatal=False)
        self.consume(self.line_scanned + 1)
        return CONTINUE if failed is None else failed

    cdef object set_ready(self, Token* tokens, int count):
        cdef uint64_t value = 1
        cdef int status = PARSED
        if self.state == STATE_CLOSING:
            # The client is closing; nsqd does not even parse the count.
            self.consume(self.line_scanned + 1)
            return CONTINUE
        if self.state != STATE_SUBSCRIBED:
            return invalid("cannot RDY in current state")
        assert self.consumer is not None
        if count > 1:
            status = parse_decimal(&tokens[1], &value)
        if status == NOT_DECIMAL:
            return invalid(f"RDY could not parse count {as_text(&tokens[1])}")
        if value > <uint64_t>self.ready_count_max:
            shown = as_text(&tokens[1]) if status == TOO_LARGE else str(<int64_t>value)
            return invalid(f"RDY count {shown} out of range 0-{self.ready_count_max}")
        self.consumer.ready_count = <int64_t>value
        self.answered = True
        self.consume(self.line_scanned + 1)
        return CONTINUE

    # ---- other commands, and the input

    cdef object with_body(self, str name, Py_ssize_t body_at, int64_t size_max):
        cdef Py_ssize_t have = self.end - self.at - body_at
        cdef int64_t size
        if self.state != STATE_INIT:
            return invalid(f"cannot {name} in current state")
        if have < 4:
            return self.need(("E_BAD_BODY", f"{name} failed to read body size"))
        size = <int32_t>load_u32(self.at + body_at)
        if size > self.body_size_max:
            # nsqd rejects this as well, with the same text.
            size_max = self.body_size_max
        if size > size_max:
            return ProtocolError("E_BAD_BODY", f"{name} body too big {size} > {size_max}")
        if size <= 0:
            return ProtocolError("E_BAD_BODY", f"{name} invalid body size {size}")
        if have < 4 + size:
            self.wanted = body_at + 4 + size
            return self.need(("E_BAD_BODY", f"{name} failed to read body"))
        body = PyBytes_FromStringAndSize(<const char*>self.at + body_at + 4, size)
        self.consume(body_at + 4 + size)
        return (name, body)

    cdef object need(self, tuple waiting):
        self.waiting = waiting
        return MORE

    cdef void consume(self, Py_ssize_t size) noexcept:
        self.command_count += 1
        self.work_count += 1
        self.at += size
        self.line_scanned = 0
        self.multi_at = 0
        self.multi_done = 0
        self.waiting = None
        self.wanted = 0
        self.progressed = True

    cdef int keep_held(self, Py_ssize_t extra) except -1:
        # Copy the bytes not consumed into our own buffer, with room for ``extra`` more.
        cdef Py_ssize_t size = self.end - self.at
        cdef Py_ssize_t capacity
        cdef unsigned char* held
        cdef bint inside = (self.held != NULL and self.held <= self.at
                            and self.end <= self.held + self.held_capacity)
        if size == 0 and extra == 0:
            self.chunk = None
            self.at = self.end = NULL
            if self.held_capacity > HELD_KEPT_MAX or not inside:
                PyMem_Free(self.held)
                self.held = NULL
                self.held_capacity = 0
            return 0
        if inside and extra == 0:
            return 0
        if inside and self.at > self.held:
            memmove(self.held, self.at, size)
            self.at = self.held
            self.end = self.held + size
        if size + extra > self.held_capacity:
            capacity = max(256, 2 * self.held_capacity)
            if capacity > self.wanted > 0:
                # Doubling would allocate up to twice what the body needs.
                capacity = self.wanted
            capacity = max(capacity, size + extra)
            held = <unsigned char*>PyMem_Realloc(self.held, capacity)
            if held == NULL:
                raise MemoryError
            if inside:
                self.at = held
                self.end = held + size
            self.held = held
            self.held_capacity = capacity
        if not inside:
            memcpy(self.held, self.at, size)
            self.at = self.held
            self.end = self.held + size
            self.chunk = None
        return 0
