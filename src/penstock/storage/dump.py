# `penstock dump`: files of a data path as text: offsets, fields, shortened bodies, damage.
#
# One line for each item, in file order.  Lines about damage start with "!!".  Files are only read,
# and may be in use by a running nsqd.

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from penstock.core.batches import (
    BATCH_HEADER_SIZE,
    FRAME_SIZE_MIN,
    HEADER_SIZE,
    ID_FIELD,
    MOVED,
    ORIGINS,
    STAGED,
    TIMESTAMP_FIELD,
)
from penstock.core.buried import Buried
from penstock.core.slots import parse_record
from penstock.core.tables import Tables
from penstock.errors import StorageError
from penstock.storage import burials, journal, ledger
from penstock.storage.drain import decode_drain
from penstock.storage.dump_staging import dump_ledger, dump_staging
from penstock.storage.files import Files
from penstock.storage.metadata import decode_metadata
from penstock.storage.moved import indexes_from, route_from
from penstock.storage.node import decode_node
from penstock.storage.patterns import decode_patterns
from penstock.storage.segment_format import (
    MAGIC,
    TRAILER_SIZE,
    Trailer,
    decode_header,
    decode_tables,
    decode_trailer,
    tables_good,
)
from penstock.storage.slot_counts import unpack_counts
from penstock.storage.slots import SlotStore, slot_name
from penstock.storage.survey import ORDINAL_SIZE, BadBytes, Walk, decode_ordinals
from penstock.storage.text import body_of, short, signed, time_of

if TYPE_CHECKING:
    from penstock.core.batches import ScannedBatch

_RECORDS = {
    journal.TOPIC: "topic",
    journal.CHANNEL: "channel",
    journal.GONE: "gone",
    journal.PROGRESS: "progress",
    journal.SYNCED: "synced",
    journal.REMOVED: "removed",
    journal.READER: "reader",
    journal.FILE: "file",
    journal.POLICY: "policy",
    journal.BURIED: "buried",
    journal.UNBURIED: "unburied",
    journal.MOVED: "moved",
    journal.SEEK: "seek",
    journal.BEGUN: "begun",
}


def dump_file(files: Files, path: str, out: TextIO, *, brief: bool = False) -> int:
    """Write the contents of ``path`` to ``out``; return the number of damaged places.

    With ``brief`` messages are left out.  Raises StorageError if the file is not Penstock's.
    """
    name = path.rpartition("/")[2]
    start = files.pread(path, 0, HEADER_SIZE, True) or b""
    if name == "deferred.counts":
        return _dump_counts(files, path, out)
    if name.endswith((".slot", ".fired")):
        return _dump_slot(files, path, out, brief)
    if name.endswith((".log", ".side")) or start.startswith(MAGIC):
        return _dump_segment(files, path, start, out, brief)
    if name in ("node.json", "penstock.node.json"):
        node = decode_node(files.read(path), path)
        print(f"node uuid={node.uuid} index_floor={node.index_floor}", file=out)
        return 0
    if name in ("patterns.json", "penstock.patterns.json"):
        return _dump_patterns(files, path, out)
    if name in ("drain.json", "penstock.drain.json"):
        return _dump_drain(files, path, out)
    if name == "nsqd.dat":
        return _dump_metadata(files, path, out)
    if name.endswith(".staging"):
        return dump_staging(files, path, out, brief)
    if name == "ledger" or start.startswith(ledger.FRAMING.magic):
        return dump_ledger(files.read(path), out)
    if name.startswith("journal") or start.startswith(journal.FRAMING.magic):
        return _dump_journal(files.read(path), out)
    raise StorageError(f"{path}: not a Penstock file that can be shown")


