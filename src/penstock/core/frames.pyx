# A client's view of the V2 protocol: bytes in, frames out.
#
#     | size: 4 bytes | type: 4 bytes | data: size - 4 bytes |          all integers big-endian
#                       0 response
#                       1 error
#                       2 message = | timestamp ns: 8 | attempts: 2 | id: 16 | body |
#
# There are two ways to read, and a caller may switch at any time: `feed` makes an object of every
# frame; `finish` is for consumers that only count, and returns the FIN commands for all messages
# read: 14 ns a message instead of 52.
#
# Rule 1: no I/O, no clock, no logging.  The result is a function of the input.
# Rule 2: where the kernel splits the stream never changes the result.
# Rule 3: a peer that sends one byte a packet costs O(n), not O(n^2); only the piece of a frame
#         that straddles two packets is copied.
# Rule 4: sizes are checked when declared, before anything is buffered; never more than one frame
#         is held.
# Rule 5: frames before a bad one are returned.  The error is in `error`; callers that do not check
#         it get it as an exception from the next call.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

from penstock.core.bytes cimport load_i64, load_u16, load_u32
from penstock.core.layouts cimport (
    FRAME_ATTEMPTS, FRAME_HEADER, FRAME_ID, FRAME_TIMESTAMP, FRAME_TYPE, FRAME_TYPE_ERROR,
    FRAME_TYPE_MESSAGE, FRAME_TYPE_RESPONSE, ID_SIZE,
)

from penstock.errors import ProtocolError

# What nsqd itself accepts in one body by default (max-body-size) plus the frame around it.
cdef Py_ssize_t FRAME_SIZE_MAX = 5 * 1024 * 1024 + 30

cdef enum:
    FIN_SIZE = 21
    # States of a message, as penstock.client.message names them too.
    WAITING = 0
    DETACHED = 1
    RESPONDED = 2


# Without cycle collection a message costs 40 ns less; owners drop messages they are done with.
@cython.no_gc
cdef class Message:
    """One delivery of a message.

    Answers go through the ``owner`` that the reader sets, so that a message is one object, not two.
    """

    @property
    def responded(self):
        """Whether the message has been finished, requeued or buried."""
        return self.state == RESPONDED

    def finish(self):
        """Send FIN.  A second answer, or one after the connection is lost, is ignored.

        Like the other answers, it may be called from any thread.
        """
        self.owner.finish(self)

    def requeue(self, delay=None, *, backoff=True):
        """Send REQ: redeliver after ``delay`` seconds; None computes it from the attempts."""
        self.owner.requeue(self, delay, backoff)

    def bury(self, text=""):
        """Send BURY: set the message aside, with a short reason, until somebody kicks it.

        Raises ClientError if nsqd does not offer it.
        """
        self.owner.bury(self, text)

    def touch(self):
        """Send TOUCH: restart the message's timeout."""
        self.owner.touch(self)

    def enable_async(self):
        """Do not answer when the handler returns: the program will answer later."""
        if self.state == WAITING:
            self.state = DETACHED

    def __repr__(self):
        return f"Message({self.id.decode('latin-1')}, attempts={self.attempts}, {self.body!r})"


cdef class Reply:
    """A response frame, or an error frame if ``error``."""

    def __repr__(self):
        return f"Reply({'error ' if self.error else ''}{self.text!r})"


cdef class Finished:
    """Messages that were read, and the FIN commands for them.

    ``stamps`` has the first 8 bytes of each body as a native int64, for a load generator that
    stores a time there; 0 for a shorter body.
    """


cdef class Pile:
    def __dealloc__(self):
        PyMem_Free(self.bytes_at)

    cdef unsigned char* extend(self, Py_ssize_t size) except NULL:
        # Append ``size`` uninitialised bytes; returns where they start.
        cdef Py_ssize_t wanted = self.size + size
        cdef void* grown
        if wanted > self.capacity:
            wanted = max(wanted, 2 * self.capacity, 256)
            grown = PyMem_Realloc(self.bytes_at, wanted)
            if grown == NULL:
                raise MemoryError
            self.bytes_at = <unsigned char*>grown
            self.capacity = wanted
        self.size += size
        return self.bytes_at + self.size - size

    cdef bytes take(self):
        cdef bytes taken = PyBytes_FromStringAndSize(<char*>self.bytes_at, self.size)
        self.size = 0
        return taken


