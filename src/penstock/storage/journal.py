# The ack journal of a topic: what its channels have finished, and what the topic itself is.
#
# storage/records.py frames the records; the payloads are in docs/storage-format.md.  The journal is
# append-only: a later record adds to or overrides an earlier one, so if its tail is lost, messages
# are delivered again and none is lost.
#
# Rule 1: a finish is permanent.  Runs are only added and `low` only rises, in any order of records;
#         a seek gives the channel a new id, so that what the old one finished is unfinished again.
# Rule 2: a torn tail is truncated; a bad record in the middle is skipped and counted.
# Rule 3: compaction writes a new file and renames it; there is a journal at any time.

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core.batches import INDEX_MAX
from penstock.core.buried import Buried
from penstock.record import record
from penstock.storage import burials
from penstock.storage.channel_reader import ChannelReader, decode_reader
from penstock.storage.files import Files
from penstock.storage.records import Framing

TOPIC = 1
CHANNEL = 2
GONE = 3
PROGRESS = 4
SYNCED = 5
REMOVED = 6
FILE = 7
READER = 8
POLICY = 9
BURIED = 12
UNBURIED = 13
MOVED = 14
SEEK = 10
BEGUN = 11

# A larger PROGRESS is split: this bounds what one bad record costs, and a corrupt size field cannot
# make a reader skip the remaining file.
RUNS_PER_RECORD = 4096
MARKS_PER_RECORD = 4096
# Bytes of a compacted journal that are written at once.
PIECE_SIZE = 1 << 20
# Records that the loop may write: less than a tenth of a millisecond.
QUICK_SIZE_MAX = 64 * 1024
FRAMING = Framing(b"PJ", payload_size_max=256 * 1024)
records = FRAMING.records

# A topic's ``frozen`` byte: 0 no, 1 paused or without channels, and
AWAITING = 2  # new: the nsqlookupds have not answered yet which channels it has

# Flags of a file of the log.
UNSYNCED = 1
SIDE = 2

# A channel's flags.
PAUSED = 1
PULLED = 2  # read by index over HTTP, see engine/pull/channel.py
NAMED = 4  # created because an nsqlookupd named it; not used yet.  Older versions ignore it.
PARTIAL = 8  # created below whole_from: messages may be missing.  Older versions ignore it.

_TOPIC = struct.Struct(">QBBq")
_CHANNEL = struct.Struct(">IQBq")
_ID = struct.Struct(">I")
_PROGRESS = struct.Struct(">IQ")
_RUN = struct.Struct(">QQ")
_MARK = struct.Struct(">QHq")
_SYNCED = struct.Struct(">QQ")
_REMOVED = struct.Struct(">Q")
_MOVED = struct.Struct(">Q")
_FILE = struct.Struct(">QQQQB")
_BEGUN = struct.Struct(">IqQ")

# The id of the topic itself in a POLICY record; channels count from 1.
TOPIC_ID = 0

Run = tuple[int, int]
Mark = tuple[int, int]
# Attempts begin again; an inverted due time says that the message does not expire.
KICKED: Mark = (0, ~0)


@record
class FileState:
    """A file of the log with at least ``count`` messages in [first, end)."""

    first: int
    end: int
    count: int
    unsynced: bool = False
    side: bool = False


@dataclass
class ChannelState:
    """A channel in the journal: everything below ``low`` and in ``runs`` is finished."""

    id: int
    name: str
    start: int
    paused: bool = False
    defer_stamp: int = 0
    low: int = 0
    runs: list[Run] = field(default_factory=list)
    marks: dict[int, Mark] = field(default_factory=dict)
    pulled: bool = False
    named: bool = False
    partial: bool = False
    reader: ChannelReader | None = None
    # What was set for this very channel: JSON values by key, maybe of a later version.
    policy: dict[str, Any] = field(default_factory=dict)
    buried: Buried | None = None
    begun_ns: int = 0
    begun_end: int = 0
    first_id: int = 0  # before its first seek in this file; 0: it has none


