from typing_extensions import Buffer

from penstock.errors import ProtocolError

class Message:
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes

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
    @property
    def held_size(self) -> int: ...
    def __init__(self, frame_size_max: int = ...) -> None: ...
    def feed(self, data: Buffer) -> list[Message | Reply]: ...
    def finish(self, data: Buffer) -> Finished: ...
