from typing import Any

from penstock.core.scanner import Owed, Scanner
from penstock.core.ticket import Ticket
from penstock.core.window import Consumer
from penstock.net.lookout import Lookout

class Session:
    _scanner: Scanner
    _lookout: Lookout
    _fd: int
    _ok: bytes
    _clock: Any
    _deferred: Any
    _transport: Any
    _upgrade: Any
    _parked: Any
    channel: Any
    consumer: Consumer | None
    _greeted: bool
    _closed: bool
    _ended: bool
    _waiting: bool
    _held: bool
    _resting: bool
    _blocked: bool
    _choked: bool
    _running: bool
    _replied_size: int
    _noted: bool
    _waiting_since_ns: int
    def _received(self, data: bytes) -> None: ...
    def _execute_after_owed(self, command: Any) -> None: ...
    def _held_up(self, full: bool) -> bool: ...
    def _rest_later(self) -> None: ...
    def _note_body(self) -> None: ...
    def _settled(self, failed: Owed | None) -> None: ...
    def get_buffer(self, sizehint: int) -> bytearray: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    @property
    def _stopped(self) -> bool: ...
    def _run(self) -> None: ...
    def _hold_back(self) -> None: ...
    def _write(self, frame: bytes) -> None: ...
    def _settle(self, _ticket: Ticket) -> None: ...
