"""The status of each run, in a small file that `penstock pipeline status` reads.

    $XDG_STATE_HOME/penstock/pipelines/<name>.<pid>.json        ~/.local/state if it is not set

A run that ends without an error removes its file.  One that fails leaves it, with the reason, until
the next run of that name.  One that was killed leaves it too: its process no longer exists.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.pipeline.details import lines_of
from penstock.progress import OVER, PipelineState
from penstock.spark.node_client import Access, Node
from penstock.wire.peer_answers import channels_in

VARIABLE = "PENSTOCK_STATE"
ASK_S = 1.0


@dataclasses.dataclass(slots=True)
class Status:
    """One run, as stored in its file."""

    name: str
    pid: int = dataclasses.field(default_factory=os.getpid)
    state: str = PipelineState.STARTING
    stopping: bool = False  # it ends when its batch is written; until then its state stays
    file: str = ""
    master: str = ""
    checkpoint: str = ""
    topics: list[str] = dataclasses.field(default_factory=list)
    nodes: list[str] = dataclasses.field(default_factory=list)  # HTTP addresses of nsqds
    channel: str = ""
    ledgers: list[str] = dataclasses.field(default_factory=list)  # folders of ledgers and locks
    started_s: float = dataclasses.field(default_factory=time.time)
    updated_s: float = 0.0
    batch: int = -1
    message_count: int = 0
    messages_per_s: float = 0.0
    batch_ms: int = 0
    waiting: int | None = None
    error: str = ""
    gone_topics: int = 0  # topics with messages removed before the topic was found
    gone_before: int = 0  # how many of these messages, at least
    attempt: int = 0  # attempts that failed since the last batch, while retrying

    @property
    def shown_state(self) -> str:
        """The state for people, which also shows whether its process exists."""
        if self.state in OVER:
            return self.state
        if not self.alive:
            return "killed"
        return f"{self.state}, stopping" if self.stopping else self.state

    @property
    def alive(self) -> bool:
        """Whether its process exists; its pid may have been reused since."""
        try:
            command = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return _exists(self.pid) if not Path("/proc/self").exists() else False
        return b"penstock" in command or b"python" in command


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def state_folder() -> Path:
    if given := os.environ.get(VARIABLE):
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "penstock" / "pipelines"


class StatusFile:
    """The file of this run.  A run does not fail if the folder cannot be written."""

    def __init__(self, status: Status, folder: Path | None = None) -> None:
        self.status = status
        folder = folder or state_folder()
        self._path = folder / f"{status.name}.{status.pid}.json"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for other in read_all(folder):
                if other.name == status.name and not other.alive:
                    (folder / f"{other.name}.{other.pid}.json").unlink(missing_ok=True)

    def update(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self.status, name, value)
        self.status.updated_s = time.time()
        new = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(dataclasses.asdict(self.status)), encoding="utf-8")
            new.replace(self._path)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_all(folder: Path | None = None) -> list[Status]:
    """Every run that has a file, newest first."""
    found = []
    for path in (folder or state_folder()).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Status(**json.loads(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda status: -status.started_s)


def ask_brokers(run: Status) -> int | None:
    """How many messages wait for a run, also one that was killed, by its pull channels now.

    None if a node needs a token or does not respond at once.
    """
    depth = None
    for address in run.nodes:
        node = Node(address, Access(request_timeout_s=ASK_S, retry_timeout_s=0.0))
        try:
            for _, _, channel in channels_in(node.stats(), run.topics, run.channel):
                depth = (depth or 0) + int(channel["depth"])
        except (PenstockError, KeyError, TypeError, ValueError):
            return None
    return depth


def table(runs: list[Status], details: Sequence[dict[str, Any]] = ()) -> str:
    """A table for people; below it the results of ``details_of`` for each run."""
    rows = [["NAME", "STATE", "PID", "UP", "BATCH", "MESSAGES", "A SECOND", "WAITING", ""]]
    for run in runs:
        rows.append(
            [
                *(run.name, run.shown_state, str(run.pid), _age(time.time() - run.started_s)),
                *(str(run.batch) if run.batch >= 0 else "-", f"{run.message_count:,}"),
                *(f"{run.messages_per_s:,.0f}", "-" if run.waiting is None else f"{run.waiting:,}"),
                run.error or _remark(run),
            ]
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    for run, more in zip(runs, details, strict=False):
        if about := lines_of(more):
            lines += ["", f"{run.name}, process {run.pid}:", *(f"  {line}" for line in about)]
    return "\n".join(lines)


def _remark(run: Status) -> str:
    topics = ",".join(run.topics)[:60]
    if not run.gone_topics:
        return topics
    count = f"at least {run.gone_before:,}" if run.gone_before else "an unknown number of"
    return f"{topics}; {count} messages of {run.gone_topics:,} topics were removed before it joined"


def _age(seconds: float) -> str:
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}"
