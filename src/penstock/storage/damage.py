# damage.json: damaged or missing files, until an operator clears the records.
#
#     {"format": 1, "records": [{"time_ns": 1795000000000000000, "kind": "log", "topic": "orders",
#                                "path": "...", "messages": 12, "text": "...", "cleared": false}]}
#
# A cleared record is kept, so that the same damage is not reported again at the next start.  The
# newest RECORD_MAX records are kept.

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, NamedTuple

from penstock.errors import CorruptError, StorageError
from penstock.storage.files import Files

FORMAT = 1
RECORD_MAX = 500
TEXT_SIZE_MAX = 1000


class DamageKind(StrEnum):
    """The kind of file that was damaged or missing."""

    LOG = "log"
    SIDE = "side"
    JOURNAL = "journal"
    DEFERRED = "deferred"
    STAGING = "staging"
    LEDGER = "ledger"
    METADATA = "metadata"
    NODE = "node"
    TOPIC = "topic"


class DamageRecord(NamedTuple):
    """A damaged place.  ``messages`` is None if the count is unknown."""

    time_ns: int
    kind: DamageKind
    topic: str
    path: str
    messages: int | None
    text: str
    cleared: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Two records with the same key are the same damage, found twice."""
        return self.kind, self.topic, self.path, self.text


def encode_damage(records: list[DamageRecord]) -> bytes:
    return json.dumps(
        {"format": FORMAT, "records": [record._asdict() for record in records]}
    ).encode()


def decode_damage(data: bytes, path: str) -> list[DamageRecord]:
    """The records of a file; CorruptError if damaged, StorageError if from a later version."""
    try:
        whole = json.loads(data)
        version = int(whole["format"])
        if version <= FORMAT:
            return [_record(entry) for entry in whole["records"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{path} cannot be read: {error!r}") from error
    raise StorageError(f"{path}: written by a later version (format {version})")


def load_damage(files: Files, path: str) -> list[DamageRecord]:
    """The records, none if there is no file; blocking."""
    return decode_damage(files.read(path), path) if files.exists(path) else []


def _record(entry: dict[str, Any]) -> DamageRecord:
    messages = entry["messages"]
    return DamageRecord(
        time_ns=int(entry["time_ns"]),
        kind=DamageKind(entry["kind"]),
        topic=str(entry["topic"]),
        path=str(entry["path"]),
        messages=None if messages is None else int(messages),
        text=str(entry["text"]),
        cleared=bool(entry["cleared"]),
    )
