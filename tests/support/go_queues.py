"""A Go nsqd's data path, written by the description of the format.

source = GoPath(tmp_path / "go")
source.queue("orders:email", [record(1), record(2, attempts=3)])
source.metadata({"orders": ["email"]}, paused={"orders:email"})
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TIME_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class GoMessage:
    """A message in a queue."""

    id: bytes
    timestamp_ns: int
    body: bytes
    attempts: int = 0

    @property
    def record(self) -> bytes:
        head = struct.pack(">iqH", 26 + len(self.body), self.timestamp_ns, self.attempts)
        return head + self.id + self.body


def message(
    number: int, attempts: int = 0, body: bytes | None = None, timestamp_ns: int | None = None
) -> GoMessage:
    """Message ``number``: its id, time and body follow from it unless given."""
    return GoMessage(
        b"0%015x" % number,
        TIME_NS + number * 1000 if timestamp_ns is None else timestamp_ns,
        b"body-%d" % number if body is None else body,
        attempts,
    )


class GoPath:
    """The data path of a Go nsqd."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def data_file(self, name: str, number: int) -> Path:
        return self.folder / f"{name}.diskqueue.{number:06d}.dat"

    def meta_file(self, name: str) -> Path:
        return self.folder / f"{name}.diskqueue.meta.dat"

    def meta(self, name: str, depth: int, read: tuple[int, int], write: tuple[int, int]) -> None:
        text = f"{depth}\n{read[0]},{read[1]}\n{write[0]},{write[1]}\n"
        self.meta_file(name).write_text(text)

    def queue(
        self, name: str, messages: Sequence[GoMessage], *, per_file: int = 1000, finished: int = 0
    ) -> None:
        """A queue after a clean shutdown; the first ``finished`` messages have been read.

        Files that were read to their end do not exist, because nsqd removes them.
        """
        files = [messages[at : at + per_file] for at in range(0, len(messages), per_file)] or [[]]
        read_file, read_count = divmod(finished, per_file)
        read = (read_file, sum(len(m.record) for m in messages[finished - read_count : finished]))
        for number, some in enumerate(files):
            if number >= read_file:
                self.data_file(name, number).write_bytes(b"".join(m.record for m in some))
        last = len(files) - 1
        write = (last, sum(len(m.record) for m in files[last]))
        self.meta(name, len(messages) - finished, min(read, write), write)

    def metadata(self, topics: Mapping[str, Sequence[str]], paused: Collection[str] = ()) -> None:
        """nsqd.dat; ``paused`` names topics, and channels as ``topic:channel``."""
        entries = [
            {
                "name": topic,
                "paused": topic in paused,
                "channels": [
                    {"name": channel, "paused": f"{topic}:{channel}" in paused}
                    for channel in channels
                ]
                or None,
            }
            for topic, channels in topics.items()
        ]
        text = json.dumps({"topics": entries or None, "version": "1.3.0"}, separators=(",", ":"))
        (self.folder / "nsqd.dat").write_text(text)

    def snapshot(self) -> dict[str, tuple[bytes, int]]:
        """Every file's bytes and modification time, to check that nothing was changed."""
        return {
            path.name: (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(self.folder.iterdir())
        }
