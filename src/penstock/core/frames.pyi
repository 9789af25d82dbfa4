from typing import Any, Self

from typing_extensions import Buffer

from penstock.errors import ProtocolError

class Message:
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes
    owner: Any
    state: int
    @property
    def responded(self) -> bool: ...
    def finish(self) -> None: ...
    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None: ...
    def bury(self, text: str = "") -> None: ...
    def touch(self) -> None: ...
    def enable_async(self) -> None: ...

class Reply:
    error: bool
    text: bytes

class Finished:
    count: int
    body_size: int
    commands: bytes
    stamps: bytes
    replies: list[Reply]

class FrameReader:
    frame_size_max: int
    error: ProtocolError | None
    owner: Any
    @property
    def held_size(self) -> int: ...
    def __new__(cls, frame_size_max: int = ..., owner: object = None) -> Self: ...
    def feed(self, data: Buffer) -> list[Message | Reply]: ...
    def finish(self, data: Buffer) -> Finished: ...
