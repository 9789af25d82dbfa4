# Side files: the few unfinished messages of an old segment are copied, so that it can be removed
# (R5).
#
# A side file is a sealed segment with one message a batch.  Its base is that of the segment its
# messages came from; its name is that base and, if it replaces another side file, a generation.
# So the copy never has the name of an existing file, readers of the old file are not affected, and
# if both exist after a crash, the older one is used, which has all messages of the newer.

from __future__ import annotations

from collections.abc import Callable

from penstock.core.appender import Batch
from penstock.core.batches import HEADER_SIZE, TIMESTAMP_FIELD
from penstock.core.tables import Tally
from penstock.record import record
from penstock.storage.files import Files
from penstock.storage.log_reader import Damage, LogReader
from penstock.storage.segment import Segment
from penstock.storage.segment_format import encode_header, footer, side_path


@record
class Relocation:
    """A side file that is not yet part of the log; None if no message is kept."""

    segment: Segment
    side: Segment | None
    indexes: list[int]  # messages to keep
    notes: list[Damage]  # those that cannot be read


def write_side(
    files: Files,
    reader: LogReader,
    folder: str,
    instance: int,
    segment: Segment,
    indexes: list[int],
    known: Callable[[Damage], bool],
) -> Relocation:
    """Write and sync the side file of ``segment`` with ``indexes``; blocking.

    If there is damage that is not ``known`` yet, nothing is written: the segment is kept until the
    damage is reported.  Raises OSError if the segment cannot be read now.
    """
    base = segment.base
    generation = segment.generation + 1 if segment.side else 0
    path = side_path(folder, base, generation)
    tally = Tally(base)
    parts = [b""]
    notes: list[Damage] = []
    for index, frame, append_ns in _frames(reader, segment, sorted(set(indexes)), notes):
        publish_ns = int.from_bytes(frame[TIMESTAMP_FIELD], "big", signed=True)
        batch = Batch(frame, index, 1, append_ns, publish_ns)
        parts += [batch.header(), frame]
        tally.append(batch)
    notes = [damage for damage in notes if not known(damage)]
    if notes or not tally.count:
        return Relocation(segment, None, indexes, notes)
    parts[0] = encode_header(
        segment.node_id, base, base, tally.append_ns_first, instance, origin=base
    )
    assert len(parts[0]) == HEADER_SIZE
    parts.append(footer(tally))
    files.write_new(path, b"".join(parts))
    side = Segment.from_tally(path, base, segment.node_id, tally)
    side.side = side.sealed = side.closed = True
    side.generation = generation
    side.synced = side.visible
    side.file_size = sum(map(len, parts))
    return Relocation(segment, side, indexes, notes)


def _frames(
    reader: LogReader, segment: Segment, indexes: list[int], notes: list[Damage]
) -> list[tuple[int, bytes, int]]:
    frames = []
    place = 0
    while place < len(indexes):
        found = reader.find(segment, indexes[place], 1, True, notes)
        if found is None or not found.result.batches:
            break
        for first, count, start, _end, append_ns, _slot, _flags in found.result.batches:
            while place < len(indexes) and indexes[place] < first:
                place += 1  # a gap
            at, index = start, first
            while place < len(indexes) and indexes[place] < first + count:
                while index < indexes[place]:
                    at += 4 + int.from_bytes(found.data[at : at + 4], "big")
                    index += 1
                size = 4 + int.from_bytes(found.data[at : at + 4], "big")
                frames.append((index, found.data[at : at + size], append_ns))
                place += 1
    return frames
