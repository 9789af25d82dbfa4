"""Frames and blocks for tests, built byte by byte so that they do not depend on the core."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.block import Block
from penstock.wire.ids import message_id, split_id

NODE_ID = 5
BATCH_HEADER = b"a batch header is not a frame"


class Sent(NamedTuple):
    """The contents of one frame."""

    index: int
    attempts: int
    timestamp_ns: int
    body: bytes
    node_id: int


def body_of(index: int) -> bytes:
    """Bodies of different sizes, so that a wrong offset is noticed."""
    return b"%d:" % index + b"." * (index % 7)


def timestamp_of(index: int) -> int:
    return 1_700_000_000_000_000_000 + index


def frame(
    index: int,
    body: bytes | None = None,
    *,
    node_id: int = NODE_ID,
    attempts: int = 1,
    timestamp_ns: int | None = None,
) -> bytes:
    body = body_of(index) if body is None else body
    stamp = timestamp_of(index) if timestamp_ns is None else timestamp_ns
    head = struct.pack(">IIqH", 30 + len(body), 2, stamp, attempts)
    return head + message_id(node_id, index) + body


def runs_of(indexes: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending indexes as contiguous (start, end)."""
    runs: list[tuple[int, int]] = []
    for index in indexes:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def block_of(indexes: Iterable[int], *, body: bytes | None = None, node_id: int = NODE_ID) -> Block:
    """A block as a log returns it: one span for each run, batch headers between them."""
    data = bytearray()
    spans = []
    for first, end in runs_of(indexes):
        data += BATCH_HEADER
        start = len(data)
        for index in range(first, end):
            data += frame(index, body, node_id=node_id)
        spans.append((first, end - first, start, len(data)))
    return Block(bytes(data), spans, node_id)


def read_frames(data: bytes | memoryview) -> list[Sent]:
    """Parse frames; every byte must belong to one."""
    data = bytes(data)
    found = []
    at = 0
    while at < len(data):
        size, kind, stamp, attempts = struct.unpack_from(">IIqH", data, at)
        assert kind == 2 and at + 4 + size <= len(data)
        split = split_id(data[at + 18 : at + 34])
        assert split is not None
        node_id, index = split
        found.append(Sent(index, attempts, stamp, data[at + 34 : at + 4 + size], node_id))
        at += 4 + size
    return found


def read_runs(runs: bytes) -> list[tuple[int, int]]:
    """The runs of drain() and snapshot()."""
    return list(struct.iter_unpack(">QQ", runs))


def read_marks(marks: bytes) -> dict[int, tuple[int, int]]:
    """The marks of drain() and snapshot(): index -> (attempts, due_ns)."""
    return {index: (attempts, due) for index, attempts, due in struct.iter_unpack(">QHq", marks)}
