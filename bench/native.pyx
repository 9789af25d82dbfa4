# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Load and floor in C: what costs a microsecond here would hide what a broker costs.

    await_replies      connections that each send a request and await its reply, again and again
    finish_singly      a consumer that sends every FIN as a packet of its own, as NSQ's clients do
    serve_floor        the least a broker can do: epoll_wait, recv, one write a turn, send

All run without the GIL in a process of their own.  ``bench/native.py`` builds this file.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcpy, memmove
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close, read, write

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
        uint32_t u32
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    enum: EPOLLIN, EPOLL_CTL_ADD, EPOLL_CTL_DEL
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* buf, size_t size, int flags)
    ssize_t send(int fd, const void* buf, size_t size, int flags)
    int accept4(int fd, void* addr, void* size, int flags)
    enum: MSG_NOSIGNAL, SOCK_NONBLOCK

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)

cdef enum:
    BUFFER = 65536
    EVENTS = 256
    SILENCE_MS = 30000


cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec * 1000000000 + t.tv_nsec


cdef inline bint send_all(int fd, const char* data, size_t size) noexcept nogil:
    cdef ssize_t sent
    while size:
        sent = send(fd, data, size, MSG_NOSIGNAL)
        if sent < 0:
            if errno == EINTR:
                continue
            return False
        data += sent
        size -= sent
    return True


def await_replies(list fds, bytes request, int reply_size, int reply_lines, int64_t count):
    """Send ``count`` requests over all sockets (blocking ones), each after the reply before it.

    A reply is ``reply_size`` bytes, or ``reply_lines`` lines if that is not 0.  Returns seconds and
    the time of each reply in nanoseconds, as a list of at most 100,000 samples.
    """
    cdef int n = len(fds), ready, i, c, epfd = epoll_create1(0)
    cdef int* sockets = <int*>calloc(n, sizeof(int))
    cdef int* pending = <int*>calloc(n, sizeof(int))
    cdef int64_t* sent_ns = <int64_t*>calloc(n, sizeof(int64_t))
    cdef int64_t sample_max = min(count, 100000), samples = 0, sent = 0, done = 0, start, at
    cdef int64_t* times = <int64_t*>malloc(sample_max * sizeof(int64_t))
    cdef char* buffer = <char*>malloc(BUFFER)
    cdef const char* text = request
    cdef size_t size = len(request)
    cdef epoll_event event
    cdef epoll_event events[EVENTS]
    cdef ssize_t got
    cdef char* p
    cdef int failed = 0, unit = reply_lines if reply_lines else reply_size
    for i in range(n):
        sockets[i] = fds[i]
        event.events, event.data.u32 = EPOLLIN, i
        epoll_ctl(epfd, EPOLL_CTL_ADD, sockets[i], &event)
    with nogil:
        start = now_ns()
        for i in range(n):
            if sent < count:
                sent_ns[i], pending[i] = now_ns(), unit
                failed |= not send_all(sockets[i], text, size)
                sent += 1
        while done < count and not failed:
            ready = epoll_wait(epfd, events, EVENTS, SILENCE_MS)
            if ready <= 0:
                failed = 2
                break
            for i in range(ready):
                c = events[i].data.u32
                got = recv(sockets[c], buffer, BUFFER, 0)
                if got <= 0:
                    failed = 3
                    break
                if reply_lines:
                    p = buffer
                    while got > 0:
                        p = <char*>memchr(p, 10, got - (p - buffer))
                        if p == NULL:
                            break
                        pending[c] -= 1
                        p += 1
                        if p - buffer >= got:
                            break
                else:
                    pending[c] -= got
                if pending[c] <= 0:
                    at = now_ns()
                    if samples < sample_max:
                        times[samples] = at - sent_ns[c]
                        samples += 1
                    done += 1
                    if sent < count:
                        sent_ns[c], pending[c] = at, unit
                        if not send_all(sockets[c], text, size):
                            failed = 4
                            break
                        sent += 1
        at = now_ns()
    result = [times[i] for i in range(samples)]
    free(sockets); free(pending); free(sent_ns); free(times); free(buffer)
    close(epfd)
    if failed:
        raise OSError(f"the load ended early ({failed}) after {done} of {count} replies")
    return (at - start) / 1e9, result


def finish_singly(int fd, int64_t count):
    """Finish ``count`` messages of a subscribed socket, each FIN in a packet of its own.

    Heartbeats are not answered: a run has to be shorter than two of them.  Returns seconds.
    """
    cdef char* buffer = <char*>malloc(BUFFER * 16)
    cdef char fin[21]
    cdef size_t have = 0, at
    cdef uint32_t size, kind
    cdef ssize_t got
    cdef int64_t done = 0, start = 0
    cdef int failed = 0
    memcpy(fin, b"FIN ", 4)
    fin[20] = 10
    with nogil:
        while done < count and not failed:
            got = recv(fd, buffer + have, BUFFER * 16 - have, 0)
            if got <= 0:
                failed = 1
                break
            if not start:
                start = now_ns()
            have += got
            at = 0
            while have - at >= 8:
                size = big_endian(buffer + at)
                if have - at < size + 4:
                    break
                kind = big_endian(buffer + at + 4)
                if kind == 2:
                    memcpy(fin + 4, buffer + at + 18, 16)
                    if not send_all(fd, fin, 21):
                        failed = 2
                        break
                    done += 1
                elif kind == 1:
                    failed = 3
                at += size + 4
            memmove(buffer, buffer + at, have - at)
            have -= at
        got = now_ns() - start
    free(buffer)
    if failed:
        raise OSError(f"the consumer ended early ({failed}) after {done} of {count} messages")
    return got / 1e9


cdef inline uint32_t big_endian(const char* p) noexcept nogil:
    cdef const unsigned char* b = <const unsigned char*>p
    return (<uint32_t>b[0] << 24) | (<uint32_t>b[1] << 16) | (<uint32_t>b[2] << 8) | b[3]


def serve_floor(int listener, int file, bint synced):
    """Answer every packet that ends a PUB with OK, after one write a turn; until killed.

    Nothing is parsed: a client awaits each OK, so a packet that ends with the request's last byte
    is a request.  The magic, which has 4 bytes, gets no answer.
    """
    cdef int epfd = epoll_create1(0), ready, i, fd, answers
    cdef char* buffer = <char*>malloc(BUFFER * 16)
    cdef size_t have
    cdef ssize_t got
    cdef epoll_event event
    cdef epoll_event events[EVENTS]
    cdef int answer[EVENTS]
    cdef char ok[10]
    memcpy(ok, b"\x00\x00\x00\x06\x00\x00\x00\x00OK", 10)
    event.events, event.data.fd = EPOLLIN, listener
    epoll_ctl(epfd, EPOLL_CTL_ADD, listener, &event)
    with nogil:
        while True:
            ready = epoll_wait(epfd, events, EVENTS, -1)
            have, answers = 0, 0
            for i in range(ready):
                fd = events[i].data.fd
                if fd == listener:
                    fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)
                    if fd >= 0:
                        event.events, event.data.fd = EPOLLIN, fd
                        epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event)
                    continue
                if have > BUFFER * 15:
                    continue
                got = recv(fd, buffer + have, BUFFER, 0)
                if got <= 0:
                    if got == 0 or errno != EAGAIN:
                        close(fd)
                    continue
                if got > 4:
                    have += got
                    answer[answers] = fd
                    answers += 1
            if have:
                write(file, buffer, have)
                if synced:
                    fdatasync(file)
                for i in range(answers):
                    send(answer[i], ok, 10, MSG_NOSIGNAL)
