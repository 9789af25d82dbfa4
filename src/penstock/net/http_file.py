"""Sends a part of a file through a connection's socket: the kernel does it, without a copy.

Rule 1: nothing else is written to the connection until it is done.
Rule 2: the loop never waits (R9): not for the peer, and not for the disk.  Bytes that have left the
        page cache meanwhile are fetched, and sent later.
Rule 3: the socket is a duplicate, so nobody else's is used if the connection is lost meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from penstock.page_cache import Stretch, fetch, is_cached

# In one turn; 0.2 ms.
STEP_SIZE = 1 << 20
FETCH_S = 0.005


class FileSending:
    """``head`` and then ``stretch``, from now until ``ended`` is called with an error or None."""

    def __init__(
        self, socket_fd: int, head: bytes, stretch: Stretch, ended: Callable[[OSError | None], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket_fd = os.dup(socket_fd)
        self._head = head
        self._file_fd = stretch.fd
        self._offset = stretch.offset
        self._end = stretch.offset + stretch.size
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        self._watching = False

    @property
    def left_size(self) -> int:
        """Bytes the socket has not taken yet."""
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
        elif self._timer is None and not self._watching:
            self._watching = True
            self._loop.add_writer(self._socket_fd, self.start)

    def cancel(self) -> None:
        """Stop; ``ended`` is not called."""
        self._rest()
        if self._timer is not None:
            self._timer.cancel()
        fd, self._socket_fd = self._socket_fd, -1
        if fd >= 0:
            os.close(fd)

    def _send(self) -> bool:
        """Send what the socket takes in one turn; whether that was all."""
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
        self._rest()
        self._timer = self._loop.call_later(FETCH_S, self._fetched)

    def _fetched(self) -> None:
        self._timer = None
        self.start()

    def _rest(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_writer(self._socket_fd)

    def _end_with(self, error: OSError | None) -> None:
        self.cancel()
        self._ended(error)
