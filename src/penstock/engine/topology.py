"""Topology-aware consumption: consumers near this node are served first.

An experiment of NSQ, enabled by ``-enable-experiment=topology-aware-consumption``.  A consumer is
in this node's zone or region if its first IDENTIFY gave the same name; empty names are equal.

nsqd offers each message to any waiting local client.  Here the channel picks the nearest ready
consumer, so a farther one is served only while no nearer one has room.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.core.window import Consumer

EXPERIMENT = "topology-aware-consumption"

# Consumer.locality, and the order of the counters.
GLOBAL, REGION, ZONE = range(3)
LOCALITIES = ("global", "region", "zone")


class Place(Protocol):
    """The location of a node (its options) or of a client (its IDENTIFY)."""

    @property
    def topology_zone(self) -> str: ...
    @property
    def topology_region(self) -> str: ...


class Node(Place, Protocol):
    @property
    def enable_experiment(self) -> tuple[str, ...]: ...


def locality(node: Node, client: Place | None) -> int:
    """How near a client is; ``client`` is None if it gave no location."""
    if client is None or EXPERIMENT not in node.enable_experiment:
        return GLOBAL
    if client.topology_zone == node.topology_zone:
        return ZONE
    return REGION if client.topology_region == node.topology_region else GLOBAL


class NearestFirst:
    """The ready consumers of a channel, nearest first; it has the methods of a deque in use.

    ``len`` counts only the nearest ones: they share the waiting messages.
    """

    def __init__(self) -> None:
        self._queues: tuple[deque[Consumer], ...] = (deque(), deque(), deque())

    def __bool__(self) -> bool:
        return any(self._queues)

    def __len__(self) -> int:
        return len(self._nearest())

    def popleft(self) -> Consumer:
        return self._nearest().popleft()

    def _nearest(self) -> deque[Consumer]:
        far, region, zone = self._queues
        return zone or region or far

    def append(self, consumer: Consumer) -> None:
        self._queues[consumer.locality].append(consumer)

    def appendleft(self, consumer: Consumer) -> None:
        self._queues[consumer.locality].appendleft(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._queues[consumer.locality].remove(consumer)
