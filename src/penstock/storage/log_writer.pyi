from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.core.appender import Batch
from penstock.core.batches import HEADER_SIZE as HEADER_SIZE
from penstock.storage.files import Files
from penstock.storage.log_records import Moved, Sealed, SyncToken
from penstock.storage.segment import Extent, Segment
from penstock.storage.segment_format import TRAILER_SIZE as TRAILER_SIZE

SEGMENT_SIZE_MAX: Final = 67_108_864
ROLL_SIZE_FINISHED: Final = 4_194_304

class LogWriter:
    segment_size_max: int
    roll_wanted: bool
    @property
    def active(self) -> Segment | None: ...
    @property
    def extent(self) -> Extent: ...
    @property
    def events(self) -> list[Batch | Sealed | Moved]: ...
    @property
    def cuts(self) -> deque[tuple[Segment, int]]: ...
    def __init__(
        self,
        files: Files,
        folder: str,
        instance: int,
        node_id: int,
        end: int,
        segment_size_max: int = ...,
    ) -> None: ...
    def resume(self, tail: Segment) -> None: ...
    def write(self, batch: Batch) -> None: ...
    def needs_roll(self, low: int = ...) -> bool: ...
    def sync(self) -> SyncToken: ...
    def sync_here(self) -> SyncToken | None: ...
    def start_sync(self, done: Callable[[SyncToken | None, OSError | None], object]) -> bool: ...
    def roll(self) -> SyncToken: ...