class _Printer(Walk):
    """Prints the batches of a segment."""

    out: TextIO
    brief: bool

    def saw_batch(self, offset: int, piece: bytes, batch: ScannedBatch) -> None:
        first, count, start, end, append_ns, slot, flags = batch
        publish_ns = signed(piece[start - 16 : start - 8])
        ordinals_end = end + ORDINAL_SIZE * count if flags & ORIGINS else end
        ordinals = decode_ordinals(piece[end:ordinals_end])
        origin = f" slot={slot} ordinals={short(ordinals)}" if ordinals else ""
        if flags & MOVED:
            indexes = short(indexes_from(slot, ordinals))
            origin = f" moved_from={route_from(slot, flags):015x} indexes={indexes}"
        if flags & STAGED:
            origin = f" staging={slot >> 16:016x} part={slot & 0xFFFF}"
        print(
            f"{offset:>12}  batch {first}..{first + count - 1} count={count}"
            f" size={BATCH_HEADER_SIZE + ordinals_end - start}"
            f" appended={time_of(append_ns)} published={time_of(publish_ns)}{origin}",
            file=self.out,
        )
        at = start
        base = offset - start + BATCH_HEADER_SIZE
        for index in range(first, first + count if not self.brief else first):
            size = 4 + int.from_bytes(piece[at : at + 4], "big")
            frame = piece[at : at + size]
            print(
                f"{base + at:>12}    {index} id={frame[ID_FIELD].decode('latin-1')}"
                f" timestamp={time_of(signed(frame[TIMESTAMP_FIELD]))}"
                f" {body_of(frame[FRAME_SIZE_MIN:])}",
                file=self.out,
            )
            at += size

    def saw_bad(self, bad: BadBytes) -> None:
        if bad.end == self.result.size and bad.offset == self.result.zeros_from:
            print(f"{bad.offset:>12}  {bad.end - bad.offset} zeros ahead of the end", file=self.out)
            return
        lost = f", index {bad.index_start} up to {bad.index_end}" * (
            bad.index_end > bad.index_start
        )
        print(
            f"!! {bad.offset:>9}  {bad.end - bad.offset} bytes are not a batch{lost}", file=self.out
        )


def _dump_segment(files: Files, path: str, start: bytes, out: TextIO, brief: bool) -> int:
    size = files.size(path)
    header = decode_header(start)
    damage = 0
    if header is None:
        damage += 1
        print(f"!! {0:>9}  no good header; {size} bytes", file=out)
    else:
        origin = f" origin={header.origin}" if header.origin else ""
        print(
            f"{0:>12}  segment format={header.version} node_id={header.node_id}"
            f" instance={header.instance:016x} base={header.base}"
            f" previous_end={header.previous_end}{origin} created={time_of(header.created_ns)}",
            file=out,
        )
    trailer = None
    if size >= HEADER_SIZE + TRAILER_SIZE:
        trailer = decode_trailer(
            files.pread(path, size - TRAILER_SIZE, TRAILER_SIZE, True) or b"", size
        )
    base = header.base if header is not None else 0
    walk = _Printer(files, path, base, end=trailer.tables_offset if trailer is not None else 0)
    walk.out, walk.brief = out, brief
    found = walk.run()
    damage += len(found.bad)
    if trailer is None:
        if found.bad and found.bad[-1].offset == found.zeros_from < size:
            damage -= 1
        print(f"{size:>12}  not sealed", file=out)
        return damage
    return damage + _dump_footer(files, path, trailer, out)


def _dump_footer(files: Files, path: str, trailer: Trailer, out: TextIO) -> int:
    data = files.pread(path, trailer.tables_offset, trailer.tables_size, True) or b""
    damage = 0
    if not tables_good(data, trailer):
        damage = 1
        print(f"!! {trailer.tables_offset:>9}  the tables of the footer are damaged", file=out)
    else:
        at = trailer.tables_offset
        for size, line in _table_lines(decode_tables(data, trailer)):
            print(f"{at:>12}  {line}", file=out)
            at += size
    slots = f" slots={trailer.slot_min}..{trailer.slot_max}" if trailer.origin_count else ""
    print(
        f"{trailer.tables_offset + trailer.tables_size:>12}  sealed first={trailer.first}"
        f" end={trailer.end} count={trailer.count}"
        f" appended={time_of(trailer.append_ns_first)}..{time_of(trailer.append_ns_last)}{slots}",
        file=out,
    )
    return damage


