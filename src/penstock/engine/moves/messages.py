"""Reads buried messages back, to be moved."""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.core.batches import FRAME_SIZE_MIN
from penstock.core.block import Block
from penstock.engine.base import BaseTopic
from penstock.engine.channel import REDELIVERY_SIZE

_TIMESTAMP = struct.Struct(">8xq")

# (index in the source, body, timestamp)
Message = tuple[int, bytes, int]


class Reading(NamedTuple):
    """The messages of the first ``index_count`` indexes asked for; lost ones are missing.

    So are those that could not be read, which are ``unreadable``; the last reason is ``error``.
    """

    messages: list[Message]
    index_count: int
    unreadable: list[int]
    error: OSError | None


def read_messages(topic: BaseTopic, indexes: list[int], size_max: int) -> Reading:
    """Messages of ``indexes``, which ascend: at least one, and about ``size_max`` bytes.

    Blocking.
    """
    messages: list[Message] = []
    unreadable: list[int] = []
    failure: OSError | None = None
    size = count = 0
    block: Block | None = None
    for index in indexes:
        if size >= size_max:
            break
        count += 1
        # Buried messages are often neighbours.
        if block is None or not block.first <= index < block.end:
            try:
                block = topic.block_at(index, REDELIVERY_SIZE, wait=True)
            except OSError as error:  # a bad sector must not stop the others
                failure = error
                unreadable.append(index)
                continue
        frame = block.frame(index) if block is not None else None
        if frame:
            messages.append((index, frame[FRAME_SIZE_MIN:], _TIMESTAMP.unpack_from(frame)[0]))
            size += len(frame)
    return Reading(messages, count, unreadable, failure)
