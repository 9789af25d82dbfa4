"""Frames, batches and logs for tests."""

from __future__ import annotations

import struct

from penstock.core import appender
from penstock.core.batches import ORIGINS
from penstock.storage.moved import encode_ordinals, origin_of
from penstock.storage.topic_log import TopicLog

NODE_ID = 7


def frame(
    index: int, body: bytes = b"body", timestamp_ns: int = 5, node_id: int = NODE_ID
) -> bytes:
    message_id = b"%016x" % (node_id << 54 | index)
    return struct.pack(">IIqH16s", 30 + len(body), 2, timestamp_ns, 1, message_id) + body


class Batch(appender.Batch):
    @property
    def bytes(self) -> bytes:
        """As in a file."""
        return self.header() + self.payload


def batch(
    first: int,
    count: int = 1,
    append_ns: int = 1000,
    body: bytes = b"body",
    slot: int = 0,
    ordinals: list[int] | None = None,
    node_id: int = NODE_ID,
) -> Batch:
    payload = b"".join(frame(first + i, body, node_id=node_id) for i in range(count))
    flags = 0
    if ordinals is not None:
        flags = ORIGINS
        payload += struct.pack(f">{count}I", *ordinals)
    return Batch(payload, first, count, append_ns, 5, slot, flags)


def moved_batch(first: int, instance: int, channel_id: int, indexes: list[int]) -> Batch:
    """A batch of messages that were moved from a channel."""
    payload = b"".join(frame(first + i, b"moved") for i in range(len(indexes)))
    payload += encode_ordinals(indexes)
    return Batch(
        payload, first, len(indexes), 1000, 5, *origin_of(instance, channel_id, indexes[0])
    )


def append(log: TopicLog, made: Batch) -> None:
    log.write(made)
    log.commit(made)


def append_many(log: TopicLog, count: int, per_batch: int = 1, **options: object) -> None:
    for _ in range(count):
        append(log, batch(log.end, per_batch, **options))  # type: ignore[arg-type]


def read_all(log: TopicLog, start: int = 0, size_max: int = 1 << 16) -> dict[int, bytes]:
    """Every frame by index, read in blocks as a consumer would."""
    found: dict[int, bytes] = {}
    index = start
    while True:
        block = log.read(index, size_max, True)
        assert block is not None
        if not block.span_count:
            return found
        assert block.end > index
        for at in range(max(index, block.first), block.end):
            one = block.frame(at)
            if one is not None:
                found[at] = one
        index = block.end
