from typing import Final, Self

from typing_extensions import Buffer

INDEX: Final = 1
TIMESTAMP: Final = 2
ID: Final = 4
BODY: Final = 8

class Columns:
    count: int
    stop: int
    next: int
    index: bytes | None
    timestamp: bytes | None
    id_offsets: bytes | None
    id: bytes | None
    body_offsets: bytes | None
    body: bytes | None

def decode(
    data: bytes, start: int, end: int, wanted: int, offset: int = 0, size_max: int = ...
) -> Columns: ...

class Packer:
    size_max: int
    deferred: bool
    count: int
    size: int
    def __new__(cls, size_max: int, deferred: bool) -> Self: ...
    def add(
        self,
        offsets: Buffer,
        wide: bool,
        values: Buffer | None,
        first: int,
        count: int,
        due_ns: Buffer | None = None,
    ) -> list[tuple[bytes, int]]: ...
    def take(self) -> tuple[bytes, int]: ...
