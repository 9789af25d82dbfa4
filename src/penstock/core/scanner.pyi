from collections.abc import Callable
from typing import Any

from penstock.core.appender import Appender
from penstock.core.ticket import Ticket
from penstock.core.window import Consumer, Window

INIT: int
SUBSCRIBED: int
CLOSING: int

class Owed:
    @property
    def ticket(self) -> Ticket: ...
    @property
    def count(self) -> int: ...
    @property
    def command(self) -> str: ...

class Scanner:
    state: int
    window: Window | None
    consumer: Consumer | None
    tls_required: bool
    msg_timeout_ns: int
    progressed: bool
    answered: bool
    owed: list[Owed]
    @property
    def command_count(self) -> int: ...
    def __init__(
        self,
        appenders: dict[bytes, Appender],
        on_settled: Callable[[Ticket], None],
        *,
        message_size_max: int,
        body_size_max: int,
        ready_count_max: int,
        requeue_ms_max: int,
        defer_ms_max: int,
        msg_timeout_max_ns: int,
    ) -> None: ...
    @property
    def buffered_size(self) -> int: ...
    @property
    def pub_counts(self) -> dict[str, int]: ...
    def feed(self, data: bytes) -> None: ...
    def feed_from(self, buffer: bytearray, size: int) -> None: ...
    def keep(self) -> None: ...
    def next(self, now_ns: int, wall_ns: int) -> Any: ...
    def eof(self) -> Exception | None: ...
    def take_rest(self) -> bytes: ...
    def forget_topic(self) -> None: ...
    def owe_ticket(self, ticket: Ticket, command: str) -> None: ...
    def settle(self) -> tuple[int, Owed | None]: ...
