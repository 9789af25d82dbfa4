from typing import Final

HEADER_SIZE: Final = 64
BATCH_HEADER_SIZE: Final = 56
FRAME_SIZE_MIN: Final = 34
TIMESTAMP_FIELD: Final[slice]
ID_FIELD: Final[slice]
INDEX_MAX: Final = 18014398509481984
ORIGINS: Final = 1
STAGED: Final = 2
MOVED: Final = 4
END: Final = 0
PARTIAL: Final = 1
BAD_HEADER: Final = 2
BAD_PAYLOAD: Final = 3

ScannedBatch = tuple[int, int, int, int, int, int, int]

class ScanResult:
    batches: list[ScannedBatch]
    stop: int
    reason: int
    size: int
    first: int
    count: int
    def spans(self, index: int) -> list[tuple[int, ...]]: ...

def encode_batch_header(
    payload: bytes,
    first: int,
    count: int,
    append_ns: int,
    publish_ns: int,
    slot: int = 0,
    flags: int = 0,
) -> bytes: ...
def scan(data: bytes, offset: int, verify: bool, index_min: int = 0) -> ScanResult: ...
def resync(data: bytes, offset: int, index_min: int = 0) -> int: ...
