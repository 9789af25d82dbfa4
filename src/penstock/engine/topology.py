"""Topology-aware consumption: consumers near this node are served first.

An experiment of NSQ's, on with ``-enable-experiment=topology-aware-consumption``.  A consumer is
of this node's zone or region if its first IDENTIFY said so; two empty names count as equal.

nsqd offers each message to whichever local client happens to wait.  Here the channel takes the
nearest ready consumer, so a farther one is served only while no nearer one has room.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.core.window import Consumer

EXPERIMENT = "topology-aware-consumption"

# Consumer.locality; the order of the counters, too.
GLOBAL, REGION, ZONE = range(3)
LOCALITIES = ("global", "region", "zone")


class Place(Protocol):
    """Where something stands: the options of a node, or what a client said in IDENTIFY."""

    @property
    def topology_zone(self) -> str: ...
    @property
    def topology_region(self) -> str: ...


class Node(Place, Protocol):
    @property
    def enable_experiment(self) -> tuple[str, ...]: ...


def locality(node: Node, client: Place | None) -> int:
    """How near a client is; None: it never said where it stands."""
    if client is None or EXPERIMENT not in node.enable_experiment:
        return GLOBAL
    if client.topology_zone == node.topology_zone:
        return ZONE
    return REGION if client.topology_region == node.topology_region else GLOBAL


class NearestFirst:
    """The ready consumers of a channel, nearest first; of the channel's deque it has what is used.

    ``len`` counts the nearest alone: it is they who share what waits.
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
