"""Optional programs of `penstock up`: a pipeline, a producer for a demo.

Rule 1: they are optional.  If one cannot start or ends, a line reports it and the others continue.
Rule 2: they are started after the parts, and ended before them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.child import end, send, spawn, status_text
from penstock.errors import PenstockError

STOP_SECONDS_MAX = 90.0  # enough to complete the current batch
EVERY = "10s"  # shorter than the default of a minute, for a demo

Show = Callable[[str, str], None]
Lines = Callable[[asyncio.StreamReader], AsyncIterator[str]]


@dataclass(frozen=True, slots=True)
class Extra:
    """A program to run, and lines that say where its output is."""

    name: str
    command: tuple[str, ...]
    notices: tuple[str, ...]


def pipeline(name: str, lookupd: str, data_path: str) -> Extra:
    """A built-in pipeline, or one from a file, over all topics of the installation."""
    folder = Path(data_path).resolve() / name
    command = ["pipeline", "run", name]
    notice = f"pipeline {name}: see `penstock pipeline status`"
    starting = f"pipeline {name}: starting Spark, which takes 10 to 30 s and about 800 MB"
    if name in ("archive", "metrics"):
        command += [f"--lookupd-http-address={lookupd}", f"--param=path={folder}"]
        notice += f" and {folder}"
    if name == "archive":
        command.append(f"--param=every={EVERY}")
        starting += f"; then messages appear there as Parquet files within {EVERY}"
    return Extra("pipeline", tuple(command), (notice, starting))


def demo(nsqd: str) -> Extra:
    command = ("demo", f"--nsqd-tcp-address={nsqd}", "--consume")
    notices = (
        "demo: publishing sample messages to the topics orders and clicks",
        "demo: reading orders on the channel billing, where broken ones are buried",
    )
    return Extra("demo", command, notices)


def missing() -> str:
    """The reason why Spark cannot run here; empty if it can."""
    from penstock.spark.java import find_java
    from penstock.spark.session import check_pyspark

    try:
        check_pyspark()
        find_java(os.environ)
    except PenstockError as error:
        return str(error)
    return ""


class Extras:
    """The running optional programs."""

    def __init__(self, show: Show, lines_of: Lines) -> None:
        self._show = show
        self._lines_of = lines_of
        self._processes: list[tuple[Extra, Process]] = []
        self._watching: list[asyncio.Task[None]] = []
        self._ending = False

    async def start(self, extra: Extra) -> None:
        process = await spawn(extra.command, stderr=PIPE)
        self._processes.append((extra, process))
        self._watching.append(asyncio.create_task(self._watch(extra, process)))

    async def _watch(self, extra: Extra, process: Process) -> None:
        assert process.stderr is not None
        async for line in self._lines_of(process.stderr):
            self._show(extra.name, line.removeprefix(f"[{extra.name}] "))
        status = await process.wait()
        if not self._ending:
            self._show("up", f"{extra.name} ended {status_text(status)}; the rest keeps running")

    def kill(self) -> None:
        for _, process in self._processes:
            send(process, signal.SIGKILL)

    async def end(self) -> None:
        self._ending = True
        for extra, process in reversed(self._processes):
            if not await end(process, STOP_SECONDS_MAX):
                self._show("up", f"{extra.name} did not stop in time and was killed")
        if self._watching:
            await asyncio.wait(self._watching, timeout=2.0)
