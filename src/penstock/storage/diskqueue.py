# Reader of the disk queues of a Go nsqd (go-diskqueue).
#
#     <name>.diskqueue.meta.dat      depth \n readFile,readPos \n writeFile,writePos \n     as text
#     <name>.diskqueue.%06d.dat      records back to back, big-endian:
#                                    length i32 | timestamp i64 | attempts u16 | id 16 | body
#     <file>.bad                     discarded by nsqd; not read
#
# <name> is a topic, or `topic:channel` (`;` on Windows).  There are no checksums: the only sign of
# damage is a length outside of 26 .. max-msg-size + 26, and everything after it in the file is
# lost, because the start of the next record is unknown.
#
# Rule 1: everything that nsqd would read is read, from readFile,readPos on, and the bytes after
#         writePos: nsqd writes its meta file every 2,500 messages or 2 s, so after a crash these
#         are messages it had accepted.
# Rule 2: with `salvage`, what nsqd would overwrite is read too: files after the write file, and
#         files without a meta file.  Delivery is at least once; some of it may have been finished.
# Rule 3: records that no meta file covers must at least have an id of 16 hex digits.
# Rule 4: memory use is one block, for any size of files and records.

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.record import record
from penstock.storage.files import Files

HEAD_SIZE = 26  # timestamp, attempts and id, which a record's length includes
MSG_SIZE_MAX = 1024 * 1024  # nsqd's default of --max-msg-size
BLOCK_SIZE = 1024 * 1024
META_SIZE_MAX = 1024

_FILE = re.compile(r"(.+)\.diskqueue\.(meta|\d{6,})\.dat", re.DOTALL)
_META = re.compile(rb"(-?\d{1,19})\n(\d{1,19}),(\d{1,19})\n(\d{1,19}),(\d{1,19})\n")
_RECORD = struct.Struct(">iqH16s")
_ID = re.compile(rb"[0-9a-f]{16}")


class Meta(NamedTuple):
    """The contents of a meta file."""

    depth: int
    read_file: int
    read_offset: int
    write_file: int
    write_offset: int


class QueuedMessage(NamedTuple):
    """A message in a file: the place of its body, and its header."""

    offset: int
    body_size: int
    timestamp_ns: int
    attempts: int
    id: bytes


@record
class QueueExtent:
    """The part of a file to read; from ``vouched_end`` on, no meta file covers it."""

    path: str
    start: int
    end: int
    vouched_end: int


@record
class QueueDamage:
    """Bytes of a file that are not imported, and why.  A size of 0: unknown."""

    path: str
    offset: int
    size: int
    what: str


@dataclass
class Queue:
    """The files of one queue, found by name."""

    name: str
    folder: str
    has_meta: bool = False
    numbers: list[int] = field(default_factory=list)

    @property
    def meta_path(self) -> str:
        return f"{self.folder}/{self.name}.diskqueue.meta.dat"

    def path(self, number: int) -> str:
        return f"{self.folder}/{self.name}.diskqueue.{number:06d}.dat"


