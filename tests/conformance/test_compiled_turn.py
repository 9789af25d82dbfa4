"""R27, R28: plain messages pass through nsqd without a call of a Python function, in one order."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from penstock.cli.usage import usage
from tests.support.client import Client, publish
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

COUNT = 10_000
BODY = b"x" * 200


class ProfiledNsqd(Nsqd):
    """An nsqd that counts its calls of Python functions."""

    @property
    def counts_path(self) -> Path:
        return self.data_path.with_suffix(".json")

    def command(self) -> list[str]:
        _, *flags = super().command()
        module = "tests.conformance.profiled_nsqd"
        return [sys.executable, "-m", module, str(self.counts_path), *flags]

    def begin(self) -> None:
        self.signal(signal.SIGUSR1)
        time.sleep(0.3)

    def end(self) -> Counter[str]:
        self.signal(signal.SIGUSR2)
        wait_until(self.counts_path.exists)
        counts = Counter(json.loads(self.counts_path.read_text()))
        self.counts_path.unlink()
        return counts


def per_message(counts: Counter[str]) -> dict[str, int]:
    """Functions called more often than timers do in these seconds."""
    return {name: count for name, count in counts.items() if count > COUNT // 100}


def test_messages_call_no_python_function(tmp_path: Path) -> None:
    with (
        ProfiledNsqd(tmp_path / "data") as nsqd,
        Client.of(nsqd) as producer,
        Client.of(nsqd).sub("plain", "c", ready=100) as consumer,
    ):
        producer.pub("plain", BODY)
        consumer.finish_all(1)
        nsqd.begin()
        for _ in range(COUNT // 100):
            producer.pub("plain", *[BODY] * 50)
            producer.mpub("plain", [BODY] * 50)
        consumer.finish_all(COUNT)
        counts = nsqd.end()
        assert per_message(counts) == {}
        assert nsqd.channel("plain", "c")["depth"] == 0


def test_a_packet_of_publishes_is_answered_at_once(tmp_path: Path) -> None:
    """One write, and one send: all replies arrive together."""
    with Nsqd(tmp_path) as nsqd, nsqd.connect() as raw:
        publish(nsqd, "t", b"first")
        raw.send(b"PUB t\n\0\0\0\1x" * 1000)
        assert len(raw.sock.recv(1 << 20)) == 10_000


def test_busy_polling_serves_others_and_ends(tmp_path: Path) -> None:
    with Nsqd(tmp_path, "--busy-poll") as nsqd, Client.of(nsqd) as lone, Client.of(nsqd) as other:
        for _ in range(2000):
            lone.pub("t", BODY)
        assert nsqd.get("/ping").text == "OK"
        for _ in range(200):
            lone.pub("t", BODY)
            other.pub("t", BODY)
        assert nsqd.stats("&topic=t")["topics"][0]["message_count"] == 2400
        time.sleep(0.5)
        before = usage(nsqd.pid)
        time.sleep(1.0)
        after = usage(nsqd.pid)
        assert after.cpu_us - before.cpu_us < 200_000, "it sleeps while nobody sends"