def _table_lines(tables: Tables) -> Iterator[tuple[int, str]]:
    """(size in the file, text) of each entry."""
    for index, offset, append_ns in zip(tables.indexes, tables.offsets, tables.times, strict=True):
        yield 24, f"sparse index={index} offset={offset} appended={time_of(append_ns)}"
    for start, end in tables.gaps:
        yield 16, f"gap {start}..{end - 1}"
    for offset in tables.origins:
        yield 8, f"origins offset={offset}"


def _dump_journal(data: bytes, out: TextIO) -> int:
    damage = 0
    for offset, _, kind, payload, _ in journal.records(data):
        if payload is None:
            damage += 1
            print(f"!! {offset:>9}  bytes that are not a record", file=out)
            continue
        name = _RECORDS.get(kind, f"type {kind}")
        print(f"{offset:>12}  {name} {_record(kind, payload)}", file=out)
    return damage


def _record(kind: int, payload: bytes) -> str:
    if kind == journal.TOPIC:
        released, frozen, paused, void_stamp = journal.decode_topic(payload)
        awaiting = " awaiting_channels" if frozen == journal.AWAITING else ""
        return (
            f"released={released} frozen={bool(frozen)} paused={paused}"
            f" void_stamp={void_stamp}{awaiting}"
        )
    if kind == journal.CHANNEL:
        return _channel(journal.decode_channel(payload))
    if kind == journal.SEEK:
        old_id, channel = journal.decode_seek(payload)
        begun = f"begun={time_of(channel.begun_ns)} below={channel.begun_end}"
        return f"old_id={old_id} {_channel(channel)} {begun}"
    if kind == journal.BEGUN:
        id, begun_ns, begun_end = journal.decode_begun(payload)
        return f"id={id} begun={time_of(begun_ns)} below={begun_end}"
    if kind == journal.READER:
        id, reader = journal.decode_channel_reader(payload)
        return f"id={id} reader={reader}"
    if kind == journal.PROGRESS:
        id, low, runs, marks = journal.decode_progress(payload)
        return f"id={id} low={low} runs={_runs(runs)} marks={short(list(map(_mark, marks)))}"
    if kind == journal.BURIED:
        return _buried(payload)
    if kind == journal.UNBURIED:
        id, kicked, runs = burials.decode_unburied(payload)
        return f"id={id} {'kicked' if kicked else 'finished'} runs={_runs(runs)}"
    if kind == journal.SYNCED:
        base, offset = journal.decode_synced(payload)
        return f"base={base} offset={offset}"
    if kind == journal.REMOVED:
        return f"whole_from={journal.decode_removed(payload)}"
    if kind == journal.MOVED:
        return f"settled_end={journal.decode_moved(payload)}"
    if kind == journal.FILE:
        base, file = journal.decode_file(payload)
        kinds = " unsynced" * file.unsynced + " side" * file.side
        return f"base={base} first={file.first} end={file.end} count={file.count}{kinds}"
    if kind == journal.POLICY:
        return _policy(payload)
    if kind == journal.GONE:
        return f"id={int.from_bytes(payload, 'big')}"
    return f"{len(payload)} bytes"


def _runs(runs: list[journal.Run]) -> str:
    return short([f"{start}..{end - 1}" for start, end in runs])


def _buried(payload: bytes) -> str:
    id, body = burials.decode_buried(payload)
    table = Buried()
    try:
        table.load(body)
    except ValueError as error:
        return f"id={id} {error}"
    shown = [
        f"{index}({reason} attempts={attempts} at={time_of(buried_ns)}"
        + "".join(f" {value!r}" for value in (text, client) if value)
        + ")"
        for index, reason, text, attempts, buried_ns, client in table.page(-1, len(table))
    ]
    return f"id={id} {short(shown)}"


def _mark(mark: tuple[int, int, int]) -> str:
    index, attempts, due_ns = mark
    kicked = due_ns < 0
    due_ns = ~due_ns if kicked else due_ns
    due = f" due={time_of(due_ns)}" if due_ns else ""
    return f"{index}(attempts={attempts}{due}{' kicked' if kicked else ''})"


def _policy(payload: bytes) -> str:
    try:
        id, policy = journal.decode_policy(payload)
    except (ValueError, struct.error):
        return "not JSON"
    return f"id={id} " + (" ".join(f"{key}={value}" for key, value in policy.items()) or "none")


