"""Reads parts of stagings back for publication, and finds those already in the logs (R19)."""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.batches import STAGED, scan
from penstock.engine.staging.staging import Staged
from penstock.errors import CorruptError, StagingError
from penstock.storage.staging import PartRecord, StagingStore, origin_of
from penstock.storage.topic_log import TopicLog

# Size of one read when a log is searched for parts.
SCAN_SIZE = 4 << 20


class Source(NamedTuple):
    """A part of a staging, to be published."""

    staged: Staged
    record: PartRecord

    @property
    def origin(self) -> int:
        return origin_of(self.staged.number, self.record.part)


class DamagedPartError(StagingError):
    """Sealed rows have changed on the disk."""

    def __init__(self, source: Source, path: str, error: CorruptError) -> None:
        super().__init__("STAGING_CORRUPT", str(error))
        self.path = path
        self.count = source.record.count


def read_parts(store: StagingStore, sources: list[Source]) -> list[bytes]:
    """The bodies of parts.  Blocking."""
    bodies = []
    for source in sources:
        try:
            bodies.append(store.read(source.staged.number, source.record))
        except CorruptError as error:
            raise DamagedPartError(source, store.path(source.staged.number), error) from error
    return bodies


def find_parts(topic_log: TopicLog, start: int, end: int, numbers: set[int]) -> set[int]:
    """The origins of parts of ``numbers`` in [start, end) of a log.  Blocking."""
    found: set[int] = set()
    while start < end:
        pieces, start = topic_log.read_range(start, end, SCAN_SIZE)
        for piece in pieces:
            for *_, origin, flags in scan(bytes(piece), 0, False).batches:
                if flags & STAGED and origin >> 16 in numbers:
                    found.add(origin)
    return found
