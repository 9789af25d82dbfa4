import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from penstock.core.frames import Reply

def mpub(head: bytes, bodies: Iterable[bytes | bytearray | memoryview]) -> bytes: ...

class Publication:
    command: bytes
    size: int
    futures: Sequence[asyncio.Future[None]]
    retries: int
    begun_s: float
    sent_s: float
    unknown: bool
    def __init__(
        self,
        command: bytes,
        size: int,
        futures: Sequence[asyncio.Future[None]],
        retries: int,
        begun_s: float,
    ) -> None: ...
    def fail(self, error: Exception) -> None: ...

def single(
    head: bytes, body: bytes, future: asyncio.Future[None], retries: int, begun_s: float
) -> Publication: ...
def answer(pending: deque[Publication], replies: list[Reply]) -> tuple[int, Reply | None]: ...