@dataclass
class TopicState:
    """A topic in the journal; ``index_max`` is one past the largest index in any record.

    At and above ``whole_from`` no message was ever removed.  What was moved here below
    ``moves_settled_end`` is durably finished at its source.
    """

    released: int = 0
    frozen: int = 0
    paused: bool = False
    void_stamp: int = 0
    whole_from: int = 0
    moves_settled_end: int = 0
    channels: dict[str, ChannelState] = field(default_factory=dict)
    # Deleted ones by name: (id, its CHANNEL and GONE records).
    gone: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    files: dict[int, FileState] = field(default_factory=dict)  # by base
    synced: tuple[int, int] | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    index_max: int = 0
    channel_id_max: int = 0
    corrupt_count: int = 0
    torn_size: int = 0
    mended: bool = False  # it differs from what the records say: to be written again


def encode_topic(released: int, frozen: int, paused: bool, void_stamp: int) -> bytes:
    return FRAMING.encode(TOPIC, _TOPIC.pack(released, frozen, paused, void_stamp))


def encode_channel(
    id: int,
    start: int,
    paused: bool,
    defer_stamp: int,
    name: str,
    pulled: bool = False,
    named: bool = False,
    partial: bool = False,
) -> bytes:
    payload = _channel_payload(id, start, paused, defer_stamp, name, pulled, named, partial)
    return FRAMING.encode(CHANNEL, payload)


def _channel_payload(
    id: int,
    start: int,
    paused: bool,
    defer_stamp: int,
    name: str,
    pulled: bool,
    named: bool,
    partial: bool,
) -> bytes:
    flags = PAUSED * paused | PULLED * pulled | NAMED * named | PARTIAL * partial
    return _CHANNEL.pack(id, start, flags, defer_stamp) + name.encode()


def encode_seek(old_id: int, begun_ns: int, begun_end: int, *channel: Any) -> bytes:
    """``channel``: the arguments of encode_channel() for the channel as it begins."""
    return FRAMING.encode(
        SEEK, _BEGUN.pack(old_id, begun_ns, begun_end) + _channel_payload(*channel)
    )


def encode_begun(id: int, begun_ns: int, begun_end: int) -> bytes:
    return FRAMING.encode(BEGUN, _BEGUN.pack(id, begun_ns, begun_end))


def encode_reader(id: int, reader: ChannelReader) -> bytes:
    return FRAMING.encode(READER, _ID.pack(id) + reader.encode())


def encode_policy(id: int, policy: Mapping[str, Any]) -> bytes:
    """All that is set for the channel ``id``, or for the topic (TOPIC_ID)."""
    text = json.dumps(policy, separators=(",", ":"), sort_keys=True)
    return FRAMING.encode(POLICY, _ID.pack(id) + text.encode())


def encode_buried(id: int, body: bytes) -> bytes:
    return burials.encode_buried(FRAMING, BURIED, id, body)


def encode_burials(id: int, bodies: Iterable[bytes]) -> Iterator[bytes]:
    """One record after the other, for a thread that has the time."""
    return (encode_buried(id, body) for body in bodies)


def encode_unburied(id: int, runs: bytes, *, kicked: bool) -> bytes:
    return burials.encode_unburied(FRAMING, UNBURIED, id, runs, kicked=kicked)


def encode_gone(id: int) -> bytes:
    return FRAMING.encode(GONE, _ID.pack(id))


def encode_progress(
    id: int, low: int, runs: Sequence[Run] = (), marks: Mapping[int, Mark] | None = None
) -> bytes:
    """One record, or several if it does not fit into one."""
    entries = list(marks.items()) if marks else []
    encoded: list[bytes] = []
    at = 0
    while True:
        some_runs = runs[at * RUNS_PER_RECORD : (at + 1) * RUNS_PER_RECORD]
        some_marks = entries[at * MARKS_PER_RECORD : (at + 1) * MARKS_PER_RECORD]
        if at and not some_runs and not some_marks:
            return b"".join(encoded)
        parts = [_PROGRESS.pack(id, low), _ID.pack(len(some_runs))]
        parts += [_RUN.pack(*run) for run in some_runs]
        parts.append(_ID.pack(len(some_marks)))
        parts += [_MARK.pack(index, *mark) for index, mark in some_marks]
        encoded.append(FRAMING.encode(PROGRESS, b"".join(parts)))
        at += 1


