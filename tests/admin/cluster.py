"""A cluster for the pages: three nsqds, a nsqlookupd, and a nsqadmin that looks often."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, Nsqd, Nsqlookupd, Raw
from tests.support.waits import wait_for

WAIT_SECONDS_MAX = 15.0
SAMPLE_INTERVAL = "1s"


class Nsqadmin(Daemon):
    """One nsqadmin, which has an HTTP port only."""

    program = "nsqadmin"

    def __init__(self, *options: str) -> None:
        super().__init__(f"--sample-interval={SAMPLE_INTERVAL}", *options)

    def command(self) -> list[str]:
        program, _, http = super().command()
        return [program, http]

    def _listening_port(self, kind: str) -> int:
        return 0 if kind == "TCP" else super()._listening_port(kind)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def view(self, path: str = "") -> Any:
        """The JSON twin of a page."""
        reply = self.get(f"/api/view{path}")
        assert reply.status == 200, reply
        return reply.json


class Cluster:
    """Everything together, with some traffic behind it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._stack = ExitStack()
        self.lookupd = Nsqlookupd()
        self.nsqds: list[Nsqd] = []
        self.admin = Nsqadmin(*options)
        self._folder = folder

    def __enter__(self) -> Cluster:
        self._stack.__enter__()
        try:
            self._stack.enter_context(self.lookupd)
            for number in range(3):
                nsqd = Nsqd(
                    self._folder / f"nsqd-{number}",
                    f"--lookupd-tcp-address={self.lookupd.tcp_address}",
                    "--broadcast-address=127.0.0.1",
                    "--e2e-processing-latency-percentile=0.5,0.99",
                )
                self.nsqds.append(self._stack.enter_context(nsqd))
            address = self.lookupd.http_address
            self.admin.options = (*self.admin.options, f"--lookupd-http-address={address}")
            self._stack.enter_context(self.admin)
            wait_for(lambda: self.admin.view("/nodes")["nodes"], lambda nodes: len(nodes) == 3)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def node(self, number: int) -> str:
        """The name of a node in paths."""
        return f"127.0.0.1:{self.nsqds[number].http_port}"

    def running(self) -> list[Nsqd]:
        return [nsqd for nsqd in self.nsqds if nsqd.running]

    def publish(self, topic: str, body: bytes, number: int = 0, query: str = "") -> None:
        reply = self.nsqds[number].post(f"/pub?topic={topic}{query}", body)
        assert reply.status == 200, reply

    def create(self, topic: str, *channels: str, on: tuple[int, ...] = (0, 1, 2)) -> None:
        """A topic with channels, straight on the nodes."""
        name = topic.replace("#", "%23")
        for number in on:
            assert self.nsqds[number].post(f"/topic/create?topic={name}").status == 200
            for channel in channels:
                query = f"topic={name}&channel={channel.replace('#', '%23')}"
                assert self.nsqds[number].post(f"/channel/create?{query}").status == 200

    def topics(self) -> dict[str, list[Any]]:
        """Every topic as the running nsqds' /stats have it, a list of one for each."""
        found: dict[str, list[Any]] = {}
        for nsqd in self.running():
            for topic in nsqd.stats()["topics"]:
                found.setdefault(topic["topic_name"], []).append(topic)
        return found

    def channels(self, topic: str, channel: str) -> list[Any]:
        parts = self.topics().get(topic, [])
        return [c for t in parts for c in t["channels"] if c["channel_name"] == channel]

    def settled(self) -> None:
        """Wait for a sample that was begun after now."""
        first = self.admin.view("/counter")["sample"]["number"]
        wait_for(lambda: self.admin.view("/counter")["sample"]["number"], lambda n: n > first + 1)

    @contextmanager
    def consumer(
        self, topic: str, channel: str, number: int = 0, ready: int = 1, **identify: object
    ) -> Iterator[Raw]:
        """A client that takes messages and keeps them in flight."""
        with self.nsqds[number].connect() as raw:
            text = json.dumps(identify).encode()
            raw.command(b"IDENTIFY\n" + len(text).to_bytes(4, "big") + text)
            raw.command(f"SUB {topic} {channel}\n".encode())
            raw.send(f"RDY {ready}\n".encode())
            yield raw
