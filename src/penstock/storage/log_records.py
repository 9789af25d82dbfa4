"""What a topic log reports: to the engine, and its writer to the loop."""

from __future__ import annotations

from penstock.core.tables import Visible
from penstock.record import record
from penstock.storage.segment import Segment
from penstock.storage.segment_format import Trailer


@record
class SegmentRecord:
    """The state of a segment or side file, for the engine."""

    base: int
    first: int
    end: int
    count: int
    size: int
    sealed: bool
    side: bool
    slot_min: int
    slot_max: int
    append_ns_first: int
    append_ns_last: int
    path: str


@record
class SyncToken:
    """What a sync covered; ``base`` and ``offset`` are for a SYNCED record."""

    base: int
    offset: int
    end: int
    count: int
    size: int


@record
class Sealed:
    """A segment was sealed."""

    segment: Segment
    size: int
    trailer: Trailer | None


@record
class Moved:
    """The batches of ``old`` after ``keep`` were moved to ``new`` (R8)."""

    old: Segment
    keep: Visible
    new: Segment
    visible: Visible
