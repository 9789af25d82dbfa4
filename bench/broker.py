"""A broker under test: ours, ours with another scan, or Go's, each a real process on loopback."""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.certificates import Pki
from tests.support.daemon import Nsqd

from penstock.cli.load_workers import Connection, Task
from penstock.cli.measurement import Report, measure
from penstock.cli.usage import Usage, settle, usage

# Replaced by the flags of a certificate that is created for the run.
CERTIFICATE = "{certificate}"


@dataclass(frozen=True)
class Make:
    """A program and its common flags."""

    name: str
    program: str
    flags: tuple[str, ...] = ()


class Broker(Nsqd):
    """A broker of ``make`` on ``data_path``."""

    def __init__(self, make: Make, data_path: Path, *flags: str) -> None:
        if CERTIFICATE in flags:
            flags = (*(f for f in flags if f != CERTIFICATE), *Pki(data_path / "pki").options())
        super().__init__(data_path, *make.flags, *flags)
        self.make = make
        # An absolute path overrides Nsqd's folder.
        self.program = make.program

    def task(self, kind: str, topic: str = "bench", **parts: object) -> Task:
        return Task(kind, "127.0.0.1", self.tcp_port, topic, "bench", **parts)  # type: ignore[arg-type]

    def load(self, *tasks: Task) -> Report:
        return measure(list(tasks), pid=self.pid)

    def connect_client(self, **fields: object) -> Connection:
        return Connection("127.0.0.1", self.tcp_port, **fields)

    def usage(self) -> Usage:
        return usage(self.pid)

    def settle(self) -> Usage:
        return settle(self.pid)

    def create(self, topic: str, *channels: str) -> None:
        """Create a topic and its channels, over one HTTP connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, 60)
        targets = [f"/topic/create?topic={topic}"]
        targets += [f"/channel/create?topic={topic}&channel={channel}" for channel in channels]
        for target in targets:
            connection.request("POST", target)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"POST {target}: {answer.status}")
        connection.close()

    def fill(self, count: int, topic: str = "bench", size: int = 200) -> Report:
        """Leave ``count`` messages in the channel ``bench`` of ``topic``."""
        batch = max(1, min(200, 1_000_000 // size))
        report = self.load(
            self.task("pub", topic, size=size, batch=batch, window=4, messages=count)
        )
        self.wait_for_depth(count, topic)
        return report

    def wait_for_depth(self, count: int, topic: str = "bench", seconds_max: float = 60) -> None:
        """Wait until the channel has ``count`` messages: Go's topics pass them on gradually."""
        give_up_s = time.monotonic() + seconds_max
        while self.channel(topic, "bench")["depth"] < count:
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"{self.make.name}: topic={topic} has not {count} messages")
            time.sleep(0.1)

    def unfinished(self, topic: str = "bench") -> int:
        """The number of messages in the channel, waiting or in flight."""
        channel = self.channel(topic, "bench")
        return int(channel["depth"]) + int(channel["in_flight_count"])

    def empty(self, topic: str) -> None:
        reply = self.post(f"/channel/empty?topic={topic}&channel=bench")
        if reply.status != 200:
            raise RuntimeError(f"channel/empty: {reply.status} {reply.text}")

    def wait_for_scan(self) -> None:
        """Wait for a sampling scan, which finds new channels every 5 s; that is not measured."""
        if self.make.name != "penstock":
            time.sleep(5.5)

    def stored_size(self, pattern: str = "**/*") -> int:
        """Bytes in the files of the data path that match ``pattern``."""
        return sum(p.stat().st_size for p in self.data_path.glob(pattern) if p.is_file())
