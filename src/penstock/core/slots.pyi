HEADER_SIZE: int
RECORD_SIZE_MAX: int

class SlotRecords:
    count: int
    base: int
    data: bytes | None
    next_offset: int
    corrupt_count: int
    corrupt_size: int
    torn_size: int
    bad_offset: int
    bad_end: int
    good_end: int
    def __len__(self) -> int: ...
    def rows(self) -> list[tuple[int, int, int, int, int, int]]: ...

class SlotBatch(SlotRecords):
    number: int
    size: int
    def __init__(self, number: int) -> None: ...
    def add(
        self,
        ordinal: int,
        topic: bytes,
        instance: int,
        body: bytes,
        timestamp_ns: int,
        due_ns: int,
        stamp: int,
    ) -> None: ...
    def add_rows(
        self,
        part: bytes,
        at: int,
        count_max: int,
        ordinal: int,
        topic: bytes,
        instance: int,
        timestamp_ns: int,
        stamp: int,
        start_ns: int,
        end_ns: int,
    ) -> tuple[int, int]: ...
    def packed(self) -> bytes: ...
    def settle(self, base: int) -> None: ...

class Due:
    slot: int
    ordinal: int
    topic: str
    instance: int
    timestamp_ns: int
    due_ns: int
    stamp: int
    body: bytes
    offset: int
    size: int
    def __init__(
        self,
        slot: int,
        ordinal: int,
        topic: str,
        instance: int,
        timestamp_ns: int,
        due_ns: int,
        stamp: int,
        body: bytes | None,
    ) -> None: ...
    def __lt__(self, other: Due, /) -> bool: ...
    def __gt__(self, other: Due, /) -> bool: ...

def scan(data: bytes, base: int, end: int, number: int) -> SlotRecords: ...
def parse_record(data: bytes, number: int, ordinal: int) -> Due | None: ...
