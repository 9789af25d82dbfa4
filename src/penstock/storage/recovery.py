# Opens a topic's folder after a clean exit, a kill or a power cut.
#
# Rule 1: of sealed files only header and trailer are read; files without a good trailer are
#         scanned. 10 GB of sealed backlog cost two reads a segment.
# Rule 2: bad bytes after the synced offset are torn: truncated if no good batch follows, otherwise
#         a gap.  Before it they are corrupt: counted, copied to a .corrupt file, skipped (R3).
#         Zeros between the last batch and the end of the file are neither: they were written
#         ahead (log_writer.pyx), or left by a power cut.  They are cut off, and that is told.
# Rule 3: good batches are kept, whatever else is damaged.
# Rule 4: the next index is above every index that may have been used (R1).
# Rule 5: a read error of the disk is not damage: it is raised, and nothing is changed.
# Rule 6: recovery is idempotent, so a crash during recovery is harmless.

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.core.batches import (
    BATCH_HEADER_SIZE,
    HEADER_SIZE,
    ID_FIELD,
    INDEX_MAX,
    MOVED,
    ORIGINS,
    scan,
)
from penstock.core.tables import Visible
from penstock.errors import StorageError
from penstock.storage.copies import copy_bytes
from penstock.storage.damage import DamageKind
from penstock.storage.evidence import keep_evidence, set_aside
from penstock.storage.files import Files
from penstock.storage.journal import Journal, TopicState, replay
from penstock.storage.log_reader import LogReader
from penstock.storage.log_writer import SEGMENT_SIZE_MAX
from penstock.storage.losses import Loss, find_missing
from penstock.storage.moved import Arrivals
from penstock.storage.segment import Segment
from penstock.storage.segment_format import (
    TRAILER_SIZE,
    VERSION,
    Header,
    Trailer,
    decode_header,
    decode_trailer,
    encode_header,
)
from penstock.storage.survey import (
    ORDINAL_SIZE,
    Survey,
    decode_ordinals,
    node_id_of,
    survey,
)
from penstock.storage.topic_log import TopicLog

_LOG = re.compile(r"([0-9]{20})\.log")
_SIDE = re.compile(r"([0-9]{20})(?:-([1-9][0-9]*))?\.side")


def is_segment(name: str) -> bool:
    """Whether this is the name of a segment."""
    return _LOG.fullmatch(name) is not None


@dataclass
class RecoveredTopic:
    """A topic as it was found.

    ``fired`` has only slots of ``live_slots``, ``moved`` only what the journal does not settle.
    """

    log: TopicLog
    state: TopicState
    journal: Journal
    torn_count: int = 0
    corrupt_count: int = 0
    fired: dict[int, list[int]] = field(default_factory=dict)
    moved: Arrivals = field(default_factory=Arrivals)
    notes: list[str] = field(default_factory=list)
    zeros: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


def recover_topic(
    files: Files,
    folder: str,
    node_id: int,
    base_floor: int,
    live_slots: Iterable[int] = (),
    segment_size_max: int = SEGMENT_SIZE_MAX,
    instance: int | None = None,
) -> RecoveredTopic:
    """Open ``folder``; blocking.  The log's end is the next index that may be used (R1).

    The instance is parsed from the folder's name unless it is given.
    """
    if instance is None:
        instance = int(folder.rpartition("~")[2], 16)
    recovery = _Recovery(files, folder, instance, set(live_slots))
    recovery.remove_leftovers()
    state, journal = recovery.open_journal()
    segments = recovery.open_segments(state.synced)
    end = max([base_floor, state.index_max, *(s.visible.end for s in segments)])
    removed_end = state.whole_from
    log = TopicLog(files, folder, instance, node_id, segments, end, segment_size_max, removed_end)
    if segments and not segments[-1].sealed:
        log.resume(segments[-1], recovery.synced)
        recovery.settle_holes(log)
    losses = find_missing(folder, state, segments, log, recovery.losses)
    log.count_damage(recovery.torn_count, recovery.corrupt_count)
    return RecoveredTopic(
        log,
        state,
        journal,
        recovery.torn_count,
        recovery.corrupt_count,
        recovery.fired,
        recovery.moved,
        recovery.notes,
        recovery.zeros,
        losses,
    )


