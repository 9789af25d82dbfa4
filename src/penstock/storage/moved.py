# Where the messages of a moved batch came from (R25).
#
#     origin   i64: 1 << 63 | index >> 32 (22 bits) | instance ^ channel id >> 16 (the low 41 bits)
#     channel  u16: the low 16 bits of the channel's id
#     ordinals u32 each: the low 32 bits of each message's index in the source
#
# A version that does not know moves takes such a batch for one of deferred messages, from a slot
# that does not exist: it finds the frames, and ignores the origins.  So the fields have to fit into
# those of deferred messages.  What is cut off an instance is random, and the channels of one topic
# are always distinct.
#
# Rule 1: all messages of a batch are from one channel, and their indexes have the same high bits.
# Rule 2: an index is finished at its source for good, so an origin may be applied at any time, and
#         again.

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.batches import MOVED, ORIGINS

ORDINAL_BITS = 32
_ORDINAL_MASK = (1 << ORDINAL_BITS) - 1
_ROUTE_BITS = 41
_ROUTE_MASK = (1 << _ROUTE_BITS) - 1
_HIGH_MASK = (1 << 22) - 1
_SIGN = 1 << 63


class Origin(NamedTuple):
    """The fields of a batch that say where its messages came from."""

    origin: int
    flags: int


def route_of(instance: int, channel_id: int) -> int:
    """What identifies a channel as the source of moved messages."""
    return ((instance ^ channel_id >> 16) & _ROUTE_MASK) << 16 | channel_id & 0xFFFF


def origin_of(instance: int, channel_id: int, index: int) -> Origin:
    """The origin of a batch with messages whose indexes have the same high bits as ``index``."""
    route = route_of(instance, channel_id)
    bits = (index >> ORDINAL_BITS) << _ROUTE_BITS | route >> 16
    return Origin(bits - _SIGN, ORIGINS | MOVED | (route & 0xFFFF) << 16)


def route_from(origin: int, flags: int) -> int:
    """The route in the fields of a batch."""
    return (origin & _ROUTE_MASK) << 16 | flags >> 16


def indexes_from(origin: int, ordinals: list[int]) -> list[int]:
    """The indexes of a batch's messages in the source."""
    high = (origin >> _ROUTE_BITS & _HIGH_MASK) << ORDINAL_BITS
    return [high | ordinal for ordinal in ordinals]


def encode_ordinals(indexes: list[int]) -> bytes:
    return b"".join([(index & _ORDINAL_MASK).to_bytes(4, "big") for index in indexes])


@dataclass(slots=True)
class Arrivals:
    """Messages that a log got by moves, by where they came from."""

    by_route: dict[int, array[int]] = field(default_factory=dict)
    first: int = 0  # of the first such batch; 0: there is none

    def add(self, first: int, origin: int, flags: int, ordinals: list[int]) -> None:
        """Add a batch."""
        indexes = self.by_route.setdefault(route_from(origin, flags), array("Q"))
        indexes.extend(indexes_from(origin, ordinals))
        self.first = min(self.first, first) if self.first else first

    def update(self, other: Arrivals) -> None:
        for route, indexes in other.by_route.items():
            self.by_route.setdefault(route, array("Q")).extend(indexes)
        if other.first:
            self.first = min(self.first, other.first) if self.first else other.first
