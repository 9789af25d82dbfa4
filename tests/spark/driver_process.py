"""A driver process of Spark and all that belongs to it: the JVM, Python's daemons and workers.

They are one session of the system (`setsid`), though not one process group: pyspark.daemon makes
a group of its own.  So what is to be killed is found by its session.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

KILL_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class Member:
    """A process that belongs to a driver."""

    pid: int
    parent: int
    session: int
    command: str

    @property
    def runs_tasks(self) -> bool:
        """It is a worker of an executor, or the daemon that forks them."""
        return self.command.rstrip().endswith(".daemon pyspark.worker")

    @property
    def plans(self) -> bool:
        """It runs a source's code for a stream: offsets, partitions, commits."""
        return self.command.rstrip().endswith("python_streaming_source_runner")


def living() -> list[Member]:
    """All processes there are."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # The name in parentheses may hold anything, spaces too.
            state, parent, _, sid = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if state not in "ZX":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(Member(int(folder.name), int(parent), int(sid), command))
    return found


def members_of(session: int) -> list[Member]:
    """All processes of a session that live."""
    return [member for member in living() if member.session == session]


def send(number: int, members: Sequence[Member]) -> None:
    for member in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, number)


def kill(members: Sequence[Member]) -> None:
    send(signal.SIGKILL, members)


class Driver:
    """A module of the tests that runs Spark, as a process of its own."""

    own_session = True

    def __init__(self, module: str) -> None:
        self.module = module
        self.events: list[dict[str, Any]] = []
        self.log: list[str] = []
        self._news = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def start(self, *arguments: str) -> Self:
        assert self._process is None, "already running"
        self.events = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=self.own_session,
        )
        self._readers = [
            threading.Thread(target=self._read_events, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_log, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    def members(self) -> list[Member]:
        """All of its processes that live."""
        return members_of(self.pid)

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and every Python worker."""
        process = self._process
        assert process is not None
        give_up_s = time.monotonic() + KILL_SECONDS_MAX
        while members := self.members():
            kill(members)
            assert time.monotonic() < give_up_s, members
            time.sleep(0.01)
        process.wait(KILL_SECONDS_MAX)
        self._forget()

    def pause(self) -> None:
        """Stop all of it, as it is, until ``resume``."""
        send(signal.SIGSTOP, self.members())

    def resume(self) -> None:
        send(signal.SIGCONT, self.members())

    def kill_workers(self) -> int:
        """SIGKILL to the Python workers that run tasks; return how many they were."""
        members = [member for member in self.members() if member.runs_tasks]
        daemons = {member.pid for member in members}
        workers = [member for member in members if member.parent in daemons]
        kill(workers)
        return len(workers)

    def kill_planners(self) -> int:
        """SIGKILL to the Python processes that plan streams; return how many they were."""
        planners = [member for member in self.members() if member.plans]
        kill(planners)
        return len(planners)

    def finish(self, timeout_s: float) -> None:
        """Let it come to its end."""
        process = self._process
        assert process is not None and process.stdin is not None
        process.stdin.write("finish\n")
        process.stdin.flush()
        status = process.wait(timeout_s)
        self._forget()
        assert status == 0, self.told

    def wait_for(self, event: str, timeout_s: float) -> dict[str, Any]:
        """The first event of that name, or the failure of the test with what was logged."""
        give_up_s = time.monotonic() + timeout_s
        with self._news:
            while True:
                for told in self.events:
                    if told["event"] == event:
                        return told
                assert self._process is not None and self._process.poll() is None, self.told
                left_s = give_up_s - time.monotonic()
                assert left_s > 0, f"not {event} after {timeout_s} s\n{self.told}"
                self._news.wait(min(left_s, 0.5))

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Queries that ended by themselves in this life of the driver."""
        return [told for told in self.events if told["event"] == "failed"]

    @property
    def told(self) -> str:
        return "\n".join([*map(json.dumps, self.events), *self.log[-100:]])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()

    def _forget(self) -> None:
        for reader in self._readers:
            reader.join(KILL_SECONDS_MAX)
        process, self._process = self._process, None
        assert process is not None
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _read_events(self, lines: Any) -> None:
        for line in lines:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()

    def _read_log(self, lines: Any) -> None:
        for line in lines:
            self.log.append(line.rstrip("\n"))
            del self.log[:-1000]
