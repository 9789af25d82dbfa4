"""Buried messages in a topic's journal (R24).

    BURIED     id u32 of the channel | body (core/buried.pyx)
    UNBURIED   id u32 | kicked u8 | runs: (start u64, end u64) ...

An UNBURIED record is about all messages that are buried in its runs at that place in the journal.
They are unfinished again if they were ``kicked``, otherwise finished.  A kicked message is
unfinished although it is below the channel's ``low``, or in a run, until a later PROGRESS record
finishes it.

Rule 1: BURIED precedes the PROGRESS that finishes the message, and UNBURIED follows it: wherever
        the journal is torn, a message is unfinished or buried.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence

from penstock.core.buried import Buried
from penstock.storage.records import Framing

_ID = struct.Struct(">I")
_UNBURIED = struct.Struct(">IB")
_RUN = struct.Struct(">QQ")
# Runs in one record: it stays under the limit of the journal's records.
RUN_COUNT_MAX = 4096
INDEX_END = 1 << 54

Run = tuple[int, int]


def encode_buried(framing: Framing, kind: int, id: int, body: bytes) -> bytes:
    return framing.encode(kind, _ID.pack(id) + body)


def encode_unburied(framing: Framing, kind: int, id: int, runs: bytes, *, kicked: bool) -> bytes:
    """``runs`` are encoded already; several records if there are many."""
    size = RUN_COUNT_MAX * _RUN.size
    head = _UNBURIED.pack(id, kicked)
    pieces = (runs[at : at + size] for at in range(0, len(runs), size))
    return b"".join(framing.encode(kind, head + piece) for piece in pieces)


def decode_buried(payload: bytes) -> tuple[int, bytes]:
    """(id, body for Buried.load())"""
    id: int = _ID.unpack_from(payload)[0]
    return id, payload[_ID.size :]


def decode_unburied(payload: bytes) -> tuple[int, bool, list[Run]]:
    """(id, kicked, runs)"""
    id, kicked = _UNBURIED.unpack_from(payload)
    return id, bool(kicked), list(_RUN.iter_unpack(payload[_UNBURIED.size :]))


class Burials:
    """The buried messages of one channel while its journal is replayed."""

    def __init__(self) -> None:
        self.table = Buried()
        self._kicked: set[int] = set()
        self._order: list[int] = []  # a heap of the kicked ones, and of some finished since

    def bury(self, body: bytes) -> None:
        """Apply a BURIED record; raises ValueError if it is damaged."""
        added = Buried()
        added.load(body)
        self.table.load(body)
        if self._kicked:
            self._kicked.difference_update(added.indexes())

    def unbury(self, runs: list[Run], *, kicked: bool) -> list[int]:
        """Apply an UNBURIED record; returns the messages that it kicked."""
        returned: list[int] = []
        for start, end in runs:
            if kicked:
                returned += self.table.between(start, end, len(self.table)) or ()
            self.table.remove(start, end)
        self._kicked.update(returned)
        for index in returned:
            heapq.heappush(self._order, index)
        return returned

    def rewind(self, start: int) -> None:
        """The channel was sought to ``start``: what is below stays buried."""
        self.table.remove(start, INDEX_END)
        self._kicked.clear()
        self._order.clear()

    def copy(self) -> Burials:
        found = Burials()
        for body in self.table.snapshot():
            found.table.load(body)
        found._kicked, found._order = self._kicked.copy(), self._order.copy()
        return found

    def finish(self, low: int, runs: list[Run]) -> None:
        """A later PROGRESS record finishes what is below ``low`` and in ``runs``."""
        kicked = self._kicked
        while self._order and self._order[0] < low:
            kicked.discard(heapq.heappop(self._order))
        for start, end in runs if kicked else ():
            if end - start < len(kicked):
                kicked.difference_update(range(start, end))
            else:
                kicked.difference_update([i for i in kicked if start <= i < end])

    def kicked(self) -> list[int]:
        """Messages that are unfinished whatever the progress says; ascending."""
        return sorted(self._kicked)


def without(runs: Iterable[Run], indexes: Sequence[int]) -> Iterator[Run]:
    """``runs``, which ascend, without the ``indexes``, which ascend too."""
    place = 0
    for start, end in runs:
        while place < len(indexes) and indexes[place] < start:
            place += 1
        while place < len(indexes) and indexes[place] < end:
            if start < indexes[place]:
                yield start, indexes[place]
            start = indexes[place] + 1
            place += 1
        if start < end:
            yield start, end
