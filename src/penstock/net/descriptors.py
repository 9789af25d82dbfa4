"""How the process's file descriptors are divided, so that connections never take those of files.

    limit of the process  =  files  +  reads  +  others  +  connections  +  accepted in one turn

Files are those that storage keeps open.  Reads are parts of files being sent over HTTP, each with a
duplicate of its socket.  Others are standard streams, the loop's own, listening sockets, locks, and
connections to nsqlookupd, statsd and the auth server.
"""

from __future__ import annotations

import resource

from penstock.record import record

FILE_COUNT_MAX = 256
FILE_COUNT_MIN = 16
READ_COUNT_MAX = 128
OTHER_COUNT = 24
CONNECTION_COUNT_MIN = 8
# Where the system sets no limit.
UNLIMITED = 1 << 20


@record
class Descriptors:
    """Shares of the limit."""

    files: int
    reads: int
    connections: int


def share_out(limit: int, other_count: int = 0) -> Descriptors:
    """The shares of nsqd; ``other_count``: descriptors it needs beyond OTHER_COUNT."""
    files = max(FILE_COUNT_MIN, min(FILE_COUNT_MAX, limit // 4))
    reads = min(READ_COUNT_MAX, limit // 32)
    # If the limit is low, others get at most an eighth.
    left = limit - files - 2 * reads - OTHER_COUNT - min(other_count, limit // 8)
    return Descriptors(files, reads, _slots(left))


def connection_count_max(limit: int) -> int:
    """The share of connections of a daemon that keeps no files open."""
    return _slots(limit - OTHER_COUNT)


def accept_count_max(slot_count: int) -> int:
    """How many connections may be accepted in one turn; 32 take about 2 ms."""
    return max(1, min(32, slot_count // 8))


def _slots(left: int) -> int:
    return max(CONNECTION_COUNT_MIN, left - accept_count_max(left))


def open_files_limit() -> int:
    """How many descriptors this process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if limit in (resource.RLIM_INFINITY, -1) else min(limit, UNLIMITED)