class _Recovery:
    def __init__(self, files: Files, folder: str, instance: int, live_slots: set[int]) -> None:
        self.files = files
        self.folder = folder
        self.instance = instance
        self.live_slots = live_slots
        self.torn_count = 0
        self.corrupt_count = 0
        self.fired: dict[int, list[int]] = {}
        self.moved = Arrivals()
        self.settled_end = 0
        self.notes: list[str] = []  # nothing that was acknowledged is lost
        self.zeros: list[str] = []  # the same for those at the end of a file
        self.losses: list[Loss] = []
        self.synced = Visible(0, 0, 0)
        self.holes = False
        self.names = files.list(folder)

    def remove_leftovers(self) -> None:
        """Remove temporary files that were not renamed."""
        for name in self.names:
            if name.endswith((".new", ".tmp")):
                self.files.unlink(f"{self.folder}/{name}")
        self.names = [name for name in self.names if not name.endswith((".new", ".tmp"))]

    def open_journal(self) -> tuple[TopicState, Journal]:
        path = f"{self.folder}/journal"
        data = self.files.read(path) if "journal" in self.names else b""
        state = replay(data)
        self.settled_end = state.moves_settled_end
        self.corrupt_count += state.corrupt_count
        if state.corrupt_count or state.torn_size:
            keep_evidence(self.files, path, 0, len(data))
        if state.torn_size:
            self.torn_count += 1
            self.notes.append(f"{path}: torn, {state.torn_size} bytes cut off the end")
            self.files.truncate(path, len(data) - state.torn_size)
        return state, Journal(self.files, path)

    def open_segments(self, synced: tuple[int, int] | None) -> list[Segment]:
        logs = sorted(int(match[1]) for match in map(_LOG.fullmatch, self.names) if match)
        while logs and logs[-1] >= INDEX_MAX:
            # Written by an early version with a clock past 2109; clients could not finish them.
            path = f"{self.folder}/{logs.pop():020d}.log"
            kept = set_aside(self.files, path)
            self.lost(path, f"{path}: its indexes do not fit 54 bits, kept as {kept}")
        sides = self.open_sides()
        side_bases = sorted(side.base for side in sides)
        opened: list[Segment] = []
        for place in reversed(range(len(logs))):
            last = place == len(logs) - 1
            after = opened[-1] if opened else None
            # Messages at or after the first index of a later file were moved there.
            limit = after.first if after is not None else INDEX_MAX
            later = bisect_right(side_bases, logs[place])
            if later < len(side_bases):
                limit = min(limit, side_bases[later])
            segment = self.open_log(logs[place], after, limit, last, synced)
            if segment is not None:
                opened.append(segment)
        opened += self.choose_sides(sides, {segment.base for segment in opened})
        return sorted(opened, key=lambda segment: segment.first)

    def open_log(
        self,
        base: int,
        after: Segment | None,
        limit: int,
        last: bool,
        synced: tuple[int, int] | None,
    ) -> Segment | None:
        path = f"{self.folder}/{base:020d}.log"
        size = self.files.size(path)
        header, trailer = self.read_ends(path, size)
        if trailer is not None and trailer.count and trailer.end <= limit:
            segment = self.open_sealed(path, base, size, header, trailer)
            if segment is not None:
                return segment
        found = survey(self.files, path, base, limit, self.settled_end)
        # A segment is synced before the next one is created, so only the last one can be torn.
        synced_offset = size if not last else synced[1] if synced and synced[0] == base else 0
        if header is None and size >= HEADER_SIZE:
            self.report(path, 0, HEADER_SIZE, synced_offset, "header")
        # The next header says where this segment ended: bad bytes after its last message are the
        # remains of a footer or of a failed write.
        whole = after is not None and found.tally.end >= after.previous_end
        known = min(synced_offset, found.tally.size) if whole else synced_offset
        self.report_bad(path, found, known)
        if not found.tally.count:
            if found.bad:
                kept = set_aside(self.files, path)
                self.notes.append(f"{path}: holds no message, kept as {kept}")
            else:
                if (
                    size or synced_offset or not last
                ):  # otherwise it was created right before a kill
                    self.notes.append(f"{path}: holds no message, removed")
                self.files.unlink(path)
            return None
        node_id = header.node_id if header is not None else found.node_id or 0
        if last and header is None:
            fresh = encode_header(node_id, base, base, found.tally.append_ns_first, self.instance)
            copy_bytes(self.files, path, path, HEADER_SIZE, found.tally.size, fresh)
        elif (last or whole) and found.size > found.tally.size:
            self.files.truncate(path, found.tally.size)
            if not last:
                self.files.sync(path)  # or it would reappear after the next file is removed
        segment = Segment.from_tally(path, base, node_id, found.tally)
        segment.previous_end = header.previous_end if header is not None else base
        segment.sealed = segment.closed = not last
        self.take_origins(found)
        if last:
            self.holes = any(bad.end <= found.tally.size for bad in found.bad)
            self.synced = _reached(segment, synced_offset)
        else:
            segment.synced = segment.visible
        return segment

    def read(self, path: str, offset: int, size: int) -> bytes:
        return self.files.pread(path, offset, size, True) or b""

    def read_ends(self, path: str, size: int) -> tuple[Header | None, Trailer | None]:
        header = decode_header(self.read(path, 0, min(HEADER_SIZE, size)))
        if header is not None and header.version > VERSION:
            raise StorageError(f"{path}: written by a later version (format {header.version})")
        if size < HEADER_SIZE + TRAILER_SIZE:
            return header, None
        end = self.read(path, size - TRAILER_SIZE, TRAILER_SIZE)
        return header, decode_trailer(end, size)

    def open_sealed(
        self, path: str, base: int, size: int, header: Header | None, trailer: Trailer
    ) -> Segment | None:
        # None if the tables are needed and bad: then the file is scanned.
        node_id = header.node_id if header is not None else None
        if node_id is None:
            self.report(path, 0, HEADER_SIZE, size, "header")
        segment = Segment.from_trailer(path, base, node_id or 0, size, trailer)
        if node_id is None:
            segment.node_id = self.node_id_by_frame(segment)
        if header is not None:
            segment.previous_end = header.previous_end
        may_have_fired = any(trailer.slot_min <= s <= trailer.slot_max for s in self.live_slots)
        may_have_moved = trailer.may_have_moved and trailer.end > self.settled_end
        may_have_origins = trailer.origin_count and (may_have_fired or may_have_moved)
        if trailer.gap_count or may_have_origins:
            tables = segment.load_tables(self.files, True)
            assert tables is not None
            if len(tables.gaps) != trailer.gap_count or len(tables.origins) != trailer.origin_count:
                return None
            if may_have_origins:
                self.read_origins(segment)
        return segment

    def settle_holes(self, log: TopicLog) -> None:
        """Seal a last segment with bad bytes between good batches.

        The footer records them as a gap.  Otherwise they would be below the synced offset, and the
        next start would report them as corrupt instead of torn.
        """
        if not self.holes:
            return
        try:
            log.synced(log.roll())
        except OSError as error:
            self.notes.append(f"{self.folder}: not sealed yet: {error}")

    def node_id_by_frame(self, segment: Segment) -> int:
        """The node id in the first message, if the header is lost."""
        block = LogReader(self.files).read(segment, segment.first, 1, True, [])
        frame = block.frame(segment.first) if block is not None else None
        return (node_id_of(frame[ID_FIELD]) if frame is not None else None) or 0

    def open_sides(self) -> list[Segment]:
        found: list[Segment] = []
        for name in self.names:
            match = _SIDE.fullmatch(name)
            if match is not None:
                path = f"{self.folder}/{name}"
                segment = self.open_side(path, int(match[1]), int(match[2] or 0))
                if segment is None:
                    kept = set_aside(self.files, path)
                    self.notes.append(f"{path}: holds no message, kept as {kept}")
                else:
                    found.append(segment)
        return found

    def choose_sides(self, found: list[Segment], log_bases: set[int]) -> list[Segment]:
        """The valid side files; see relocation.py for which of several is."""
        sides: dict[int, Segment] = {}
        for segment in sorted(found, key=lambda segment: segment.generation):
            if segment.base in log_bases or segment.base in sides:
                self.files.unlink(segment.path)
            else:
                sides[segment.base] = segment
        return list(sides.values())

    def open_side(self, path: str, number: int, generation: int) -> Segment | None:
        size = self.files.size(path)
        header, trailer = self.read_ends(path, size)
        # Early versions had no generation in the name: it was one more than the replaced file's.
        base = header.origin if header is not None and header.origin else number
        segment = None
        if trailer is not None:
            segment = self.open_sealed(path, base, size, header, trailer)
        if segment is None:
            # Side files are renamed after a sync, so bad bytes in one are always corrupt.
            found = survey(self.files, path, base)
            for bad in found.bad:
                count = bad.index_end - bad.index_start
                self.report(path, bad.offset, bad.end, size, "batch", count)
            if not found.tally.count and not found.bad:
                self.lost(path, f"{path}: cut to {size} bytes, its messages are gone")
            if not found.tally.count:
                return None
            node_id = header.node_id if header is not None else found.node_id or 0
            segment = Segment.from_tally(path, base, node_id, found.tally)
            segment.synced = segment.visible
        segment.side = segment.sealed = segment.closed = True
        segment.generation = generation + number - base
        return segment

    def report_bad(self, path: str, found: Survey, known: int) -> None:
        """Report the bad bytes of a segment, of which those before ``known`` were synced."""
        for bad in found.bad:
            bad_end = bad.end
            if bad_end == found.size:
                bad_end = max(found.zeros_from, min(known, found.size))
            if bad_end > bad.offset:
                self.report(
                    path, bad.offset, bad_end, known, "batch", bad.index_end - bad.index_start
                )
            else:
                size = bad.end - bad.offset
                self.zeros.append(f"{path}: zeros at {bad.offset}, {size} bytes, cut off")

    def report(
        self, path: str, offset: int, end: int, synced_offset: int, what: str, count: int = 0
    ) -> None:
        """Report bad bytes as torn or corrupt; at most ``count`` messages, 0: unknown."""
        if offset >= synced_offset:
            self.torn_count += 1
            self.notes.append(f"{path}: torn {what} at {offset}, {end - offset} bytes")
            return
        self.corrupt_count += 1
        kept = keep_evidence(self.files, path, offset, end)
        where = f", copied to {kept}" if kept else ""
        text = f"{path}: corrupt {what} at {offset}, {end - offset} bytes{where}"
        if what == "header":
            self.lost(path, f"{text}; no message is lost", 0)
        else:
            self.lost(path, text, count or None)

    def lost(self, path: str, text: str, messages: int | None = None) -> None:
        kind = DamageKind.SIDE if path.endswith(".side") else DamageKind.LOG
        self.losses.append(Loss(kind, path, text, messages))

    def take_origins(self, found: Survey) -> None:
        self.moved.update(found.moved)
        for slot, ordinals in found.fired.items():
            if slot in self.live_slots:
                self.fired.setdefault(slot, []).extend(ordinals)

    def read_origins(self, segment: Segment) -> None:
        """Collect what a sealed segment has from live slots, and what was moved there."""
        tables = segment.tables
        assert tables is not None
        segment.slots = set()
        for offset in tables.origins:
            head = self.read(segment.path, offset, BATCH_HEADER_SIZE)
            size = scan(head, 0, False).size
            batch = self.read(segment.path, offset, size)
            for first, count, _start, end, _ns, slot, flags in scan(batch, 0, True).batches:
                ordinals = decode_ordinals(batch[end : end + ORDINAL_SIZE * count])
                if flags & MOVED:
                    if first + count > self.settled_end:
                        self.moved.add(first, slot, flags, ordinals)
                    continue
                segment.slots.add(slot)
                if flags & ORIGINS and slot in self.live_slots:
                    self.fired.setdefault(slot, []).extend(ordinals)


def _reached(segment: Segment, synced_offset: int) -> Visible:
    """The part of an unsealed segment that is known to be synced."""
    tally = segment.tally
    assert tally is not None
    if synced_offset >= tally.size:
        return tally.visible()
    # The offset is between two entries of the sparse index; the earlier one is safe.
    size, end, count = 0, segment.first, 0
    for index, offset in zip(tally.tables.indexes, tally.tables.offsets, strict=True):
        if offset > synced_offset:
            break
        size, end = offset, index
    gaps = sum(b - a for a, b in tally.tables.gaps if b <= end)
    count = end - segment.first - gaps
    return Visible(size, end, count)
