from libc.stdint cimport int64_t, uint16_t


cdef class Message:
    cdef readonly int64_t timestamp_ns  # wall clock, when it was published
    cdef readonly uint16_t attempts     # this delivery included
    cdef readonly bytes id              # 16 hexadecimal digits
    cdef readonly bytes body
    cdef public object owner            # the subscription that answers for it; set by the reader
    cdef public unsigned char state     # WAITING, DETACHED or RESPONDED; the owner's


cdef class Reply:
    cdef readonly bint error  # an error frame
    cdef readonly bytes text


cdef class Finished:
    cdef readonly Py_ssize_t count   # messages
    cdef readonly int64_t body_size  # bytes of their bodies
    cdef readonly bytes commands     # a FIN for each of them
    cdef readonly bytes stamps       # int64, native: the first 8 bytes of each body
    cdef readonly list replies       # Reply objects that came between them


# A byte buffer that grows by doubling; take() returns and empties it.
cdef class Pile:
    cdef unsigned char* bytes_at
    cdef Py_ssize_t size      # bytes used
    cdef Py_ssize_t capacity  # bytes allocated

    cdef unsigned char* extend(self, Py_ssize_t size) except NULL
    cdef bytes take(self)


cdef class FrameReader:
    cdef readonly Py_ssize_t frame_size_max  # bytes after the size field that a frame may have
    # ProtocolError of a bad frame, or None; ends the reading.
    cdef readonly object error
    cdef public object owner                 # what each message gets as its owner
    cdef Pile held                           # the beginning of a frame whose end has not arrived
    cdef list frames                         # read by the current call
    cdef Pile commands                       # FINs of the current call
    cdef Pile stamps                         # of the current call
    cdef bint finishing                      # the current call is finish(), not feed()
    cdef Py_ssize_t finished_count           # messages of the current call
    cdef int64_t finished_size               # bytes of their bodies

    cdef int read(self, data) except -1
    cdef Py_ssize_t complete_held(self, const unsigned char* at, Py_ssize_t size) except -1
    cdef Py_ssize_t read_frames(self, const unsigned char* at, Py_ssize_t size) except -1
    cdef Py_ssize_t frame_end(self, const unsigned char* at, Py_ssize_t size) except -2
    cdef int read_frame(self, const unsigned char* at, Py_ssize_t size) except -1
    cdef int finish_message(self, const unsigned char* at, Py_ssize_t size) except -1
    cdef bint refuse(self, str text)
