"""Heads of requests that were read before: a client repeats its own for every message.

Rule 1: no I/O, no clock.  A head found here means what the parser made of the same bytes.
Rule 2: only plain ones are kept: a body of declared size or none, the connection goes on, and
        nothing is asked of us before the body comes.
Rule 3: everything is bounded.  When there are too many, the oldest goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.net.http_message import Request
from penstock.record import record

_END = b"\r\n\r\n"
# 512 of the longest are 1 MiB.
_COUNT_MAX = 512
_SIZE_MAX = 2048
# Such a request is more than a head and a body.
_UNUSUAL = frozenset((b"expect", b"transfer-encoding", b"upgrade"))


@record
class KnownHead:
    """What a head says, and the sizes of it and of the body it announces."""

    method: str
    path: str
    raw_query: bytes
    version: str
    headers: Mapping[bytes, bytes]
    content_size: int | None
    size: int
    body_size: int

    def request(self, remote_address: str) -> Request:
        """A new request with this head."""
        request = Request(self.method, self.path, self.raw_query)
        request.version = self.version
        request.headers = self.headers
        request.content_size = self.content_size
        request.remote_address = remote_address
        return request


class KnownHeads:
    """Heads by their bytes, for all connections of a server."""

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, data: bytes, start: int) -> KnownHead | None:
        """The head that begins at ``start``, if it is known and ``data`` has the body too."""
        end = data.find(_END, start, start + _SIZE_MAX)
        if end < 0:
            return None
        head = self._heads.get(data[start:end])
        if head is None or len(data) - start < head.size + head.body_size:
            return None
        return head

    def learn(self, request: Request, data: bytes) -> None:
        """Keep the head of ``request``, if ``data`` is this request and nothing else.

        Where the first empty line is not the head's end, after lines without CR for example, the
        sizes do not add up.
        """
        end = data.find(_END, 0, _SIZE_MAX)
        size, body_size = end + len(_END), request.content_size or 0
        if end < 0 or size + body_size != len(data) or len(request.body) != body_size:
            return
        if not request.keep_alive or not _UNUSUAL.isdisjoint(request.headers):
            return
        if len(self._heads) >= _COUNT_MAX:
            del self._heads[next(iter(self._heads))]
        self._heads[data[:end]] = KnownHead(
            request.method,
            request.path,
            request.raw_query,
            request.version,
            request.headers,
            request.content_size,
            size,
            body_size,
        )
