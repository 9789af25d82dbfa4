from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol, Self

from penstock.core.frames import Reply

class Future(Protocol):
    """As much of asyncio's as is needed here, where there is no asyncio."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...
    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None: ...

def mpub(head: bytes, bodies: Iterable[bytes | bytearray | memoryview]) -> bytes: ...

class Publication:
    command: bytes
    size: int
    futures: Sequence[Future]
    retries: int
    begun_s: float
    sent_s: float
    unknown: bool
    def __new__(
        cls,
        command: bytes,
        size: int,
        futures: Sequence[Future],
        retries: int,
        begun_s: float,
    ) -> Self: ...
    def fail(self, error: Exception) -> None: ...

def single(
    head: bytes, body: bytes, future: Future, retries: int, begun_s: float
) -> Publication: ...
def answer(pending: deque[Publication], replies: list[Reply]) -> tuple[int, Reply | None]: ...
