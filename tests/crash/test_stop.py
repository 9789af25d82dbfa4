"""A stop saves everything, whatever clients and parts do on the way, and says when it could not."""

from __future__ import annotations

import errno
import http.client
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.admin.cluster import Nsqadmin
from tests.support.bodies import numbered
from tests.support.client import Client, publish
from tests.support.daemon import REPLY_SECONDS_MAX, Daemon, Nsqd, Nsqlookupd
from tests.support.faults import FaultyNsqd
from tests.support.waits import eventually


def consume(client: Client, count: int) -> None:
    for _ in range(count):
        client.fin(client.message())


@pytest.mark.parametrize("topic", ["fast#ephemeral", "plain"])
def test_a_consumer_of_an_ephemeral_topic_does_not_disturb_the_stop(
    tmp_path: Path, topic: str
) -> None:
    """The finishes of others came back, because nothing was saved."""
    with Nsqd(tmp_path / "nsqd") as nsqd:
        with Client.of(nsqd).sub("orders", "a", ready=2500) as consumer:
            other = Client.of(nsqd).sub(topic, "b#ephemeral", ready=1)
            publish(nsqd, "orders", *numbered(2000))
            publish(nsqd, topic, b"in flight")
            assert other.message().body == b"in flight"
            consume(consumer, 2000)
            consumer.settle()
            assert nsqd.terminate() == 0, nsqd.log
            other.close()
        assert "Traceback" not in nsqd.log and "unexpected" not in nsqd.log
        nsqd.start()
        assert nsqd.channel("orders", "a")["depth"] == 0


@pytest.mark.parametrize(
    "target",
    ["/topic/delete?topic=t", "/channel/delete?topic=t&channel=a", "/topic/create?topic=x"],
)
def test_what_is_asked_for_during_the_stop_is_done_or_refused(tmp_path: Path, target: str) -> None:
    with Nsqd(tmp_path / "nsqd") as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=a")
        # Its body keeps the connection open until the stop has begun.
        asking = http.client.HTTPConnection("127.0.0.1", nsqd.http_port, REPLY_SECONDS_MAX)
        asking.putrequest("POST", target)
        asking.putheader("Content-Length", "10")
        asking.endheaders(b"01234")
        with nsqd.connect() as slow:  # reads nothing, so the stop waits for it a while
            slow.send(b"SUB t a\nRDY 1\n")
            assert nsqd.get("/ping").status == 200
            nsqd.signal(signal.SIGTERM)
            nsqd.wait_for_log("NSQ: stopping")
            asking.send(b"56789")
            answer = asking.getresponse()
            assert (answer.status, answer.read()) == (503, b'{"message":"EXITING"}')
        assert nsqd.wait() == 0, nsqd.log
        assert "Traceback" not in nsqd.log
        nsqd.start()
        topics = {t["topic_name"]: t for t in nsqd.stats()["topics"]}
        assert set(topics) == {"t"}
        assert [c["channel_name"] for c in topics["t"]["channels"]] == ["a"]


@pytest.mark.parametrize("pattern", ["*/journal", "*/nsqd.dat"])
def test_a_stop_that_cannot_write_everything_ends_with_status_1(
    tmp_path: Path, pattern: str
) -> None:
    with FaultyNsqd(tmp_path / "nsqd") as nsqd:
        with Client.of(nsqd).sub("t", "a", ready=10) as consumer:
            publish(nsqd, "t", b"one")
            consumer.message()
            nsqd.fault(pattern, errno.EIO, "append", "sync", "write_new")
            assert nsqd.terminate() == 1
        assert "not everything could be written" in nsqd.log
        assert "Traceback" not in nsqd.log


def test_damage_that_was_read_just_before_the_stop_is_reported(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "nsqd") as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=a")
        publish(nsqd, "t", *numbered(25))
        publish(nsqd, "t", b"behind the damage")
        nsqd.restart()
        (segment,) = (tmp_path / "nsqd").glob("penstock/topics/t~*/*.log")
        data = bytearray(segment.read_bytes())
        data[200] ^= 1
        segment.write_bytes(data)
        with Client.of(nsqd).sub("t", "a", ready=100) as consumer:
            assert consumer.message().body == b"behind the damage"
            assert nsqd.terminate() == 0
        nsqd.start()
        records = nsqd.get("/damage").json["records"]
        assert [record["kind"] for record in records] == ["log"]
        assert records[0]["messages"] == 25
        assert list(segment.parent.glob("*.corrupt"))


def started(daemon: Daemon) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*daemon.command(), *daemon.options],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


ENDS = (signal.SIGINT, signal.SIGTERM)
SIGNALS = {"nsqd": (*ENDS, signal.SIGHUP), "nsqlookupd": (*ENDS, signal.SIGHUP), "nsqadmin": ENDS}


@pytest.mark.parametrize(
    ("program", "number"), [(program, n) for program, numbers in SIGNALS.items() for n in numbers]
)
def test_a_signal_during_the_start_neither_kills_nor_prints_a_traceback(
    tmp_path: Path, program: str, number: int
) -> None:
    """nsqadmin has nothing to read again: SIGHUP ends it as it ends NSQ's."""
    daemons: dict[str, Daemon] = {
        "nsqd": Nsqd(tmp_path),
        "nsqlookupd": Nsqlookupd(),
        "nsqadmin": Nsqadmin("--nsqd-http-address=127.0.0.1:1"),
    }
    daemon = daemons[program]
    for wait_ms in range(60, 360, 60):
        process = started(daemon)
        try:
            # From the moment on that it runs code of ours.
            assert eventually(partial(_catches, process.pid, signal.SIGTERM))
            time.sleep(wait_ms / 1000)
            process.send_signal(number)
            if number == signal.SIGHUP:
                assert process.stderr is not None
                assert any("HTTP: listening" in line for line in process.stderr)
                process.terminate()
            _, errors = process.communicate(timeout=REPLY_SECONDS_MAX)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors
        finally:
            process.kill()
            process.wait()


def _catches(pid: int, number: int) -> bool:
    """Whether a process handles a signal, by what the kernel shows."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
