"""Reads Spark's checkpoint: which messages each batch reads.

    <checkpoint>/metadata       {"id": "<query>"}
    <checkpoint>/offsets/7      batch 7 is planned: a line of version, one of settings, then for
                                each source how far it reads
    <checkpoint>/commits/7      batch 7 is done
    <checkpoint>/begin.json     ours: where batch 0 begins, durable before it is written

Spark keeps the last hundred batches.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import PipelineError
from penstock.pipeline.coverage import Span, spans_between
from penstock.pipeline.folders import Folder
from penstock.spark.offsets import Positions, decode, encode, flat, is_offset

BEGIN = "begin.json"

ByChannel = dict[str, Positions]


class OffsetLog:
    """A checkpoint on disk."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    @property
    def query(self) -> str:
        """The id that Spark gave the query; "" if there is no checkpoint."""
        data = self.folder.read("metadata")
        if data is None:
            return ""
        try:
            return str(json.loads(data)["id"])
        except (ValueError, KeyError, TypeError):
            raise PipelineError(f"{self.folder.uri}/metadata is damaged") from None

    def planned(self) -> list[int]:
        return self._numbers("offsets")

    def committed(self) -> list[int]:
        return self._numbers("commits")

    def _numbers(self, name: str) -> list[int]:
        files = self.folder.files(name)
        found = (file.path.rpartition("/")[2] for file in files)
        return sorted(int(number) for number in found if number.isdecimal())

    def positions(self, batch: int) -> ByChannel | None:
        """How far a batch reads, by channel; None if Spark has purged it."""
        data = self.folder.read(f"offsets/{batch}")
        if data is None:
            return None
        return {each["channel"]: decode(each) for each in self._offsets(batch, data)}

    def _offsets(self, batch: int, data: bytes) -> list[dict[str, Any]]:
        """The offsets of our sources in a file of Spark's."""
        try:
            # "-" is a source without an offset yet.
            lines = [line for line in data.decode().splitlines()[2:] if line.startswith("{")]
            return [offset for offset in map(json.loads, lines) if is_offset(offset)]
        except ValueError as error:
            raise PipelineError(
                f"{self.folder.uri}/offsets/{batch} cannot be read: {error}"
            ) from None

    def begin(self) -> ByChannel:
        """Where batch 0 begins, as far as known; batch 0 itself takes precedence."""
        data = self.folder.read(BEGIN)
        begin = {} if data is None else self._begun(data)
        for channel, positions in (self.begin_of_first() or {}).items():
            for node, topics in positions.items():
                begin.setdefault(channel, {}).setdefault(node, {}).update(topics)
        return begin

    def _begun(self, data: bytes) -> ByChannel:
        try:
            channels = json.loads(data)["channels"]
            return {channel: decode(offset) for channel, offset in channels.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PipelineError(f"{self.folder.uri}/{BEGIN} is damaged") from None

    def begin_of_first(self) -> ByChannel | None:
        """The begin in the offsets of batch 0; None if missing, or of an earlier version."""
        data = self.folder.read("offsets/0")
        if data is None:
            return None
        offsets = self._offsets(0, data)
        if not all("begin" in offset for offset in offsets):
            return None
        return {each["channel"]: decode({"nodes": each["begin"]}) for each in offsets}

    @property
    def has_begin(self) -> bool:
        return self.folder.read(BEGIN) is not None or self.begin_of_first() is not None

    def write_begin(self, begin: ByChannel) -> None:
        channels = {channel: encode(channel, positions) for channel, positions in begin.items()}
        self.folder.write(BEGIN, json.dumps({"version": 1, "channels": channels}).encode())


def between(before: ByChannel, after: ByChannel) -> list[Span]:
    return [
        span
        for channel, positions in after.items()
        for span in spans_between(channel, before.get(channel, {}), positions)
    ]


def missing_in(begin: ByChannel, after: ByChannel) -> list[tuple[str, str, str]]:
    """(channel, node, topic) of logs whose begin is not known."""
    return [
        (channel, node, topic)
        for channel, positions in after.items()
        for node, topic, _ in flat(positions)
        if topic not in begin.get(channel, {}).get(node, {})
    ]
