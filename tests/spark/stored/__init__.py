"""Tables, checkpoints and data paths of the version before ledgers; ``make.py`` makes them.

Nothing in them is an absolute path: Spark's offsets and commits, ``penstock.json`` and the table's
own state hold names relative to their folder, and nodes are known by uuid.  So they may be unpacked
anywhere, and the node may listen on any port.
"""

from __future__ import annotations

import json
import os
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.pipeline.spec import Pipeline
from tests.spark.stored import make
from tests.support.daemon import Nsqd

# They are older than any reader may be away by default.
NSQD_OPTIONS = ("--pull-channel-lapse=876000h", "--max-bytes-per-file=4000")
MESSAGES_MAX = 1000
DAY_S = 86_400  # for so long they were stopped, as the times of their files say


@dataclass
class Stored:
    """An unpacked one, and its node, which runs."""

    name: str
    folder: Path
    nsqd: Nsqd
    bodies: dict[str, list[str]]  # of each topic, all that was ever published

    @property
    def pipeline(self) -> Pipeline:
        """The one that wrote it, as it is declared today."""
        found: Pipeline = make.declare(self.name, self.folder, self.nsqd.http_port, MESSAGES_MAX)
        return found

    def publish(self) -> None:
        """Some more messages to each of its topics."""
        for topic, found in self.bodies.items():
            lines = make.bodies(topic, len(found))
            assert self.nsqd.post(f"/mpub?topic={topic}", b"\n".join(lines)).text == "OK"
            found += [line.decode() for line in lines]

    def all_bodies(self) -> list[str]:
        return sorted(body for found in self.bodies.values() for body in found)


@contextmanager
def unpacked(name: str, folder: Path) -> Iterator[Stored]:
    """Unpack a stored table into a folder and start its node."""
    with tarfile.open(make.HERE / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    stopped_s = time.time() - DAY_S
    for path in folder.rglob("*"):
        os.utime(path, (stopped_s, stopped_s))
    bodies = json.loads((folder / "stored.json").read_text())["bodies"]
    with Nsqd(folder / "nsqd", *NSQD_OPTIONS) as nsqd:
        yield Stored(name, folder, nsqd, bodies)
