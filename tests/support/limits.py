"""Trials of the limits in docs/operations.md: one for each row of its table "Limits".

    @trial("A command line", "16 KiB")
    def _(daemons: Daemons) -> None: ...

    tried_by("A command line", "16 KiB", "tests.conformance.test_x:test_a_long_line_is_refused")

The first argument is the row's "What", the second its "How much" without markup; both must match
the table.  If another test tries a limit against a real daemon, ``tried_by`` names it.  Trials are
in tests/conformance/limits_*.py.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.daemon import Nsqd, Nsqlookupd

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


@dataclass(frozen=True)
class Row:
    """A row of the table, without markup."""

    what: str
    how_much: str
    beyond: str
    flag: str


@dataclass(frozen=True)
class Trial:
    how_much: str
    run: Callable[[Daemons], None]
    patient: bool  # takes a minute or more: starts before all others, on its own daemons


TRIALS: dict[str, Trial] = {}


class Daemons:
    """Daemons for trials, one for each set of options, until ``close``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._nsqds: dict[tuple[str, ...], Nsqd] = {}
        self._lookupds: dict[tuple[str, ...], Nsqlookupd] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for daemon in (*self._nsqds.values(), *self._lookupds.values()):
            assert "Traceback" not in daemon.log, daemon.log

    def nsqd(self, *options: str) -> Nsqd:
        if options not in self._nsqds:
            nsqd = Nsqd(self.folder(f"nsqd-{len(self._nsqds)}"), *options)
            self._nsqds[options] = self._stack.enter_context(nsqd)
        return self._nsqds[options]

    def nsqlookupd(self, *options: str) -> Nsqlookupd:
        if options not in self._lookupds:
            self._lookupds[options] = self._stack.enter_context(Nsqlookupd(*options))
        return self._lookupds[options]

    def folder(self, name: str) -> Path:
        path = self._folder / name
        path.mkdir(parents=True, exist_ok=True)
        return path


def trial(
    what: str, how_much: str, *, patient: bool = False
) -> Callable[[Callable[[Daemons], None]], None]:
    def add(run: Callable[[Daemons], None]) -> None:
        assert what not in TRIALS, what
        TRIALS[what] = Trial(how_much, run, patient)

    return add


def tried_by(what: str, how_much: str, test: str) -> None:
    """``test``, which runs on its own, is the trial; it must exist."""

    def there(_: Daemons) -> None:
        module, _, name = test.partition(":")
        assert callable(getattr(importlib.import_module(module), name)), test

    trial(what, how_much)(there)


def rows() -> list[Row]:
    """The rows of the table under "## Limits"."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Limits\n")[2].partition("\n## ")[0]
    found = []
    for line in section.splitlines():
        cells = [plain(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0] not in ("What", "") and set(cells[0]) != {"-"}:
            found.append(Row(*cells))
    return found


def plain(cell: str) -> str:
    """The text of a cell, without links and code marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").strip()


# Requests


def exchange(port: int, data: bytes, seconds: float = 20, *, whole: bool = False) -> bytes:
    """Send bytes on a new connection; return the response.

    For HTTP, read up to the end of the head; with ``whole``, until the daemon closes.
    """
    with socket.create_connection(("127.0.0.1", port), seconds) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionError):
            while chunk := sock.recv(65536):
                received += chunk
                if not whole and received.startswith(b"HTTP/1.") and b"\r\n\r\n" in received:
                    break
        return received


def status(port: int, data: bytes, seconds: float = 20) -> int:
    """The status of the first response; 0 if there is none."""
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", exchange(port, data, seconds))
    return int(found[1]) if found else 0
