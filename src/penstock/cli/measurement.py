"""Runs the workers of the load generator, one process each, and sums their results.

spawn -> each worker connects -> all ready -> start -> results (or the first error ends the run)
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.sharedctypes import RawArray
from typing import Any

from penstock.cli.load_workers import KINDS, SILENCE_SECONDS_MAX, Board, Histogram, Task
from penstock.cli.usage import Usage, settle, usage
from penstock.errors import LoadError, ProtocolError

START_SECONDS_MAX = 30.0
TICK_SECONDS = 0.2
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


@dataclass
class Flow:
    """The totals of all publishers or all subscribers of a run."""

    messages: int = 0
    size: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds if self.seconds > 0 else 0.0


@dataclass
class Report:
    """The result of a run."""

    server: dict[str, Any] = field(default_factory=dict)
    published: Flow = field(default_factory=Flow)
    consumed: Flow = field(default_factory=Flow)
    latency: Histogram = field(default_factory=Histogram)
    before: Usage | None = None
    after: Usage | None = None
    interrupted: bool = False

    @property
    def cpu_us_per_message(self) -> float:
        """The server's CPU time per message published, consumed, or both."""
        count = max(self.published.messages, self.consumed.messages)
        if self.before is None or self.after is None or not count:
            return 0.0
        return (self.after.cpu_us - self.before.cpu_us) / count

    def as_json(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"server_version": self.server.get("version", "")}
        for name, flow in (("published", self.published), ("consumed", self.consumed)):
            if flow.messages:
                parts[name] = {**asdict(flow), "messages_per_second": flow.per_second}
        if self.latency.count:
            parts["latency_ms"] = {
                name: self.latency.percentile(percent) / 1e6
                for name, percent in PERCENTILES.items()
            }
        if self.before is not None and self.after is not None:
            parts["server_cpu_us_per_message"] = self.cpu_us_per_message
            parts["server_rss_size"] = [self.before.rss_size, self.after.rss_size]
        return parts


# Called a few times per second with the totals published and consumed so far.
Show = Callable[[Flow, Flow], None]


def measure(tasks: list[Task], *, pid: int = 0, progress: Show | None = None) -> Report:
    """Run ``tasks`` concurrently, each in its own process, and return the result.

    With ``pid`` the server's CPU time is read before the start and after the server is idle.
    Raises ``LoadError``.
    """
    crew = Crew(tasks)
    report = Report()
    try:
        report.server = crew.connect()
        report.before = usage(pid) if pid else None
        crew.start()
        report.interrupted = crew.follow(report, progress)
        report.after = settle(pid) if pid else None
    except ProcessLookupError as error:
        raise LoadError(str(error)) from error
    finally:
        crew.end()
    return report


class Crew:
    """The workers' processes and the pipes to them."""

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks
        self.subscribers = tuple(n for n, task in enumerate(tasks) if task.kind == "sub")
        self.publishers = tuple(n for n, task in enumerate(tasks) if task.kind != "sub")
        context = get_context("spawn")
        self.cells = RawArray("q", Board.cell_count(len(tasks)))
        self.board = Board(self.cells, self.subscribers)
        self.board.expect(self.expected_at_start())
        self.pipes: list[Pipe] = []
        self.processes = []
        for number, task in enumerate(tasks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work, args=(task, self.cells, self.subscribers, number, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def expected_at_start(self) -> int:
        total = sum(self.tasks[n].messages for n in self.subscribers)
        return total if total and not self.publishers else -1

    def connect(self) -> dict[str, Any]:
        servers = [self.receive(pipe, START_SECONDS_MAX) for pipe in self.pipes]
        return dict(servers[0])

    def start(self) -> None:
        for pipe in self.pipes:
            pipe.send("start")

    def follow(self, report: Report, progress: Show | None) -> bool:
        """Collect the results; True if the run was interrupted by Ctrl-C."""
        waiting = set(self.pipes)
        done: set[int] = set()
        interrupted = False
        while waiting:
            try:
                for pipe in wait(list(waiting), TICK_SECONDS):
                    assert isinstance(pipe, Pipe)
                    buckets = self.receive(pipe, 0)
                    report.latency.merge(Histogram(buckets))
                    waiting.discard(pipe)
                    done.add(self.pipes.index(pipe))
                self.expect_published(done)
            except KeyboardInterrupt:
                interrupted = True
                self.board.stop()
            report.published = self.flow(self.publishers)
            report.consumed = self.flow(self.subscribers)
            if progress is not None:
                progress(report.published, report.consumed)
        return interrupted

    def expect_published(self, done: set[int]) -> None:
        """When everything is published, subscribers wait for that many messages."""
        if self.publishers and self.subscribers and done.issuperset(self.publishers):
            self.board.expect(self.flow(self.publishers).messages)

    def flow(self, workers: tuple[int, ...]) -> Flow:
        rows = [row for row in map(self.board.row, workers) if row[0]]
        if not rows:
            return Flow()
        first_ns, last_ns = min(row[2] for row in rows), max(row[3] for row in rows)
        return Flow(sum(r[0] for r in rows), sum(r[1] for r in rows), (last_ns - first_ns) / 1e9)

    def receive(self, pipe: Pipe, seconds_max: float) -> Any:
        try:
            if not pipe.poll(seconds_max):
                raise LoadError(f"a worker did not start within {seconds_max:.0f} s")
            kind, value = pipe.recv()
        except (EOFError, ConnectionError):
            raise LoadError("a worker of the load generator ended unexpectedly") from None
        if kind == "error":
            raise LoadError(value)
        return value

    def end(self) -> None:
        self.board.stop()
        for process in self.processes:
            process.join(0.1)
            if process.is_alive():
                process.terminate()
                process.join(5)


def work(task: Task, cells: Any, subscribers: tuple[int, ...], number: int, pipe: Pipe) -> None:
    """The main function of a worker process."""
    # Ctrl-C reaches the whole process group; the parent stops the workers through the board.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = KINDS[task.kind](task, Board(cells, subscribers), number)
    try:
        pipe.send(("ready", worker.connect()))
        if pipe.poll(START_SECONDS_MAX + SILENCE_SECONDS_MAX) and pipe.recv() == "start":
            worker.start()
            worker.run()
            pipe.send(("done", list(worker.histogram.buckets.items())))
    except ProtocolError as error:
        hint = " (is this nsqd's TCP port?)" if error.code == "E_BAD_FRAME" else ""
        pipe.send(("error", f"{task.host}:{task.port} answered {error}{hint}"))
    except OSError as error:
        with suppress(OSError):
            pipe.send(("error", f"{task.host}:{task.port}: {error.strerror or error}"))


def split(total: int, parts: int) -> list[int]:
    """Split ``total`` into ``parts`` that differ by one at most."""
    each, remainder = divmod(total, parts)
    return [each + (n < remainder) for n in range(parts)]


def spread(task: Task, processes: int) -> list[Task]:
    """Split ``task`` over several processes: connections, messages and rate are divided."""
    # A share of 0 messages would mean no limit.
    processes = min(processes, task.connections, task.messages or processes)
    shares = zip(split(task.connections, processes), split(task.messages, processes), strict=True)
    return [
        replace(task, connections=connections, messages=messages, rate=task.rate / processes)
        for connections, messages in shares
    ]
