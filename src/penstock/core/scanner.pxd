from libc.stdint cimport int64_t

from penstock.core.appender cimport Appender
from penstock.core.ticket cimport Ticket
from penstock.core.window cimport Consumer, Window

cdef struct Token:
    const unsigned char* at
    Py_ssize_t size


# What advance() returns when there may be more to do without more input.
cdef object WORKED


cdef class Owed:
    cdef readonly Ticket ticket
    cdef readonly int64_t count
    cdef readonly str command


cdef class Scanner:
    cdef public int state
    cdef public Window window
    cdef public Consumer consumer
    cdef public bint tls_required
    cdef public int64_t msg_timeout_ns
    cdef public bint progressed
    cdef public bint answered
    cdef readonly int64_t command_count
    cdef readonly list owed
    # How large the command at hand will be, with its body; 0 if that is not known yet.
    cdef readonly Py_ssize_t wanted

    cdef dict appenders
    cdef object on_settled
    cdef int64_t message_size_max
    cdef int64_t body_size_max
    cdef int64_t ready_count_max
    cdef int64_t requeue_ms_max
    cdef int64_t defer_ms_max
    cdef int64_t msg_timeout_max_ns

    cdef object chunk
    cdef unsigned char* rest
    cdef Py_ssize_t rest_capacity
    cdef const unsigned char* at
    cdef const unsigned char* end
    cdef Py_ssize_t line_scanned
    cdef int64_t multi_done
    cdef Py_ssize_t multi_at
    cdef tuple waiting

    cdef Appender last
    cdef bytes last_name
    cdef int64_t last_published
    cdef dict published

    cdef int64_t now_ns
    cdef int64_t wall_ns
    cdef int64_t work_count

    cdef int take_in(self, owner, const unsigned char* data, Py_ssize_t size) except -1
    cpdef object next(self, int64_t now_ns, int64_t wall_ns)
    cdef object advance(self, int64_t now_ns, int64_t wall_ns)
    cdef object step(self)
    cdef object run_line(self, Py_ssize_t line_size)
    cdef object _run_rare(self, Token* tokens, int count, Py_ssize_t body_at)
    cdef object publish(self, str name, Token* tokens, int count, Py_ssize_t body_at)
    cdef object publish_deferred(self, Token* tokens, int count, Py_ssize_t body_at)
    cdef object publish_multi(self, Token* tokens, int count, Py_ssize_t body_at)
    cdef object check_multi(self, int64_t count, Py_ssize_t body_at)
    cdef object body_missing(self, str name, Py_ssize_t body_at, int64_t* size)
    cdef object with_body(self, str name, Py_ssize_t body_at, int64_t size_max)
    cdef object answer(self, str name, Token* tokens, int count)
    cdef object set_ready(self, Token* tokens, int count)
    cdef object need(self, tuple waiting)
    cdef Appender appender_of(self, Token* name)
    cdef int owe(self, Appender appender, int64_t count, str command) except -1
    cpdef owe_ticket(self, Ticket ticket, str command)
    cdef Owed take_settled(self, int64_t* count)
    cdef void consume(self, Py_ssize_t size) noexcept
    cdef int keep_rest(self, Py_ssize_t extra) except -1
