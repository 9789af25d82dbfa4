"""How many descriptors are for what, so that connections never take those of files.

    limit of the process  =  files  +  reads  +  others  +  connections  +  accepted in one turn

Files are those that storage keeps open; reads are parts of files on their way to readers, each with
a duplicate of its socket; others are standard streams, the loop's own, listening sockets, locks,
connections to nsqlookupds, to statsd and to the auth server.
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
    """Shares of a limit."""

    files: int
    reads: int
    connections: int


def share_out(limit: int, other_count: int = 0) -> Descriptors:
    """Shares of nsqd; ``other_count``: descriptors it needs beyond the usual others."""
    files = max(FILE_COUNT_MIN, min(FILE_COUNT_MAX, limit // 4))
    reads = min(READ_COUNT_MAX, limit // 32)
    # Of a low limit others may not take all.
    left = limit - files - 2 * reads - OTHER_COUNT - min(other_count, limit // 8)
    return Descriptors(files, reads, _places(left))


def connection_count_max(limit: int) -> int:
    """Connections of a daemon that keeps no files."""
    return _places(limit - OTHER_COUNT)


def accept_count_max(place_count: int) -> int:
    """How many connections may be accepted in one turn; 32 take about 2 ms."""
    return max(1, min(32, place_count // 8))


def _places(left: int) -> int:
    return max(CONNECTION_COUNT_MIN, left - accept_count_max(left))


def open_files_limit() -> int:
    """How many descriptors this process may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if limit in (resource.RLIM_INFINITY, -1) else min(limit, UNLIMITED)
