# Import of one topic of a Go nsqd: its queues become a log and a journal.
#
#     queue files --scan--> entries, sorted --group--> parts --write--> log, journal
#
# nsqd copies a message into every channel's queue; here the copies are merged: copies of a message
# have the same timestamp, id and size.  Each distinct message is appended once, with its timestamp
# and body; a channel without a copy has finished it.
#
#     entry, 46 bytes: timestamp + 2^63 u64 | id 16 | body size u32        the key
#                      queue u32 | attempts u16 | file u32 | body's offset u64
#     queue: 0 = the topic's own, otherwise the id of a channel in the journal
#
# The log has three parts, each in order of (timestamp, id):
#   RETRIED   was delivered before by some channel.  First, because nsqd keeps an entry in memory
#             for every message from the low-water mark to the last one with attempts.
#   FRESH     only in channel queues, not delivered yet.
#   HELD      only in the topic's queue: for all channels, and above `released` while the topic is
#             paused or has no channels (R2).
#
# Memory does not depend on the number of messages: sorted_runs.py, one batch, JOURNAL_COUNT_MAX
# runs and attempts, CACHE_COUNT blocks of bodies; under 100 MB in total.

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.appender import Appender
from penstock.storage import journal as records_of
from penstock.storage.diskqueue import MSG_SIZE_MAX, Plan, QueueDamage, records
from penstock.storage.files import Files
from penstock.storage.import_report import ChannelReport, QueueReport, TopicReport
from penstock.storage.journal import Journal
from penstock.storage.sorted_runs import FAN_IN_MAX, RUN_COUNT_MAX, EntryFile, SortedRuns
from penstock.storage.topic_log import TopicLog

RETRIED, FRESH, HELD = range(3)

BATCH_SIZE = 256 * 1024
JOURNAL_COUNT_MAX = 65_536
CACHE_BLOCK_SIZE = 256 * 1024
CACHE_COUNT = 64
PROGRESS_COUNT = 10_000  # messages between two calls of ``progress``

_ENTRY = struct.Struct(">Q16sIIHIQ")
_KEY_SIZE = 28
_QUEUE = slice(28, 32)
_ATTEMPTS = slice(32, 34)
_OWN = b"\0\0\0\0"
_NEVER = b"\0\0"
_BIAS = 1 << 63

# (step, done, total); the total of "read" is in bytes, that of the others in copies.
Progress = Callable[[str, int, int], None]


@dataclass
class SourceQueue:
    """A queue to read; ``channel`` is "" for the topic's own queue."""

    name: str
    channel: str
    plan: Plan


@dataclass
class SourceTopic:
    """A topic of the source, with the channels that nsqd.dat or a queue file names."""

    name: str
    paused: bool = False
    channels: dict[str, bool] = field(default_factory=dict)  # name: paused
    queues: list[SourceQueue] = field(default_factory=list)


class Sink(Protocol):
    """The destination of messages: a log, or nothing in a dry run."""

    wants_bodies: bool

    def add(self, body: bytes, timestamp_ns: int) -> int:
        """Append a message; return its index."""

    def journal(self, record: bytes) -> None: ...

    def close(self) -> None:
        """Make all of it durable."""


class LogSink:
    """A topic's folder, written from scratch."""

    wants_bodies = True

    def __init__(
        self,
        files: Files,
        folder: str,
        topic: str,
        instance: int,
        node_id: int,
        base: int,
        now_ns: int,
    ) -> None:
        self._log = TopicLog.create(files, folder, instance, node_id, base)
        self._journal = Journal(files, f"{folder}/journal")
        self._appender = Appender(topic, node_id, base, lambda: None)
        self._now_ns = now_ns

    def add(self, body: bytes, timestamp_ns: int) -> int:
        appender = self._appender
        index = appender.next_index
        appender.add(body, timestamp_ns)
        if appender.size >= BATCH_SIZE:
            self._write()
        return index

    def journal(self, record: bytes) -> None:
        self._journal.write(record)

    def close(self) -> None:
        if self._appender.count:
            self._write()
        self._log.synced(self._log.roll())
        self._journal.sync()

    def _write(self) -> None:
        batch = self._appender.seal(self._now_ns)
        self._log.write(batch)
        self._log.commit(batch)
        if self._log.needs_roll():
            self._log.synced(self._log.roll())


