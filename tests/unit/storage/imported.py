"""An import into a data path, and its result opened as nsqd opens it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from penstock.storage.datapath import DataPath
from penstock.storage.files import Files
from penstock.storage.import_nsqd import import_nsqd
from penstock.storage.import_report import ImportReport
from penstock.storage.journal import ChannelState
from penstock.storage.recovery import RecoveredTopic, recover_topic
from tests.support.go_queues import GoMessage, GoPath
from tests.unit.storage.build import NODE_ID, read_all

Taken = dict[bytes, int]  # attempts by body


def take(source: GoPath, target: Path, **options: bool | int) -> ImportReport:
    before = source.snapshot()
    try:
        return import_nsqd(str(source.folder), str(target), node_id=NODE_ID, **options)  # type: ignore[arg-type]
    finally:
        assert source.snapshot() == before, "the source was touched"


@dataclass
class Found:
    """A topic of the target, opened as nsqd opens it."""

    recovered: RecoveredTopic
    frames: dict[int, bytes]

    @property
    def bodies(self) -> list[bytes]:
        return [frame[34:] for frame in self.frames.values()]

    @property
    def timestamps(self) -> list[int]:
        return [struct.unpack_from(">q", frame, 8)[0] for frame in self.frames.values()]

    def channel(self, name: str) -> ChannelState:
        return self.recovered.state.channels[name]

    def left(self, name: str) -> Taken:
        """What channel ``name`` has not finished, below and above ``released``."""
        state = self.channel(name)
        return {
            frame[34:]: state.marks.get(index, (0, 0))[0]
            for index, frame in self.frames.items()
            if index >= state.low and not any(start <= index < end for start, end in state.runs)
        }

    def held(self) -> list[bytes]:
        released = self.recovered.state.released
        return [frame[34:] for index, frame in self.frames.items() if index >= released]


def open_target(target: Path) -> dict[str, Found]:
    files = Files()
    data = DataPath(files, str(target))
    data.open()
    found = {}
    for folder in data.topic_folders():
        recovered = recover_topic(files, folder.path, NODE_ID, 0)
        assert recovered.torn_count == recovered.corrupt_count == 0, recovered.notes
        recovered.log.check()
        found[folder.topic] = Found(recovered, read_all(recovered.log))
    files.close()
    return found


def bodies(messages: list[GoMessage]) -> list[bytes]:
    return [m.body for m in messages]
