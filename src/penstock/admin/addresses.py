"""Where a node is asked: the only way from a name in a request to an address.

A request may name any host.  nsqadmin sends its token for the nsqds with what it asks, and returns
what was answered, so it asks only nodes that are known: from the newest sample, from the
nsqlookupds (asked afresh, for a node that registered a moment ago), or from --nsqd-http-address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.admin.cluster import Cluster
from penstock.net.http_message import HttpError

if TYPE_CHECKING:
    from penstock.admin.sampler import Sampler


class Addresses:
    """Knows the nodes of one cluster."""

    def __init__(self, cluster: Cluster, sampler: Sampler) -> None:
        self._cluster = cluster
        self._sampler = sampler

    async def of(self, node: str) -> str:
        """The address of a known node.  HttpError 404 if nobody knows it."""
        part = (await self._sampler.first()).nodes.get(node)
        if part is not None:
            return part.address
        if node in self._cluster.nsqds():
            return node
        for producer in (await self._cluster.producers()).data:
            if producer.node == node:
                return producer.address
        raise HttpError(404, "NODE_NOT_FOUND")
