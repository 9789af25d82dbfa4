"""Tools end in seconds, whatever an nsqd, a reader or a server they talk to does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.tools import PROGRAMS, Tool, prepare, source
from tests.support.bodies import numbered
from tests.support.client import publish
from tests.support.daemon import Nsqd
from tests.support.waits import eventually

# 2 s for an answer to CLS, 2 s for the other end to close; the rest is a busy machine's.
END_SECONDS_MAX = 12.0


@contextmanager
def stopped(nsqd: Nsqd) -> Iterator[None]:
    """nsqd hangs: its sockets take bytes, and nothing is answered."""
    nsqd.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        nsqd.signal(signal.SIGCONT)


def ends_in_time(tool: Tool) -> int:
    since_s = time.monotonic()
    tool.send(signal.SIGTERM)
    status = tool.wait(40)
    assert time.monotonic() - since_s < END_SECONDS_MAX, tool.log
    return status


CONSUMING: dict[str, Callable[[Path], list[str]]] = {
    "nsq_tail": lambda folder: ["--channel=c"],
    "nsq_to_file": lambda folder: [f"--output-dir={folder / 'out'}", "--channel=c"],
    "nsq_to_http": lambda folder: ["--post=http://127.0.0.1:1/", "--channel=c"],
    "nsq_to_nsq": lambda folder: ["--destination-nsqd-tcp-address=127.0.0.1:1", "--channel=c"],
}


@pytest.mark.parametrize("program", CONSUMING)
def test_a_tool_ends_although_nsqd_never_answers_cls(
    nsqd: Nsqd, tmp_path: Path, program: str
) -> None:
    prepare(nsqd, "t", "c")
    with Tool(tmp_path, program, "--topic=t", source(nsqd), *CONSUMING[program](tmp_path)) as tool:
        tool.until(lambda: nsqd.channel("t", "c")["client_count"] == 1)
        with stopped(nsqd):
            assert ends_in_time(tool) == 0


@pytest.mark.parametrize("program", [*CONSUMING, "to_nsq"])
def test_a_tool_ends_although_nsqd_never_answers_at_all(tmp_path: Path, program: str) -> None:
    """The listening socket takes the connection, and nobody reads what comes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"--nsqd-tcp-address=127.0.0.1:{listener.getsockname()[1]}"
        flags = CONSUMING[program](tmp_path) if program in CONSUMING else []
        reading, writing = os.pipe()
        with Tool(tmp_path, program, "--topic=t", address, *flags, stdin=reading) as tool:
            taken, _ = listener.accept()
            with taken:
                taken.settimeout(30)
                assert taken.recv(4) == b"  V2"
                assert ends_in_time(tool) == 0
        os.close(reading)
        os.close(writing)


def test_publishes_without_an_answer_end_with_status_1(nsqd: Nsqd, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with Tool(tmp_path, "to_nsq", "--topic=t", source(nsqd), stdin=reading) as tool:
        os.write(writing, b"one\n")
        tool.until(lambda: [t["message_count"] for t in nsqd.stats()["topics"]] == [1])
        with stopped(nsqd):
            os.write(writing, b"two\n")
            time.sleep(0.2)  # it is read and sent in a millisecond; nothing tells of it
            assert ends_in_time(tool) == 1
            assert "not acknowledged" in tool.log
    os.close(reading)
    os.close(writing)


def test_nsq_tail_ends_although_nobody_reads_its_output(nsqd: Nsqd) -> None:
    """What was not printed is handed back at once."""
    prepare(nsqd, "t", "c", *(b"%d" % n + b"x" * 5000 for n in range(200)))
    command = [str(PROGRAMS / "nsq_tail"), "--topic=t", "--channel=c", source(nsqd)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert eventually(lambda: nsqd.channel("t", "c")["in_flight_count"] > 0)
        since_s = time.monotonic()
        process.terminate()
        assert process.wait(40) == 1
        assert time.monotonic() - since_s < END_SECONDS_MAX
        assert process.stderr is not None
        assert b"nothing reads it" in process.stderr.read()
    finally:
        process.kill()
        process.communicate(timeout=10)
    assert eventually(lambda: nsqd.channel("t", "c")["in_flight_count"] == 0)


def test_a_second_signal_ends_a_tool_at_once(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", "c", *numbered(3))
    with socket.create_server(("127.0.0.1", 0)) as slow:
        post = f"--post=http://127.0.0.1:{slow.getsockname()[1]}/"
        with Tool(tmp_path, "nsq_to_http", "--topic=t", "--channel=c", source(nsqd), post) as tool:
            taken, _ = slow.accept()
            tool.send(signal.SIGTERM)
            tool.send(signal.SIGTERM)  # the same one: `timeout` signals process and group
            time.sleep(0.7)
            assert tool.process.poll() is None, "the request in flight is waited for"
            tool.send(signal.SIGTERM)
            assert tool.wait(5) == 128 + signal.SIGTERM
            taken.close()
    publish(nsqd, "t", b"nsqd goes on")
