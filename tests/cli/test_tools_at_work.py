"""All tools at once, at work: signals, an nsqd that is killed, an nsqlookupd that is not there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.tools import Tool, finished, prepare
from tests.support.bodies import numbered
from tests.support.client import publish
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import eventually

# Small waits: what is tested is that a tool goes on, not how long it hesitates.
FAST = (
    "--consumer-opt=lookupd_poll_interval,100ms",
    "--consumer-opt=max_reconnect_delay,200ms",
    "--consumer-opt=default_requeue_delay,10ms",
    "--consumer-opt=backoff_multiplier,5ms",
)
# Each consumes from a channel of its own name.
CONSUMING = ("nsq_tail", "nsq_to_file", "nsq_to_http", "nsq_to_nsq")
SENT = ("by_http", "by_nsq")  # the topics at the other nsqd


class Bench:
    """Where the tools work: a topic at ``nsqd``, and ``other`` to send its messages to."""

    def __init__(self, path: Path, nsqd: Nsqd, other: Nsqd, stack: ExitStack) -> None:
        self.path = path
        self.nsqd = nsqd
        self.other = other
        self._stack = stack
        self.stdin = -1

    def prepare(self) -> None:
        for channel in CONSUMING:
            prepare(self.nsqd, "t", channel)
        for topic in SENT:
            prepare(self.other, topic, "c")

    def start(self, program: str, source: str) -> Tool:
        flags = {
            "nsq_tail": (),
            "nsq_to_file": (f"--output-dir={self.path / 'out'}", "--sync-interval=50ms"),
            "nsq_to_http": (f"--post=http://127.0.0.1:{self.other.http_port}/pub?topic=by_http",),
            "nsq_to_nsq": (
                "--destination-topic=by_nsq",
                f"--destination-nsqd-tcp-address=127.0.0.1:{self.other.tcp_port}",
            ),
        }[program]
        common = ("--topic=t", f"--channel={program}", source, *FAST)
        return self._stack.enter_context(Tool(self.path, program, *common, *flags))

    def start_consuming(self, source: str) -> dict[str, Tool]:
        return {program: self.start(program, source) for program in CONSUMING}

    def start_stat(self) -> Tool:
        address = f"--nsqd-http-address=127.0.0.1:{self.nsqd.http_port}"
        flags = ("--topic=t", "--channel=nsq_tail", "--interval=50ms")
        return self._stack.enter_context(Tool(self.path, "nsq_stat", address, *flags))

    def start_to_nsq(self) -> Tool:
        """Its standard input stays open."""
        reading, self.stdin = os.pipe()
        self._stack.callback(os.close, self.stdin)
        address = f"--nsqd-tcp-address=127.0.0.1:{self.nsqd.tcp_port}"
        flags = ("--topic=t", address, "--producer-opt=max_reconnect_delay,200ms")
        try:
            return self._stack.enter_context(Tool(self.path, "to_nsq", *flags, stdin=reading))
        finally:
            os.close(reading)

    def written(self) -> set[bytes]:
        """The lines of nsq_to_file."""
        files = sorted((self.path / "out").glob("*"))
        return {line for file in files for line in file.read_bytes().splitlines()}

    def all_have(self, count: int) -> Callable[[], bool]:
        """Whether every tool has passed on the first ``count`` messages, and finished them."""
        wanted = set(numbered(count))

        def reached() -> bool:
            printed = set((self.path / "nsq_tail.out").read_bytes().splitlines())
            sent = [self.other.channel(topic, "c")["message_count"] for topic in SENT]
            passed_on = wanted <= printed and wanted <= self.written() and min(sent) >= count
            return passed_on and all(finished(self.nsqd, "t", program) for program in CONSUMING)

        return reached


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Nsqd(tmp_path / "nsqd") as nsqd, Nsqd(tmp_path / "other") as other, ExitStack() as stack:
        found = Bench(tmp_path, nsqd, other, stack)
        found.prepare()
        yield found


def direct(nsqd: Nsqd) -> str:
    return f"--nsqd-tcp-address=127.0.0.1:{nsqd.tcp_port}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_every_tool_in_peace(bench: Bench, number: signal.Signals) -> None:
    """Only nsq_to_file goes on after SIGHUP, with its file opened anew."""
    tools = bench.start_consuming(direct(bench.nsqd))
    tools["nsq_stat"], tools["to_nsq"] = bench.start_stat(), bench.start_to_nsq()
    os.write(bench.stdin, b"0\n1\n2\nunfinished line")
    tail = tools["nsq_tail"]
    tail.until(bench.all_have(3))
    tools["nsq_stat"].until(lambda: b"ingress" in tools["nsq_stat"].output)
    for tool in tools.values():
        tool.send(number)
    if number == signal.SIGHUP:
        writing = tools["nsq_to_file"]
        writing.until(lambda: "closing the file" in writing.log)
        publish(bench.nsqd, "t", b"after")
        writing.until(lambda: b"after" in bench.written())
        writing.send(signal.SIGTERM)
    for program, tool in tools.items():
        assert tool.wait() == 0, (program, tool.log)
        assert "Traceback" not in tool.log, (program, tool.log)
    for program in CONSUMING:
        assert bench.nsqd.channel("t", program)["in_flight_count"] == 0


def test_an_nsqd_that_is_killed_is_waited_for(bench: Bench) -> None:
    tools = bench.start_consuming(direct(bench.nsqd))
    stat, feeding = bench.start_stat(), bench.start_to_nsq()
    os.write(bench.stdin, b"0\n1\n")
    feeding.until(bench.all_have(2))
    stat.until(lambda: b"ingress" in stat.output)
    bench.nsqd.kill()
    os.write(bench.stdin, b"2\n3\n")
    # Half the truth would be worse than none.
    assert stat.wait() == 1
    assert "ERROR: failed to get nsqd stats" in stat.log
    bench.nsqd.start()
    feeding.until(bench.all_have(4))
    for program, tool in {**tools, "to_nsq": feeding}.items():
        assert tool.terminate() == 0, (program, tool.log)
        assert "Traceback" not in tool.log, (program, tool.log)


def test_an_nsqlookupd_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    lookupd = Nsqlookupd()
    with (
        lookupd,
        Nsqd(
            tmp_path / "nsqd",
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
        ) as nsqd,
        Nsqd(tmp_path / "other") as other,
        ExitStack() as stack,
    ):
        bench = Bench(tmp_path, nsqd, other, stack)
        bench.prepare()
        publish(nsqd, "t", *numbered(3))
        lookupd.kill()
        tools = bench.start_consuming(f"--lookupd-http-address={lookupd.http_address}")
        for tool in tools.values():
            tool.until(lambda tool=tool: "refused" in tool.log)
        lookupd.start()
        tools["nsq_tail"].until(bench.all_have(3))
        # And one that goes away changes nothing for those who are connected.
        lookupd.kill()
        publish(nsqd, "t", b"3")
        tools["nsq_tail"].until(bench.all_have(4))
        for program, tool in tools.items():
            assert tool.terminate() == 0, (program, tool.log)
            assert "Traceback" not in tool.log, (program, tool.log)
        assert eventually(lambda: finished(nsqd, "t", "nsq_tail"))
        lookupd.start()
