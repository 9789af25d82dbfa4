"""One staging: its stored parts, and those being written."""

from __future__ import annotations

from penstock.core.ticket import Ticket, settled
from penstock.errors import StagingError
from penstock.storage.staging import (
    FoundStaging,
    Key,
    PartRecord,
    Seal,
    encode_header,
    encode_part,
    weight_of,
)


class IncomingPart:
    """A part that is not in its file yet."""

    __slots__ = (
        "begun",
        "body",
        "count",
        "crc",
        "deferred",
        "part",
        "size",
        "ticket",
        "topic",
        "weight",
    )

    def __init__(
        self, part: int, topic: str, deferred: bool, count: int, body: bytes, crc: int
    ) -> None:
        self.part = part
        self.topic = topic
        self.deferred = deferred
        self.count = count
        self.body = body
        self.size = len(body)
        self.weight = weight_of(topic, self.size)
        self.crc = crc
        self.begun = False
        self.ticket = Ticket()

    def same(self, other: IncomingPart | PartRecord) -> bool:
        return (self.topic, self.deferred, self.count, self.size, self.crc) == (
            other.topic,
            other.deferred,
            other.count,
            other.size,
            other.crc,
        )


class Staged:
    """A staging.  ``pending_seal`` is the seal being written, ``seal`` the durable one."""

    def __init__(self, number: int, key: Key, created_ns: int, touched_ns: int) -> None:
        self.number = number
        self.key = key
        self.created_ns = created_ns
        self.touched_ns = touched_ns
        self.parts: dict[int, PartRecord] = {}
        self.incoming: dict[int, IncomingPart] = {}
        self.size = 0  # of all parts, including pending ones
        self.file_size = 0
        self.synced_size = 0
        self.writing = False
        self.pending_seal = Seal(0, 0)
        self.sealing: Ticket | None = None
        self.seal: Seal | None = None
        self.checked = True  # everything in the file was written or verified by this process
        self.gone = False
        self.error: Exception | None = None

    @staticmethod
    def found(found: FoundStaging, touched_ns: int) -> Staged:
        staged = Staged(found.number, found.key, found.created_ns, touched_ns)
        staged.parts = found.parts
        staged.size = sum(part.weight for part in found.parts.values())
        staged.file_size = found.good_size
        staged.seal = found.seal
        staged.checked = False
        return staged

    @property
    def count(self) -> int:
        """Messages in its parts."""
        return sum(part.count for part in self.parts.values())

    def header(self) -> bytes:
        return encode_header(self.number, self.key, self.created_ns)

    def known(self, incoming: IncomingPart) -> Ticket | None:
        """The ticket of a part that arrived before; raises StagingError if it was different."""
        on_its_way = self.incoming.get(incoming.part)
        known = on_its_way or self.parts.get(incoming.part)
        if known is None:
            return None
        if not incoming.same(known):
            raise StagingError("PART_DIFFERS", f"part {incoming.part} is here with other rows")
        return on_its_way.ticket if on_its_way is not None else settled()

    def refuse_parts(self) -> None:
        if self.seal is not None or self.sealing is not None:
            raise StagingError("SEALED", "it takes no more parts")
        self._refuse_failed()

    def refuse_seal(self, seal: Seal) -> None:
        self._refuse_failed()
        if self.seal is not None:
            if self.seal != seal:
                raise StagingError("SEALED", "with other parts or another count")
            return
        if self.incoming:
            raise StagingError("PARTS_COMING", "parts are still being written")
        missing = [part for part in range(seal.part_count) if part not in self.parts]
        if missing:
            raise StagingError("MISSING_PARTS", f"parts {missing[:20]}")
        if len(self.parts) > seal.part_count:
            raise StagingError("PARTS_DIFFER", f"{len(self.parts)} parts are here")
        if self.count != seal.count:
            raise StagingError("COUNT_DIFFERS", f"{self.count} rows are here")

    def _refuse_failed(self) -> None:
        if self.error is not None:
            raise StagingError("STAGING_FAILED", str(self.error))

    def take(self, batch: list[IncomingPart]) -> list[bytes]:
        """The bytes to append for ``batch``, which is being written from now on."""
        pieces = [] if self.file_size else [self.header()]
        for incoming in batch:
            incoming.begun = True
            pieces += encode_part(
                self.number,
                incoming.part,
                incoming.topic,
                incoming.deferred,
                incoming.count,
                incoming.body,
                incoming.crc,
            )
            incoming.body = b""
        return pieces

    def written(self, batch: list[IncomingPart], file_size: int) -> None:
        """``batch`` is in the file, which has ``file_size`` now."""
        self.file_size = end = file_size
        for incoming in reversed(batch):
            self.parts[incoming.part] = PartRecord(
                incoming.part,
                incoming.topic,
                incoming.deferred,
                incoming.count,
                incoming.size,
                incoming.crc,
                end - incoming.size,
            )
            end -= incoming.weight
