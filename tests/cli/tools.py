"""NSQ's tools as processes, for the tests that run them against real daemons."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.client import publish
from tests.support.daemon import Nsqd
from tests.support.waits import wait_until

PROGRAMS = Path(sys.executable).parent
RUN_SECONDS_MAX = 40.0  # for machines with other things to do


def source(nsqd: Nsqd) -> str:
    return f"--nsqd-tcp-address=127.0.0.1:{nsqd.tcp_port}"


def run_tool(
    program: str, *flags: str, stdin: bytes = b"", timeout_s: float = RUN_SECONDS_MAX
) -> subprocess.CompletedProcess[bytes]:
    """Run a tool to its end."""
    command = [str(PROGRAMS / program), *flags]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_s)


class Tool:
    """A tool that runs until it is told to stop; its output goes to files.

    ``stdin`` is an end of a pipe, or nothing can be read.
    """

    def __init__(
        self, folder: Path, program: str, *flags: str, stdin: int = subprocess.DEVNULL
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / f"{program}.out"
        self._errors = folder / f"{program}.err"
        with self._output.open("ab") as output, self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [str(PROGRAMS / program), *flags],
                stdin=stdin,
                stdout=output,
                stderr=errors,
            )

    @property
    def output(self) -> bytes:
        return self._output.read_bytes()

    @property
    def log(self) -> str:
        return self._errors.read_text()

    def until(self, fact: Callable[[], bool], timeout_s: float = RUN_SECONDS_MAX) -> None:
        wait_until(fact, timeout_s, lambda: self.log)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = RUN_SECONDS_MAX) -> int:
        return self.process.wait(timeout_s)

    def terminate(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(RUN_SECONDS_MAX)


def prepare(nsqd: Nsqd, topic: str, channel: str, *bodies: bytes) -> None:
    """A channel that has ``bodies``."""
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    assert nsqd.post(f"/channel/create?topic={topic}&channel={channel}").status == 200
    if bodies:
        publish(nsqd, topic, *bodies)


def finished(nsqd: Nsqd, topic: str, channel: str) -> bool:
    """Whether nothing is left to deliver, in flight or deferred."""
    state = nsqd.channel(topic, channel)
    return not (state["depth"] or state["in_flight_count"] or state["deferred_count"])
