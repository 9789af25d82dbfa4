from libc.stdint cimport int64_t, uint16_t


cdef class Message:
    cdef readonly int64_t timestamp_ns
    cdef readonly uint16_t attempts
    cdef readonly bytes id
    cdef readonly bytes body
    cdef public object owner
    cdef public unsigned char state


cdef class Reply:
    cdef readonly bint error
    cdef readonly bytes text


cdef class Finished:
    cdef readonly Py_ssize_t count
    cdef readonly int64_t body_size
    cdef readonly bytes commands
    cdef readonly bytes stamps
    cdef readonly list replies


# Bytes that grow by doubling and are handed out once as a Python object.
cdef class Pile:
    cdef unsigned char* bytes_at
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    cdef unsigned char* extend(self, Py_ssize_t size) except NULL
    cdef bytes take(self)


cdef class FrameReader:
    cdef readonly Py_ssize_t frame_size_max
    cdef readonly object error
    cdef public object owner
    cdef Pile held
    cdef list frames
    cdef Pile commands
    cdef Pile stamps
    cdef bint finishing
    cdef Py_ssize_t finished_count
    cdef int64_t finished_size

    cdef int read(self, data) except -1
    cdef Py_ssize_t complete_held(self, const unsigned char* at, Py_ssize_t size) except -1
    cdef Py_ssize_t read_frames(self, const unsigned char* at, Py_ssize_t size) except -1
    cdef Py_ssize_t frame_end(self, const unsigned char* at, Py_ssize_t size) except -2
    cdef int read_frame(self, const unsigned char* at, Py_ssize_t size) except -1
    cdef int finish_message(self, const unsigned char* at, Py_ssize_t size) except -1
    cdef bint refuse(self, str text)
