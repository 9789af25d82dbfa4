"""Sends a part of a file over a connection's socket with sendfile, without copying it.

Rule 1: nothing else is written to the connection until it is done.
Rule 2: the loop never blocks (R9): not on the peer, and not on the disk.  Bytes that are no longer
        in the page cache are read ahead first, and sent a moment later.
Rule 3: the socket is a duplicate: if the connection is lost meanwhile, its descriptor cannot be one
        that another connection has got.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from penstock.net.http_states import TABLE, Event, State
from penstock.page_cache import FileSlice, fetch, is_cached

# Bytes sent in one turn; 0.2 ms.
STEP_SIZE = 1 << 20
FETCH_S = 0.005


class FileSending:
    """Sends ``head``, then ``file``; at the end calls ``ended`` with an error or None."""

    def __init__(
        self, socket_fd: int, head: bytes, file: FileSlice, ended: Callable[[OSError | None], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket_fd = os.dup(socket_fd)
        self._head = head
        self._file_fd = file.fd
        self._offset = file.offset
        self._end = file.offset + file.size
        self._ended = ended
        self._state = State.READY
        self._timer: asyncio.TimerHandle | None = None

    @property
    def left_size(self) -> int:
        """Bytes not written to the socket yet."""
        return len(self._head) + self._end - self._offset

    def start(self) -> None:
        try:
            done = self._send()
        except BlockingIOError:
            done = False
        except OSError as error:
            self._end_with(error)
            return
        if done:
            self._end_with(None)
        elif self._state is State.READY:
            self._become(Event.SOCKET_FULL)
            self._loop.add_writer(self._socket_fd, self.start)

    def cancel(self) -> None:
        """Stop; ``ended`` is not called."""
        self._become(Event.FILE_SENT)
        if self._timer is not None:
            self._timer.cancel()
        os.close(self._socket_fd)

    def _send(self) -> bool:
        """Send what the socket takes in one turn; return whether that was all."""
        if self._head:
            self._head = self._head[os.write(self._socket_fd, self._head) :]
            if self._head:
                return False
        size = min(STEP_SIZE, self._end - self._offset)
        if not is_cached(self._file_fd, self._offset, size):
            self._fetch(size)
            return False
        self._offset += os.sendfile(self._socket_fd, self._file_fd, self._offset, size)
        return self._offset == self._end

    def _fetch(self, size: int) -> None:
        if os.fstat(self._file_fd).st_size < self._end:
            raise OSError("the file is shorter than it was")
        fetch(self._file_fd, self._offset, size)
        self._become(Event.NOT_CACHED)
        self._timer = self._loop.call_later(FETCH_S, self._fetched)

    def _fetched(self) -> None:
        self._timer = None
        self._become(Event.FETCHED)
        self.start()

    def _become(self, event: Event) -> None:
        if self._state is State.WATCHING:
            self._loop.remove_writer(self._socket_fd)
        self._state = TABLE[self._state][event]

    def _end_with(self, error: OSError | None) -> None:
        self.cancel()
        self._ended(error)