cdef class FrameReader:
    def __cinit__(self, Py_ssize_t frame_size_max=FRAME_SIZE_MAX, owner=None):
        if not 4 <= frame_size_max < 2**31:
            raise ValueError(f"frame_size_max {frame_size_max} out of range 4-{2**31 - 1}")
        self.frame_size_max = frame_size_max
        self.owner = owner
        self.error = None
        self.held = Pile()
        self.commands = Pile()
        self.stamps = Pile()
        self.frames = []

    @property
    def held_size(self):
        """Bytes of an incomplete frame."""
        return self.held.size

    def feed(self, data):
        """Return the frames that ``data`` completes, as `Reply` and `Message` objects."""
        self.finishing = False
        self.read(data)
        frames, self.frames = self.frames, []
        return frames

    def finish(self, data):
        """Return the count of messages that ``data`` completes, and the FINs for them."""
        self.finishing = True
        self.finished_count = 0
        self.finished_size = 0
        self.read(data)
        cdef Finished finished = Finished.__new__(Finished)
        finished.count = self.finished_count
        finished.body_size = self.finished_size
        finished.commands = self.commands.take()
        finished.stamps = self.stamps.take()
        finished.replies, self.frames = self.frames, []
        return finished

    cdef int read(self, data) except -1:
        cdef Py_buffer view
        cdef const unsigned char* at
        cdef Py_ssize_t done = 0
        if self.error is not None:
            raise self.error
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            at = <const unsigned char*>view.buf
            if self.held.size:
                done = self.complete_held(at, view.len)
            if self.held.size == 0:
                done += self.read_frames(at + done, view.len - done)
                if self.error is None and done < view.len:
                    memcpy(self.held.extend(view.len - done), at + done, view.len - done)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef Py_ssize_t complete_held(self, const unsigned char* at, Py_ssize_t size) except -1:
        # Copy bytes to the held ones until they are a whole frame, and read it.  First the size.
        cdef Py_ssize_t done = min(max(0, 4 - self.held.size), size)
        cdef Py_ssize_t end, missing
        memcpy(self.held.extend(done), at, done)
        if self.held.size < 4:
            return done
        end = self.frame_end(self.held.bytes_at, self.held.size)
        if end < 0:
            return done
        missing = min(end - self.held.size, size - done)
        memcpy(self.held.extend(missing), at + done, missing)
        if self.held.size == end:
            self.held.size = 0
            self.read_frame(self.held.bytes_at, end)
        return done + missing

    cdef Py_ssize_t read_frames(self, const unsigned char* at, Py_ssize_t size) except -1:
        # Read the whole frames in ``size`` bytes; return how many bytes they take.
        cdef Py_ssize_t done = 0, end
        while size - done >= 4 and self.error is None:
            end = self.frame_end(at + done, size - done)
            if end < 0 or end > size - done:
                break
            self.read_frame(at + done, end)
            done += end
        return done

    cdef Py_ssize_t frame_end(self, const unsigned char* at, Py_ssize_t size) except -2:
        # The size of the frame at ``at``, its size field included; -1 if it declares a bad size.
        cdef Py_ssize_t declared = load_u32(at)
        if declared < 4 or declared > self.frame_size_max:
            self.refuse(f"frame size {declared} out of range 4-{self.frame_size_max}")
            return -1
        return 4 + declared

    cdef int read_frame(self, const unsigned char* at, Py_ssize_t size) except -1:
        cdef uint32_t kind = load_u32(at + FRAME_TYPE)
        cdef Message message
        cdef Reply reply
        if kind == FRAME_TYPE_MESSAGE:
            if size < FRAME_HEADER:
                self.refuse(f"message frame of {size - 8} bytes has no head")
                return 0
            if self.finishing:
                return self.finish_message(at, size)
            message = Message.__new__(Message)
            message.owner = self.owner
            message.timestamp_ns = load_i64(at + FRAME_TIMESTAMP)
            message.attempts = load_u16(at + FRAME_ATTEMPTS)
            message.id = at[FRAME_ID:FRAME_HEADER]
            message.body = at[FRAME_HEADER:size]
            self.frames.append(message)
        elif kind == FRAME_TYPE_RESPONSE or kind == FRAME_TYPE_ERROR:
            reply = Reply.__new__(Reply)
            reply.error = kind == FRAME_TYPE_ERROR
            reply.text = at[8:size]
            self.frames.append(reply)
        else:
            self.refuse(f"frame type {kind} is not known")
        return 0

    cdef int finish_message(self, const unsigned char* at, Py_ssize_t size) except -1:
        cdef unsigned char* command = self.commands.extend(FIN_SIZE)
        cdef int64_t stamp = 0
        memcpy(command, b"FIN ", 4)
        memcpy(command + 4, at + FRAME_ID, ID_SIZE)
        command[20] = c"\n"
        if size >= FRAME_HEADER + 8:
            stamp = load_i64(at + FRAME_HEADER)
        memcpy(self.stamps.extend(8), &stamp, 8)
        self.finished_count += 1
        self.finished_size += size - FRAME_HEADER
        return 0

    cdef bint refuse(self, str text):
        self.error = ProtocolError("E_BAD_FRAME", text)
        return True