def _channel(channel: journal.ChannelState) -> str:
    return (
        f"id={channel.id} name={channel.name} start={channel.start}"
        f" paused={channel.paused} defer_stamp={channel.defer_stamp}"
        f"{' pulled' * channel.pulled}{' named' * channel.named}"
        f"{' partial' * channel.partial}"
    )


def _dump_patterns(files: Files, path: str, out: TextIO) -> int:
    for record in decode_patterns(files.read(path), path):
        excepted = f" except {', '.join(record.excepted)}" if record.excepted else ""
        topics = ", ".join(record.topics)
        print(f"channel={record.channel} of {record.reader}: {topics}{excepted}", file=out)
    return 0


def _dump_drain(files: Files, path: str, out: TextIO) -> int:
    record = decode_drain(files.read(path), path)
    to = f" to={record.to}" if record.to else ""
    state = "draining" if record.draining else "not draining"
    print(f"{state}{to} batch={record.batch} handed_over={record.handed_over}", file=out)
    if record.intent is not None:
        intent = record.intent
        print(
            f"  intent {intent.query} batch={intent.batch} count={intent.count} at"
            f" {intent.address}, node {intent.node}",
            file=out,
        )
        for number, runs in intent.slots:
            ordinals = ", ".join(f"{first}..{first + count - 1}" for first, count in runs[:20])
            more = f" and {len(runs) - 20} more" if len(runs) > 20 else ""
            print(f"    slot={number} ordinals={ordinals}{more}", file=out)
    return 0


def _dump_metadata(files: Files, path: str, out: TextIO) -> int:
    metadata = decode_metadata(files.read(path), path)
    print(f"nsqd.dat version={metadata.version} topics={len(metadata.topics)}", file=out)
    for topic in metadata.topics:
        print(f"  topic={topic.name}{' paused' * topic.paused}", file=out)
        for channel in topic.channels:
            print(f"    channel={channel.name}{' paused' * channel.paused}", file=out)
    return 0


def _dump_slot(files: Files, path: str, out: TextIO, brief: bool) -> int:
    folder, _, file = path.rpartition("/")
    name = slot_name(file)
    if name is None:
        raise StorageError(f"{path}: the name of a slot file is <start>-<length>-<generation>")
    store = SlotStore(files, folder or ".")
    start, length = time_of(name.start_ns), name.length_ms // 1000
    print(f"slot={name.number} start={start} length={length}s", file=out)
    if file.endswith(".fired"):
        fired = store.read_fired(name)
        for first, count in fired.runs:
            print(f"  fired ordinals={first}..{first + count - 1}", file=out)
        if fired.bad_size:
            print(f"!! {fired.bad_size} bytes are not a checkpoint", file=out)
        return int(bool(fired.bad_size))
    bad_count = 0
    for records in store.scan_all(name):
        for ordinal, offset, size, _due_ns, instance, _stamp in records.rows():
            if brief:
                continue
            due = parse_record(store.read(name, offset, size), name.number, ordinal)
            if due is not None:
                print(
                    f"  {offset} ordinal={ordinal} topic={due.topic}~{instance:016x}"
                    f" due={time_of(due.due_ns)} published={time_of(due.timestamp_ns)}"
                    f" {body_of(due.body)}",
                    file=out,
                )
        if records.corrupt_size or records.torn_size:
            bad_count += 1
            print(
                f"!! {records.corrupt_size} bytes corrupt, {records.torn_size} torn"
                f" before {records.next_offset}",
                file=out,
            )
    return bad_count


def _dump_counts(files: Files, path: str, out: TextIO) -> int:
    loaded = unpack_counts(files.read(path), path)
    print(f"counts of {len(loaded.counts)} slots in {loaded.entry_count} entries", file=out)
    for count in sorted(loaded.counts.values()):
        print(
            f"  {count.name.slot_file} count={count.record_count} size={count.size}"
            f" fired={count.fired_count} fired_size={count.fired_size}",
            file=out,
        )
    if loaded.damage:
        print(f"!! {loaded.damage}", file=out)
    return int(bool(loaded.damage))
