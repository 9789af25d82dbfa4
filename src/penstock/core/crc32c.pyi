from typing import Final

from typing_extensions import Buffer

HARDWARE: Final[bool]

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def crc32c_by_tables(data: bytes) -> int: ...
