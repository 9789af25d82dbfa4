"""The addresses of nodes: the only way from a node's name in a request to an address.

A request may name any host.  nsqadmin sends its token for nsqds with each request and returns the
response, so it connects only to known nodes: from the newest sample, from the nsqlookupds (queried
again, for a node that has just registered), or from --nsqd-http-address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.admin.cluster import Cluster
from penstock.net.http_message import HttpError

if TYPE_CHECKING:
    from penstock.admin.sampler import Sampler


class Addresses:
    """The nodes of one cluster by name."""

    def __init__(self, cluster: Cluster, sampler: Sampler) -> None:
        self._cluster = cluster
        self._sampler = sampler

    async def of(self, node: str) -> str:
        """The address of a known node.  Raises HttpError 404 if it is unknown."""
        part = (await self._sampler.first()).nodes.get(node)
        if part is not None:
            return part.address
        if node in self._cluster.nsqds():
            return node
        for producer in (await self._cluster.producers()).data:
            if producer.node == node:
                return producer.address
        raise HttpError(404, "NODE_NOT_FOUND")