@dataclass
class Plan:
    """The parts of a queue to read."""

    meta: Meta | None = None
    extents: list[QueueExtent] = field(default_factory=list)
    damage: list[QueueDamage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(extent.end - extent.start for extent in self.extents)


def is_queue_file(name: str) -> bool:
    """Whether this is the name of a queue file of a Go nsqd."""
    return _FILE.fullmatch(name) is not None


def find_queues(folder: str, names: Iterable[str]) -> list[Queue]:
    """The queues whose files are among ``names``, in order of their names."""
    queues: dict[str, Queue] = {}
    for name in names:
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        queue = queues.setdefault(match[1], Queue(match[1], folder))
        if match[2] == "meta":
            queue.has_meta = True
        elif name == f"{match[1]}.diskqueue.{int(match[2]):06d}.dat":
            queue.numbers.append(int(match[2]))
    for queue in queues.values():
        queue.numbers.sort()
    return sorted(queues.values(), key=lambda queue: queue.name)


def parse_meta(data: bytes) -> Meta | None:
    """Parse a meta file; None if it is malformed."""
    match = _META.fullmatch(data)
    if match is None:
        return None
    meta = Meta(*map(int, match.groups()))
    if (meta.read_file, meta.read_offset) > (meta.write_file, meta.write_offset):
        return None
    return meta


def plan_queue(files: Files, queue: Queue, *, salvage: bool = True) -> Plan:
    """Decide what to read, by the meta file and the sizes of a queue's files; blocking."""
    plan = Plan()
    if queue.has_meta:
        data = files.pread(queue.meta_path, 0, META_SIZE_MAX) or b""
        plan.meta = parse_meta(data)
        if plan.meta is None:
            what = "meta file is invalid"
            plan.damage.append(QueueDamage(queue.meta_path, 0, len(data), what))
    if plan.meta is not None:
        _plan_by_meta(files, queue, plan, plan.meta, salvage)
    elif queue.numbers:
        found = f"{len(queue.numbers)} data files without a usable meta file"
        if salvage:
            plan.notes.append(f"{queue.name}: {found}; nsqd would overwrite them, all are read")
            for number in queue.numbers:
                _add_extent(files, plan, queue.path(number), 0, 0)
        else:
            plan.notes.append(f"{queue.name}: {found}; not read")
    return plan


def _plan_by_meta(files: Files, queue: Queue, plan: Plan, meta: Meta, salvage: bool) -> None:
    _note_missing(queue, plan, meta)
    for number in queue.numbers:
        path = queue.path(number)
        if number < meta.read_file:
            plan.notes.append(f"{path}: already read to its end; not read again")
        elif number > meta.write_file:
            if salvage:
                plan.notes.append(f"{path}: not known to the meta file; read")
                _add_extent(files, plan, path, 0, 0)
            else:
                plan.notes.append(f"{path}: not known to the meta file; not read")
        else:
            start = meta.read_offset if number == meta.read_file else 0
            vouched = meta.write_offset if number == meta.write_file else None
            _add_extent(files, plan, path, start, vouched, salvage=salvage)


def _add_extent(
    files: Files,
    plan: Plan,
    path: str,
    start: int,
    vouched: int | None,
    *,
    salvage: bool = True,
) -> None:
    """``vouched``: the bytes of the file that the meta file covers; None: all."""
    size = files.size(path)
    vouched_end = size if vouched is None else vouched
    if vouched_end > size or start > size:
        missing = max(vouched_end, start) - size
        what = f"{missing} bytes missing at the end"
        plan.damage.append(QueueDamage(path, size, missing, what))
    end = size if salvage else min(size, vouched_end)
    if start < end:
        plan.extents.append(QueueExtent(path, start, end, min(vouched_end, end)))


def _note_missing(queue: Queue, plan: Plan, meta: Meta) -> None:
    # A meta file may name a huge range, so missing files are reported as ranges.
    last = meta.write_file if meta.write_offset else meta.write_file - 1
    if (meta.read_file, meta.read_offset) == (meta.write_file, meta.write_offset):
        return
    expected = meta.read_file
    present = [number for number in queue.numbers if expected <= number <= last]
    for number in [*present, last + 1]:
        if number > expected:
            what = f"{number - expected} files missing, from number {expected} on"
            plan.damage.append(QueueDamage(queue.path(expected), 0, 0, what))
        expected = number + 1


def records(
    files: Files, extent: QueueExtent, damage: list[QueueDamage], msg_size_max: int = MSG_SIZE_MAX
) -> Iterator[QueuedMessage]:
    """The messages of an extent, in order; damage that ends it is added to ``damage``.  Blocking.

    Bodies are skipped; read them by offset.
    """
    length_max = msg_size_max + HEAD_SIZE
    at, end = extent.start, extent.end
    block, block_start, block_end = b"", at, at
    while at < end:
        if at + _RECORD.size > block_end and block_end < end:
            block = _read_block(files, extent, at, damage)
            block_start, block_end = at, at + len(block)
        if block_end - at < _RECORD.size:
            if block_end == end:
                damage.append(_stop(extent, at, _short_what(block[at - block_start :], length_max)))
            return
        length, timestamp_ns, attempts, id = _RECORD.unpack_from(block, at - block_start)
        if not HEAD_SIZE <= length <= length_max:
            damage.append(_stop(extent, at, _length_what(length, end - at, length_max)))
            return
        if at + 4 + length > end:
            damage.append(_stop(extent, at, "record cut off"))
            return
        if at >= extent.vouched_end and _ID.fullmatch(id) is None:
            damage.append(_stop(extent, at, "no message"))
            return
        yield QueuedMessage(at + _RECORD.size, length - HEAD_SIZE, timestamp_ns, attempts, id)
        at += 4 + length


def _read_block(files: Files, extent: QueueExtent, at: int, damage: list[QueueDamage]) -> bytes:
    # Reports a short block itself; the caller has nothing to add.
    size = min(BLOCK_SIZE, extent.end - at)
    try:
        block = files.pread(extent.path, at, size) or b""
    except OSError as error:
        damage.append(_stop(extent, at, f"cannot be read: {error.strerror or error}"))
        return b""
    if len(block) < min(size, _RECORD.size):
        damage.append(_stop(extent, at, "file became shorter"))
    return block


def _stop(extent: QueueExtent, at: int, what: str) -> QueueDamage:
    return QueueDamage(extent.path, at, extent.end - at, what)


def _short_what(tail: bytes, length_max: int) -> str:
    # Fewer bytes than the smallest record: the length, if complete, may still be invalid.
    if len(tail) >= 4:
        length = int.from_bytes(tail[:4], "big", signed=True)
        if not HEAD_SIZE <= length <= length_max:
            return _length_what(length, len(tail), length_max)
    return "record cut off"


def _length_what(length: int, left: int, length_max: int) -> str:
    if length_max < length <= left - 4:
        needed = length - HEAD_SIZE
        return (
            f"invalid length {length} (right if nsqd ran with --max-msg-size of {needed} or more)"
        )
    return f"invalid length {length}"
