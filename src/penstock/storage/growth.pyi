from collections import deque
from typing import Any

from penstock.core.appender import Batch
from penstock.core.runs import Runs
from penstock.core.tables import Tally, Visible

class Extent:
    @property
    def end(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def unsynced_count(self) -> int: ...
    @property
    def unsynced_size(self) -> int: ...
    def __init__(self, end: int) -> None: ...
    def found(self, count: int, size: int) -> None: ...
    def reached(self, count: int, size: int) -> None: ...

class Growth:
    path: str
    tally: Tally | None
    visible: Visible
    synced: Visible
    file_size: int
    first: int
    append_ns_first: int
    closed: bool
    failed: bool
    def wrote(self, batch: Batch, extent: Extent) -> None: ...
    def show(self, batch: Batch) -> bool: ...

class Written:
    active: Any
    extent: Extent
    events: deque[Any]
    _files: Any
    _lock: Any
    def _prepare(self) -> None: ...
    def _start_segment(self, batch: Batch) -> Any: ...
    def write(self, batch: Batch) -> None: ...

class Shown:
    end: int
    full: bool
    _segments: tuple[Any, ...]
    _runs: Runs
    _writer: Any
    _segment_size_max: int
    def _work_off(self) -> None: ...
    def needs_roll(self) -> bool: ...
    def commit(self, batch: Batch) -> None: ...
