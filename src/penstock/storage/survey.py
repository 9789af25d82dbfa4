# A full scan of a segment file whose footer is missing or damaged.
#
# Reads piece by piece, so that a segment of any size takes a few megabytes of memory.
#
# Rule 1: good batches are kept, whatever is between them.
# Rule 2: a batch with a good header and a bad payload is skipped as a whole; only after a bad
#         header the next magic is searched for.
# Rule 3: this only reads.  Whether damage is torn or corrupt is decided in recovery.
# Rule 4: a read error of the disk is not damage: it is raised.

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.batches import (
    BAD_PAYLOAD,
    BATCH_HEADER_SIZE,
    HEADER_SIZE,
    ID_FIELD,
    INDEX_MAX,
    MOVED,
    ORIGINS,
    PARTIAL,
    resync,
    scan,
)
from penstock.core.tables import Tally
from penstock.storage.files import Files
from penstock.storage.moved import Arrivals

if TYPE_CHECKING:
    from penstock.core.batches import ScannedBatch

PIECE_SIZE = 4 * 1024 * 1024
ORDINAL_SIZE = 4


class BadBytes(NamedTuple):
    """Bytes of a segment that are not good batches, and the indexes they may have had."""

    offset: int
    end: int
    index_start: int
    index_end: int


@dataclass
class Survey:
    """The contents of a file."""

    tally: Tally
    bad: list[BadBytes] = field(default_factory=list)
    size: int = 0
    zeros_from: int = 0  # the file is zeros from here to its end
    fired: dict[int, list[int]] = field(default_factory=dict)
    moved: Arrivals = field(default_factory=Arrivals)
    node_id: int | None = None


class Walk:
    """One scan; a subclass may override saw_batch() and saw_bad(), called in file order."""

    def __init__(
        self,
        files: Files,
        path: str,
        base: int,
        index_limit: int = INDEX_MAX,
        end: int = 0,
        settled_end: int = 0,
    ) -> None:
        self.files = files
        self.path = path
        self.index_limit = index_limit
        self.end = end  # end of the batches, if known; 0: end of the file
        self.settled_end = settled_end  # origins of moves below it are not wanted
        self.result = Survey(Tally(base))
        self.bad_from: int | None = None
        self.index = 0  # one past the last good batch
        self.base = base

    def keep(self, piece: bytes, at: int, batch: ScannedBatch) -> bool:
        first, count, start, end, append_ns, slot, flags = batch
        if first >= self.index_limit:
            return False
        offset = at + start - BATCH_HEADER_SIZE
        self.close_bad(offset, first)
        if self.result.node_id is None:
            self.result.node_id = node_id_of(piece[start:end][ID_FIELD])
        payload_end = end + (ORDINAL_SIZE * count if flags & ORIGINS else 0)
        if flags & ORIGINS:
            ordinals = decode_ordinals(piece[end:payload_end])
            if not flags & MOVED:
                self.result.fired.setdefault(slot, []).extend(ordinals)
            elif first + count > self.settled_end:
                self.result.moved.add(first, slot, flags, ordinals)
        self.result.tally.note(offset, first, count, at + payload_end, append_ns, slot, flags)
        self.index = first + count
        self.saw_batch(offset, piece, batch)
        return True

    def saw_batch(self, offset: int, piece: bytes, batch: ScannedBatch) -> None:
        """A good batch at ``offset``; the offsets in it are relative to ``piece``."""

    def saw_bad(self, bad: BadBytes) -> None:
        """Bytes that are not a batch."""

    def open_bad(self, offset: int) -> None:
        if self.bad_from is None:
            self.bad_from = offset

    def close_bad(self, offset: int, index_end: int) -> None:
        if self.bad_from is not None:
            start = self.index or self.base
            bad = BadBytes(self.bad_from, offset, start, max(start, index_end))
            self.bad_from = None
            self.result.bad.append(bad)
            self.saw_bad(bad)

    def run(self) -> Survey:
        size = self.result.size = self.end or self.files.size(self.path)
        offset = HEADER_SIZE
        want = PIECE_SIZE
        while offset < size:
            piece = self.read(offset, min(want, size - offset))
            want = PIECE_SIZE
            found = scan(piece, 0, True, self.index)
            for batch in found.batches:
                if not self.keep(piece, offset, batch):
                    return self.result  # the batches from here on are in another file
            at_end = offset + len(piece) >= size or not piece
            if found.reason == BAD_PAYLOAD:
                self.open_bad(offset + found.stop)
                offset += found.stop + found.size
            elif found.stop == len(piece):
                offset += found.stop
            elif found.reason == PARTIAL and not at_end:  # the batch continues after the piece
                offset += found.stop
                want = max(PIECE_SIZE, found.size)
            elif found.size:  # a good header whose payload runs past the end of the file
                self.open_bad(offset + found.stop)
                break
            else:
                self.open_bad(offset + found.stop)
                offset = self.find_next(offset + found.stop + 1, size)
        self.result.zeros_from = size
        if self.bad_from is not None:
            self.result.zeros_from = self.zeros_from(self.bad_from, size)
        self.close_bad(size, self.index)
        return self.result

    def zeros_from(self, start: int, end: int) -> int:
        """Where the zeros begin that the bytes of [start, end) end with."""
        while start < end:
            offset = max(start, end - PIECE_SIZE)
            piece = self.read(offset, end - offset)
            if size := len(piece.rstrip(b"\0")):
                return offset + size
            end = offset
        return start

    def read(self, offset: int, size: int) -> bytes:
        return self.files.pread(self.path, offset, size, True) or b""

    def find_next(self, offset: int, size: int) -> int:
        while offset + BATCH_HEADER_SIZE <= size:
            piece = self.read(offset, min(PIECE_SIZE, size - offset))
            found = resync(piece, 0, self.index)
            if found >= 0:
                return offset + found
            offset += max(1, len(piece) - BATCH_HEADER_SIZE + 1)
        return size


def survey(
    files: Files, path: str, base: int, index_limit: int = INDEX_MAX, settled_end: int = 0
) -> Survey:
    """Scan the file at ``path``; batches from ``index_limit`` on are ignored.

    Origins of messages that were moved here are kept from ``settled_end`` on.
    """
    return Walk(files, path, base, index_limit, settled_end=settled_end).run()


def node_id_of(message_id: bytes) -> int | None:
    """The node id in the 16 hex digits of a message id."""
    try:
        return int(message_id, 16) >> 54
    except ValueError:
        return None


def decode_ordinals(data: bytes) -> list[int]:
    return [number for (number,) in struct.iter_unpack(">I", data)]