class CountSink:
    """For a dry run: assigns indexes and stores nothing."""

    wants_bodies = False

    def __init__(self) -> None:
        self._index = 0

    def add(self, body: bytes, timestamp_ns: int) -> int:
        self._index += 1
        return self._index - 1

    def journal(self, record: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class TopicImport:
    """The import of one topic; see ``take``."""

    def __init__(
        self,
        source_files: Files,
        topic: SourceTopic,
        work_files: Files,
        work_folder: str,
        damage: list[QueueDamage],
        progress: Progress,
        msg_size_max: int = MSG_SIZE_MAX,
    ) -> None:
        self._files = source_files
        self._topic = topic
        self._msg_size_max = msg_size_max
        self._damage = damage
        self._progress = progress
        self._paths: list[str] = []
        self._entries = SortedRuns(work_files, work_folder, _ENTRY.size, RUN_COUNT_MAX, FAN_IN_MAX)
        self._parts = [
            EntryFile(work_files, f"{work_folder}/part-{part}", _ENTRY.size) for part in range(3)
        ]
        self.report = TopicReport(topic.name, topic.paused)

    def take(self, sink: Sink, base: int) -> TopicReport:
        """Read all queues and add the messages to ``sink``, whose first index is ``base``."""
        try:
            ids = {name: id for id, name in enumerate(self._topic.channels, 1)}
            self._scan(ids)
            self._divide()
            self._write(sink, base)
        finally:
            self._entries.remove()
            for part in self._parts:
                part.remove()
        sink.close()
        return self.report

    # Reading

    def _scan(self, ids: dict[str, int]) -> None:
        total = sum(queue.plan.size for queue in self._topic.queues)
        done = 0
        for queue in self._topic.queues:
            queue_report = QueueReport(
                queue.name, queue.plan.meta.depth if queue.plan.meta else None
            )
            self.report.queues.append(queue_report)
            id = ids[queue.channel] if queue.channel else 0
            for extent in queue.plan.extents:
                number = len(self._paths)
                self._paths.append(extent.path)
                add, pack, count = self._entries.add, _ENTRY.pack, 0
                for offset, size, timestamp_ns, attempts, message_id in records(
                    self._files, extent, self._damage, self._msg_size_max
                ):
                    add(pack(timestamp_ns + _BIAS, message_id, size, id, attempts, number, offset))
                    count += 1
                    if offset >= extent.vouched_end:
                        queue_report.salvaged_count += 1
                    if not count % PROGRESS_COUNT:
                        self._progress("read", done + offset - extent.start, total)
                queue_report.record_count += count
                done += extent.end - extent.start
                self._progress("read", done, total)

    # Merging

    def _divide(self) -> None:
        """Write each message's copies to the file of its part of the log."""
        done, total = 0, self._entries.count
        for group in _groups(self._entries.merged()):
            self._parts[_part_of(group)].extend(group)
            done += len(group)
            if done % PROGRESS_COUNT < len(group):
                self._progress("sort", done, total)
        self._entries.remove()

    # Writing

    def _write(self, sink: Sink, base: int) -> None:
        channels = [
            _Channel(id, base, ChannelReport(name, paused))
            for id, (name, paused) in enumerate(self._topic.channels.items(), 1)
        ]
        self.report.channels = [channel.report for channel in channels]
        for channel in channels:
            sink.journal(
                records_of.encode_channel(
                    channel.id, base, channel.report.paused, 0, channel.report.name
                )
            )
        ledger = _Ledger(sink, channels, base)
        released = base
        for part in (RETRIED, FRESH):
            for index, group in self._append(sink, part, base):
                ledger.note(index, group)
                released = index + 1
        ledger.close(released)
        for _ in self._append(sink, HELD, base):
            self.report.held_count += 1
        for channel in channels:
            channel.report.finished_count = released - base - channel.report.undelivered_count
            channel.report.undelivered_count += self.report.held_count
        end = base + self.report.message_count
        frozen = self._topic.paused or not channels
        sink.journal(
            records_of.encode_topic(released if frozen else end, frozen, self._topic.paused, 0)
        )

    def _append(self, sink: Sink, part: int, base: int) -> Iterator[tuple[int, list[bytes]]]:
        total = sum(entries.count for entries in self._parts)
        done = sum(entries.count for entries in self._parts[:part])
        bodies = _Bodies(self._files, self._paths)
        for group in _groups(self._parts[part]):
            body = self._body(bodies, group) if sink.wants_bodies else b""
            done += len(group)
            if body is not None:
                biased, _, size, _, _, _, _ = _ENTRY.unpack(group[0])
                self.report.message_count += 1
                self.report.body_size += size
                yield sink.add(body, biased - _BIAS), group
            if done % PROGRESS_COUNT < len(group):
                self._progress("write", done, total)

    def _body(self, bodies: _Bodies, group: list[bytes]) -> bytes | None:
        """The body, from the first copy that can be read; None if there is none."""
        failed = []
        for entry in group:
            _, _, size, _, _, number, offset = _ENTRY.unpack(entry)
            try:
                return bodies.read(number, offset, size)
            except OSError as error:
                what = f"cannot be read: {error.strerror or error}"
                failed.append(QueueDamage(self._paths[number], offset, size, what))
        self._damage.extend(failed)
        return None


class _Channel:
    __slots__ = ("id", "marks", "next_index", "report", "runs")

    def __init__(self, id: int, base: int, report: ChannelReport) -> None:
        self.id = id
        self.report = report
        self.next_index = base  # everything below is known to be unfinished or finished
        self.runs: list[tuple[int, int]] = []
        self.marks: dict[int, tuple[int, int]] = {}


class _Ledger:
    """The unfinished messages of each channel, as journal records; all others are finished."""

    def __init__(self, sink: Sink, channels: list[_Channel], base: int) -> None:
        self._sink = sink
        self._channels = channels
        self._base = base
        self._pending_count = 0

    def note(self, index: int, group: list[bytes]) -> None:
        attempts = {
            int.from_bytes(entry[_QUEUE], "big"): int.from_bytes(entry[_ATTEMPTS], "big")
            for entry in group
        }
        if 0 in attempts:
            # Also in the topic's queue: nsqd had not copied it to every channel yet.
            attempts = {channel.id: attempts.get(channel.id, 0) for channel in self._channels}
        for id, count in attempts.items():
            channel = self._channels[id - 1]
            if index > channel.next_index:
                channel.runs.append((channel.next_index, index))
                self._pending_count += 1
            channel.next_index = index + 1
            channel.report.undelivered_count += 1
            if count:
                channel.marks[index] = (count, 0)
                channel.report.retried_count += 1
                self._pending_count += 1
        if self._pending_count >= JOURNAL_COUNT_MAX:
            self._flush()

    def close(self, released: int) -> None:
        """Write the final records; all messages of channels are below ``released``."""
        for channel in self._channels:
            if channel.next_index < released:
                channel.runs.append((channel.next_index, released))
        self._flush()

    def _flush(self) -> None:
        for channel in self._channels:
            if channel.runs or channel.marks:
                self._sink.journal(
                    records_of.encode_progress(channel.id, self._base, channel.runs, channel.marks)
                )
                channel.runs.clear()
                channel.marks.clear()
        self._pending_count = 0


class _Bodies:
    """Bodies by file and offset.

    The most recently used blocks are kept: copies are nearly in order of time, in a few places.
    """

    def __init__(self, files: Files, paths: list[str]) -> None:
        self._files = files
        self._paths = paths
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def read(self, number: int, offset: int, size: int) -> bytes:
        place, start = divmod(offset, CACHE_BLOCK_SIZE)
        block = self._blocks.get((number, place))
        if block is None:
            block = self._load(number, place)
        else:
            self._blocks.move_to_end((number, place))
        body = block[start : start + size]
        if len(body) < size:  # it continues in the next block
            body = self._files.pread(self._paths[number], offset, size) or b""
            if len(body) < size:
                raise OSError("file became shorter")
        return body

    def _load(self, number: int, place: int) -> bytes:
        if len(self._blocks) >= CACHE_COUNT:
            self._blocks.popitem(last=False)
        path = self._paths[number]
        block = self._files.pread(path, place * CACHE_BLOCK_SIZE, CACHE_BLOCK_SIZE) or b""
        self._blocks[number, place] = block
        return block


def _groups(entries: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The copies of one message at a time, one a queue.

    After a crash a queue may have a message twice, before and after a requeue: the copy with the
    most attempts is sorted last, and stays.
    """
    group: list[bytes] = []
    key = b""
    for entry in entries:
        found = entry[:_KEY_SIZE]
        if found != key:
            if group:
                yield group
            group, key = [entry], found
        elif entry[_QUEUE] == group[-1][_QUEUE]:
            group[-1] = entry
        else:
            group.append(entry)
    if group:
        yield group


def _part_of(group: list[bytes]) -> int:
    if group[-1][_QUEUE] == _OWN:
        return HELD
    for entry in group:
        if entry[_ATTEMPTS] != _NEVER and entry[_QUEUE] != _OWN:
            return RETRIED
    return FRESH