def encode_packed_progress(id: int, low: int, runs: bytes, marks: bytes) -> bytes:
    """``encode_progress`` for runs and marks that are encoded already."""
    return b"".join(packed_progress(id, low, runs, marks))


def packed_progress(id: int, low: int, runs: bytes, marks: bytes) -> Iterator[bytes]:
    """The same, one record after the other, for a thread that has the time."""
    run_size, mark_size = RUNS_PER_RECORD * _RUN.size, MARKS_PER_RECORD * _MARK.size
    for at in range(max(1, -(-len(runs) // run_size), -(-len(marks) // mark_size))):
        some_runs = runs[at * run_size : (at + 1) * run_size]
        some_marks = marks[at * mark_size : (at + 1) * mark_size]
        run_count, mark_count = len(some_runs) // _RUN.size, len(some_marks) // _MARK.size
        parts = [_PROGRESS.pack(id, low), _ID.pack(run_count), some_runs]
        parts += [_ID.pack(mark_count), some_marks]
        yield FRAMING.encode(PROGRESS, b"".join(parts))


def encode_synced(base: int, offset: int) -> bytes:
    return FRAMING.encode(SYNCED, _SYNCED.pack(base, offset))


def encode_removed(whole_from: int) -> bytes:
    return FRAMING.encode(REMOVED, _REMOVED.pack(whole_from))


def encode_moved(settled_end: int) -> bytes:
    return FRAMING.encode(MOVED, _MOVED.pack(settled_end))


def encode_file(base: int, state: FileState) -> bytes:
    flags = UNSYNCED * state.unsynced | SIDE * state.side
    return FRAMING.encode(FILE, _FILE.pack(base, state.first, state.end, state.count, flags))


def decode_topic(payload: bytes) -> tuple[int, int, bool, int]:
    """(released, frozen, paused, void stamp)"""
    released, frozen, paused, void_stamp = _TOPIC.unpack(payload)
    return released, frozen, bool(paused), void_stamp


def decode_channel(payload: bytes) -> ChannelState:
    """The channel as it is at its creation."""
    id, start, flags, defer_stamp = _CHANNEL.unpack_from(payload)
    name = payload[_CHANNEL.size :].decode()
    return ChannelState(
        *(id, name, start, bool(flags & PAUSED), defer_stamp),
        low=start,
        pulled=bool(flags & PULLED),
        named=bool(flags & NAMED),
        partial=bool(flags & PARTIAL),
    )


def decode_seek(payload: bytes) -> tuple[int, ChannelState]:
    """(old id, the channel as it begins)"""
    old_id, begun_ns, begun_end = _BEGUN.unpack_from(payload)
    channel = decode_channel(payload[_BEGUN.size :])
    channel.begun_ns, channel.begun_end = begun_ns, begun_end
    return old_id, channel


def decode_begun(payload: bytes) -> tuple[int, int, int]:
    """(id, begun_ns, begun_end)"""
    id, begun_ns, begun_end = _BEGUN.unpack(payload)
    return id, begun_ns, begun_end


def decode_channel_reader(payload: bytes) -> tuple[int, ChannelReader]:
    """(id, reader of the channel)"""
    id: int = _ID.unpack_from(payload)[0]
    return id, decode_reader(payload[_ID.size :])


def decode_policy(payload: bytes) -> tuple[int, dict[str, Any]]:
    """(id of the channel or TOPIC_ID, JSON values by key); raises ValueError."""
    id: int = _ID.unpack_from(payload)[0]
    try:
        policy = json.loads(payload[_ID.size :])
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(policy, dict):
        raise ValueError("not an object")
    return id, policy


def decode_progress(
    payload: bytes,
) -> tuple[int, int, list[Run], list[tuple[int, int, int]]]:
    """(id, low, runs, marks as (index, attempts, due_ns))"""
    id, low = _PROGRESS.unpack_from(payload)
    at = _PROGRESS.size
    (run_count,) = _ID.unpack_from(payload, at)
    runs_end = at + 4 + run_count * _RUN.size
    runs: list[Run] = list(_RUN.iter_unpack(payload[at + 4 : runs_end]))
    (mark_count,) = _ID.unpack_from(payload, runs_end)
    marks_end = runs_end + 4 + mark_count * _MARK.size
    return id, low, runs, list(_MARK.iter_unpack(payload[runs_end + 4 : marks_end]))


def decode_synced(payload: bytes) -> tuple[int, int]:
    """(segment base, offset)"""
    base, offset = _SYNCED.unpack(payload)
    return base, offset


def decode_removed(payload: bytes) -> int:
    """The index from which on no message was removed."""
    whole_from: int = _REMOVED.unpack(payload)[0]
    return whole_from


def decode_moved(payload: bytes) -> int:
    """The index below which moves to this log are finished at their sources."""
    settled_end: int = _MOVED.unpack(payload)[0]
    return settled_end


def decode_file(payload: bytes) -> tuple[int, FileState]:
    """(base, state); a file without messages was removed."""
    base, first, end, count, flags = _FILE.unpack(payload)
    return base, FileState(first, end, count, bool(flags & UNSYNCED), bool(flags & SIDE))


def snapshot(state: TopicState) -> list[bytes]:
    """The records that reproduce ``state``."""
    encoded = [encode_topic(state.released, state.frozen, state.paused, state.void_stamp)]
    if state.policy:
        encoded.append(encode_policy(TOPIC_ID, state.policy))
    for channel in state.channels.values():
        encoded.append(
            encode_channel(
                channel.id,
                channel.start,
                channel.paused,
                channel.defer_stamp,
                channel.name,
                channel.pulled,
                channel.named,
                channel.partial,
            )
        )
        if channel.reader is not None:
            encoded.append(encode_reader(channel.id, channel.reader))
        if channel.policy:
            encoded.append(encode_policy(channel.id, channel.policy))
        for body in channel.buried.snapshot() if channel.buried is not None else ():
            encoded.append(encode_buried(channel.id, body))
        if channel.begun_ns:
            encoded.append(encode_begun(channel.id, channel.begun_ns, channel.begun_end))
        encoded.append(encode_progress(channel.id, channel.low, channel.runs, channel.marks))
    if state.synced is not None:
        encoded.append(encode_synced(*state.synced))
    if state.whole_from:
        encoded.append(encode_removed(state.whole_from))
    if state.moves_settled_end:
        encoded.append(encode_moved(state.moves_settled_end))
    encoded += [encode_file(base, stated) for base, stated in state.files.items()]
    return encoded


def replay(data: bytes) -> TopicState:
    """Replay a journal; counts corrupt records and measures a torn end."""
    return _Replay().run(data)


def span(data: bytes) -> tuple[int, int]:
    """(lowest index in a journal, one past the highest); 0 for an empty journal."""
    replay = _Replay()
    state = replay.run(data)
    return min(replay.index_min, state.index_max), state.index_max


# Records of a channel, by its id, that versions without SEEK write.
_BEFORE_SEEK = frozenset((CHANNEL, GONE, PROGRESS, READER))
# What a SEEK record states; the remaining state of the channel stays.
_SOUGHT = (
    *("id", "name", "start", "low", "paused", "named", "partial"),
    *("defer_stamp", "begun_ns", "begun_end"),
)


@dataclass
class _Chain:
    """A channel before its first seek, and its ids since."""

    root: ChannelState
    ids: list[int]
    buried: burials.Burials | None


class _Replay:
    def __init__(self) -> None:
        self.state = TopicState()
        self.index_min = 1 << 63
        self.channels: dict[int, ChannelState] = {}
        self.burials: dict[int, burials.Burials] = {}  # by channel id
        self.ids: dict[str, int] = {}  # by name, also of deleted channels
        self.chains: dict[int, _Chain] = {}  # of sought channels, by each of their ids

    def run(self, data: bytes) -> TopicState:
        for found in records(data):
            if found.torn:
                self.state.torn_size = found.end - found.start
            elif found.payload is None:
                self.state.corrupt_count += 1
            else:
                try:
                    self.apply(found.kind, found.payload)
                except (struct.error, ValueError):
                    self.state.corrupt_count += 1
        for channel in self.channels.values():
            buried = self.burials.get(channel.id)
            _settle(channel, buried.kicked() if buried is not None else [])
            channel.buried = buried.table if buried is not None and buried.table.count else None
            self.state.mended |= _finish_buried(channel)
            self.state.channels[channel.name] = channel
        for name, id in self.ids.items():
            if name not in self.state.channels:
                record = encode_channel(id, 0, False, 0, name) + encode_gone(id)
                self.state.gone[name] = (id, record)
        return self.state

    def apply(self, kind: int, payload: bytes) -> None:
        state = self.state
        if kind in _BEFORE_SEEK and self.chains:
            self.undo_seeks(kind, payload)
        if kind == TOPIC:
            state.released, state.frozen, state.paused, state.void_stamp = decode_topic(payload)
            self.saw(state.released)
        elif kind == CHANNEL:
            self.apply_channel(decode_channel(payload))
        elif kind == GONE:
            self.channels.pop(_ID.unpack(payload)[0], None)
        elif kind == PROGRESS:
            self.apply_progress(*decode_progress(payload))
        elif kind == SYNCED:
            state.synced = decode_synced(payload)
        elif kind == REMOVED:
            state.whole_from = max(state.whole_from, decode_removed(payload))
            self.saw(state.whole_from)
        elif kind == FILE:
            self.apply_file(*decode_file(payload))
        elif kind == READER:
            self.apply_reader(*decode_channel_reader(payload))
        elif kind == POLICY:
            self.apply_policy(*decode_policy(payload))
        elif kind == MOVED:
            state.moves_settled_end = max(state.moves_settled_end, decode_moved(payload))
            self.saw(state.moves_settled_end)
        elif kind == BURIED:
            self.apply_buried(*burials.decode_buried(payload))
        elif kind == UNBURIED:
            self.apply_unburied(*burials.decode_unburied(payload))
        elif kind == SEEK:
            self.apply_seek(*decode_seek(payload))
        elif kind == BEGUN:
            self.apply_begun(*decode_begun(payload))

    def apply_file(self, base: int, stated: FileState) -> None:
        self.saw(stated.end)
        if stated.count:
            self.state.files[base] = stated
        else:
            self.state.files.pop(base, None)

    def apply_channel(self, stated: ChannelState) -> None:
        self.state.channel_id_max = max(self.state.channel_id_max, stated.id)
        self.saw(stated.start)
        channel = self.channels.get(stated.id)
        if channel is None:
            # A name has one channel: the GONE record of an older one of that name was lost.
            self.channels.pop(self.ids.get(stated.name, -1), None)
            self.ids[stated.name] = stated.id
            self.channels[stated.id] = stated
        else:
            channel.paused, channel.defer_stamp = stated.paused, stated.defer_stamp
            channel.pulled, channel.named = stated.pulled, stated.named
            channel.partial = stated.partial

    def apply_reader(self, id: int, reader: ChannelReader) -> None:
        channel = self.channels.get(id)
        if channel is not None:
            channel.reader = reader

    def apply_policy(self, id: int, policy: dict[str, Any]) -> None:
        if id == TOPIC_ID:
            self.state.policy = policy
        elif (channel := self.channels.get(id)) is not None:
            channel.policy = policy

    def apply_buried(self, id: int, body: bytes) -> None:
        if id in self.channels:
            self.burials.setdefault(id, burials.Burials()).bury(body)

    def apply_unburied(self, id: int, kicked: bool, runs: list[Run]) -> None:
        channel, buried = self.channels.get(id), self.burials.get(id)
        if channel is None or buried is None:
            return
        for index in buried.unbury(runs, kicked=kicked):
            channel.marks[index] = KICKED

    def apply_seek(self, old_id: int, stated: ChannelState) -> None:
        """The channel continues as ``stated``, with what does not depend on its place."""
        self.state.channel_id_max = max(self.state.channel_id_max, stated.id)
        self.saw(stated.start)
        old = self.channels.pop(old_id, None)
        if old is not None:
            chain = self.chains.get(old_id) or _Chain(old, [], self.copy_burials(old_id))
            chain.ids.append(stated.id)
            self.chains[old_id] = chain
            self.chains[stated.id] = chain
            stated = replace(
                old,
                **{name: getattr(stated, name) for name in _SOUGHT},
                first_id=chain.root.id,
                runs=[],
                marks={},
            )
        self.ids[stated.name] = stated.id
        self.channels[stated.id] = stated
        if (buried := self.burials.pop(old_id, None)) is not None:
            buried.rewind(stated.start)
            self.burials[stated.id] = buried

    def copy_burials(self, id: int) -> burials.Burials | None:
        buried = self.burials.get(id)
        return None if buried is None else buried.copy()

    def undo_seeks(self, kind: int, payload: bytes) -> None:
        """An earlier version skipped SEEK records and continued with the channel's first id.

        It shows by a record of an id that was sought away, or by a channel of another name with an
        id that it could not know.  What it did counts.
        """
        id: int = _ID.unpack_from(payload)[0]
        chain = self.chains.get(id)
        if chain is None:
            return
        renamed = kind == CHANNEL and decode_channel(payload).name != chain.root.name
        if id == chain.ids[-1] and not renamed:
            return
        for each in chain.ids:
            self.channels.pop(each, None)
            self.burials.pop(each, None)
            del self.chains[each]
        if chain.buried is not None:
            self.burials[chain.root.id] = chain.buried
        self.chains.pop(chain.root.id)
        self.ids[chain.root.name] = chain.root.id
        self.channels[chain.root.id] = chain.root

    def apply_begun(self, id: int, begun_ns: int, begun_end: int) -> None:
        channel = self.channels.get(id)
        if channel is not None:
            channel.begun_ns, channel.begun_end = begun_ns, begun_end

    def apply_progress(
        self, id: int, low: int, runs: list[Run], marks: list[tuple[int, int, int]]
    ) -> None:
        self.saw(low)
        if runs:
            self.saw(max(end for _, end in runs))
        if marks:
            self.saw(max(mark[0] for mark in marks) + 1)
        channel = self.channels.get(id)
        if channel is None:
            return  # the channel was deleted
        channel.low = max(channel.low, low)
        channel.runs.extend(runs)
        if id in self.burials:
            self.burials[id].finish(low, runs)
        for index, attempts, due_ns in marks:
            channel.marks[index] = (attempts, due_ns)

    def saw(self, index: int) -> None:
        self.index_min = min(self.index_min, index)
        if index > self.state.index_max:
            self.state.index_max = index


def finish_moved(channel: ChannelState, indexes: Iterable[int]) -> bytes:
    """Finish messages that are found to have been moved; return the records of that."""
    known, place = channel.runs.copy(), 0
    runs: list[Run] = []
    unburied: list[bytes] = []
    for index in sorted(indexes):
        while place < len(known) and known[place][1] <= index:
            place += 1
        finished = place < len(known) and known[place][0] <= index
        if channel.buried is not None and channel.buried.remove(index):
            unburied.append(_RUN.pack(index, index + 1))
            runs.append((index, index + 1))
        elif index >= channel.low and not finished:
            runs.append((index, index + 1))
    channel.runs.extend(runs)
    _settle(channel)
    gone = encode_unburied(channel.id, b"".join(unburied), kicked=False) if unburied else b""
    return encode_progress(channel.id, 0, runs) + gone if runs else gone


def _finish_buried(channel: ChannelState) -> bool:
    """A buried message is not unfinished as well, if the record that finishes it was torn off.

    Returns whether there was one.
    """
    table, at = channel.buried, channel.low
    if table is None:
        return False
    runs: list[Run] = []
    for start, end in [*channel.runs, (INDEX_MAX, INDEX_MAX)]:
        if at < start and table.has_between(at, start):
            runs += [(index, index + 1) for index in table.between(at, start, table.count) or ()]
        at = end
    if runs:
        channel.runs.extend(runs)
        _settle(channel)
    return bool(runs)


def _settle(channel: ChannelState, kicked: Sequence[int] = ()) -> None:
    """Merge the runs, raise ``low`` over adjacent ones, drop marks of finished messages.

    ``kicked`` messages are unfinished, whatever the runs say.
    """
    merged: list[Run] = []
    for start, end in sorted(run for run in channel.runs if run[1] > channel.low):
        if start <= channel.low:
            channel.low = max(channel.low, end)
        elif merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif start < end:
            merged.append((start, end))
    if kicked:
        low = min(kicked[0], channel.low)
        finished = [(low, channel.low), *merged]
        merged, channel.low = list(burials.without(finished, kicked)), low
    channel.runs = merged
    place = 0
    marks: dict[int, Mark] = {}
    for index in sorted(index for index in channel.marks if index >= channel.low):
        while place < len(merged) and merged[place][1] <= index:
            place += 1
        if place == len(merged) or index < merged[place][0]:
            marks[index] = channel.marks[index]
    channel.marks = marks


def _joined(records: Iterable[bytes]) -> Iterator[bytes]:
    """``records`` in pieces: those of a million buried messages have 23 MB."""
    piece: list[bytes] = []
    size = 0
    for encoded in records:
        piece.append(encoded)
        size += len(encoded)
        if size >= PIECE_SIZE:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


class Journal:
    """The file.  ``add`` and ``take`` belong to the loop, ``write`` and ``compact`` may block.

    Without a ``size`` the constructor calls stat, which may block.
    """

    def __init__(self, files: Files, path: str, size: int | None = None) -> None:
        self._files = files
        self.path = path
        if size is None:
            size = files.size(path) if files.exists(path) else 0
        self.size = size
        self._named = True  # its name is durable, or will be with the first write
        self._buffer: list[bytes] = []
        self.buffer_size = 0

    def add(self, record: bytes) -> None:
        self._buffer.append(record)
        self.buffer_size += len(record)

    def take(self) -> bytes:
        """Return the records added since the last call, for the caller to write."""
        taken = b"".join(self._buffer)
        self._buffer.clear()
        self.buffer_size = 0
        return taken

    def begin(self, data: bytes) -> None:
        """Create the file with its first records; blocking.  Its name is durable after sync()."""
        self.size = self._files.append(self.path, [data])
        self._named = False

    def write(self, data: bytes) -> None:
        """Append records; blocking.  After an error, the next call must be compact()."""
        if data:
            made = self.size == 0
            self.size = self._files.append(self.path, [data])
            if made:
                self._files.sync_folder(self.path.rpartition("/")[0])

    def is_quick(self, data: bytes) -> bool:
        """Whether write() only has to copy to the page cache."""
        return self.size > 0 and len(data) <= QUICK_SIZE_MAX and self._files.is_open(self.path)

    def sync(self) -> None:
        """Make written records durable; blocking.  May run concurrently with a write."""
        if self.size:
            self._files.sync(self.path)
        if not self._named:
            self._files.sync_folder(self.path.rpartition("/")[0])
            self._named = True

    def compact(self, records: Iterable[bytes]) -> None:
        """Replace the file by ``records``; blocking.

        Must not run concurrently with a write: records taken before must be in ``records``, later
        ones stay in the buffer.
        """
        temporary = f"{self.path}.new"
        self._files.unlink(temporary)
        size = 0
        try:
            for data in _joined(records):
                size = self._files.append(temporary, [data])
            self._files.sync(temporary)
            self._files.rename(temporary, self.path)
        except OSError:
            self._files.unlink(temporary)
            raise
        self.size = size
        self._files.sync_folder(self.path.rpartition("/")[0])
