"""Daemons as nsqadmin's upstream sees them, without sockets: addresses, paths, answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.admin.upstream import UpstreamError, failure
from tests.unit.admin.test_sample import stats


class FakeUpstream:
    """Answers from dicts; what is not there refuses connections."""

    def __init__(self) -> None:
        self.nsqds: dict[str, dict[str, Any]] = {}  # address: path: answer
        self.lookupds: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.posted: list[tuple[str, str, dict[str, str]]] = []

    def add_nsqd(
        self, address: str, *topics: dict[str, Any], own: bool = True, **more: Any
    ) -> None:
        host, _, port = address.rpartition(":")
        info = {
            "version": "1.3.0",
            "broadcast_address": host,
            "hostname": f"{host}.local",
            "http_port": int(port),
            "tcp_port": int(port) - 1,
            **({"node_uuid": "u"} if own else {}),
        }
        self.nsqds[address] = {"/info": info, "/stats": stats(*topics, **more)}

    def add_lookupd(self, address: str, *nodes: str, topics: tuple[str, ...] = ()) -> None:
        """It knows the nsqds at ``nodes`` with their topics, and more topics without a node."""
        producers = []
        for node in nodes:
            known = self.nsqds.get(node, {"/info": {}, "/stats": stats()})
            names = [topic["topic_name"] for topic in known["/stats"]["topics"]]
            producers.append(
                known["/info"]
                | {
                    "remote_address": f"{node}0",
                    "topics": names,
                    "tombstones": [False] * len(names),
                }
            )
        everything = {name for producer in producers for name in producer["topics"]}
        self.lookupds[address] = {
            "/nodes": {"producers": producers},
            "/topics": {"topics": [*sorted(everything), *topics]},
            "/channels": {"channels": ["c"]},
        }

    async def nsqd_get(self, address: str, path: str, **query: str) -> Any:
        return self._answer(self.nsqds, address, path, query)

    async def lookupd_get(self, address: str, path: str, **query: str) -> Any:
        return self._answer(self.lookupds, address, path, query)

    async def nsqd_post(
        self, address: str, path: str, query: Mapping[str, str], body: bytes = b""
    ) -> None:
        self._post(self.nsqds, address, path, dict(query))

    async def lookupd_post(self, address: str, path: str, **query: str) -> None:
        self._post(self.lookupds, address, path, query)

    def _answer(
        self, daemons: dict[str, dict[str, Any]], address: str, path: str, query: dict[str, str]
    ) -> Any:
        self.asked.append((address, path, query))
        if address not in daemons:
            raise failure("GET", f"http://{address}{path}", "connection refused")
        answer = daemons[address].get(path)
        if answer is None:
            raise UpstreamError("got response 404 Not Found", 404)
        return answer

    def _post(
        self, daemons: dict[str, dict[str, Any]], address: str, path: str, query: dict[str, str]
    ) -> None:
        if address not in daemons:
            raise failure("POST", f"http://{address}{path}", "connection refused")
        self.posted.append((address, path, query))
