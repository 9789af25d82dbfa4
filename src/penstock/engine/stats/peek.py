"""Reads the messages of a channel without consuming them.

    window entries           delivered and not finished: in flight, ready again, deferred
    the log from its cursor  not delivered yet

in log order, oldest first.  Nothing changes: no attempt is counted and no deadline moves.

Rule 1: the loop collects what to read; a disk thread reads the files.  Messages that are finished
        in between are still shown.
Rule 2: at most COUNT_MAX messages, with at most ``size_max`` bytes of each body.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from penstock.core.block import Block
from penstock.engine.base import BaseTopic
from penstock.engine.channel import READ_SIZE, REDELIVERY_SIZE, Channel
from penstock.engine.disk import Disk, Done
from penstock.engine.ephemeral import EphemeralChannel

COUNT_MAX = 100
# Messages may be skipped ahead of the cursor; this limits the reads for that.
READ_COUNT_MAX = 64

_HEADER = struct.Struct(">IIqH16s")  # size, type, timestamp, attempts, id
_STATES = {"in flight": "in_flight", "ready": "queued", "deferred": "deferred"}


class Peeked(NamedTuple):
    """One message; ``attempts`` counts the deliveries so far."""

    id: str
    timestamp_ns: int
    attempts: int
    state: str  # queued, in_flight or deferred
    due_ns: int  # wall time, of a deferred one; else 0
    size: int
    body: bytes  # its beginning


@dataclass(slots=True)
class _Peek:
    """What to read, and the messages found."""

    count: int
    size_max: int
    entries: list[tuple[int, str, int, int]]
    cursor: int
    limit: int
    skipped: list[tuple[int, int]]
    found: list[Peeked] = field(default_factory=list)

    def add(self, frame: bytes, state: str, attempts: int, due_ns: int) -> None:
        _, _, timestamp_ns, _, id = _HEADER.unpack_from(frame)
        size = len(frame) - _HEADER.size
        body = frame[_HEADER.size : _HEADER.size + self.size_max]
        self.found.append(Peeked(id.decode(), timestamp_ns, attempts, state, due_ns, size, body))

    def add_fresh(self, block: Block, start: int) -> int:
        """Add messages of a block from ``start`` on; returns where to continue."""
        indexes = block.indexes(start, self.count + sum(b - a for a, b in self._skips_in(block)))
        for index in indexes:
            if len(self.found) == self.count or index >= self.limit:
                break
            if not self._is_skipped(index) and (frame := block.frame(index)):
                self.add(frame, "queued", 0, 0)
        return block.end

    def _skips_in(self, block: Block) -> list[tuple[int, int]]:
        first, end = block.first, block.end
        return [(max(a, first), min(b, end)) for a, b in self.skipped if a < end and b > first]

    def _is_skipped(self, index: int) -> bool:
        at = bisect_right(self.skipped, (index, self.limit)) - 1
        return at >= 0 and self.skipped[at][0] <= index < self.skipped[at][1]


def peek(channel: Channel, count: int, size_max: int, disk: Disk, done: Done[list[Peeked]]) -> None:
    """Find the oldest unfinished messages of ``channel``; ``done`` gets them on the loop."""
    window, topic = channel.window, channel.topic
    peeking = _Peek(
        count=min(count, COUNT_MAX),
        size_max=size_max,
        entries=window.oldest(min(count, COUNT_MAX)),
        cursor=window.cursor,
        limit=topic.released,
        skipped=window.skipped,
    )
    if isinstance(channel, EphemeralChannel) and not channel.behind:
        done(_in_memory(channel, peeking), None)
    else:
        disk.submit(partial(_in_files, topic, peeking), done)


def _in_memory(channel: EphemeralChannel, peeking: _Peek) -> list[Peeked]:
    for index, state, attempts, due_ns in peeking.entries:
        if frame := channel.kept_frame(index):
            peeking.add(frame, _STATES[state], attempts, due_ns)
    for block in channel.kept_blocks():
        peeking.add_fresh(block, peeking.cursor)
    return peeking.found


def _in_files(topic: BaseTopic, peeking: _Peek) -> list[Peeked]:
    # On a disk thread.
    block: Block | None = None
    for index, state, attempts, due_ns in peeking.entries:
        # Unfinished messages are often neighbours.
        if block is None or not block.first <= index < block.end:
            block = topic.block_at(index, REDELIVERY_SIZE, wait=True)
        frame = block.frame(index) if block is not None else None
        if frame:
            peeking.add(frame, _STATES[state], attempts, due_ns)
    cursor = peeking.cursor
    for _ in range(READ_COUNT_MAX):
        if len(peeking.found) >= peeking.count or cursor >= peeking.limit:
            break
        block = topic.block_at(cursor, READ_SIZE, wait=True)
        if block is None or not block.count or block.end <= cursor:
            break
        cursor = peeking.add_fresh(block, cursor)
    return peeking.found
