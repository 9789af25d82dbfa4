# drain.json: whether the node is being drained, and which deferred messages are being handed over.
#
#     {"format": 1, "drain": {"number": 7, "draining": true, "id": "<16 hex digits>",
#                             "since_ms": ..., "to": "http://10.0.0.2:4151", "batch": 3,
#                             "handed_over": 20000, "intent": null},
#      "checksum": "1a2b3c4d"}
#
#     intent: {"address": "http://10.0.0.2:4151", "node": "<its uuid>", "query": "drain/...",
#              "batch": 3, "attempt": "<32 hex digits>", "count": 10000,
#              "slots": [[<slot number>, [[<first ordinal>, <count>], ...]], ...]}
#
# Rule 1: there are two copies, in different folders.  Of two good ones the higher number counts: a
#         crash between the writes leaves the older one behind, and nothing has relied on the newer.
# Rule 2: both are written without a drain before the first one, so if a drain or an intent is
#         recorded and a copy is missing, somebody has removed it.
# Rule 3: an intent is durable before the other node is asked to publish its batch, and is replaced
#         only after the messages are recorded as done here (engine/drain/handover.py).
# Rule 4: one that fails its checksum is kept as .bad, and the other is used.
# Rule 5: a later format is rejected without changes.  Data paths of earlier versions have neither
#         file.

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from penstock.core.crc32c import crc32c
from penstock.errors import CorruptError, StorageError
from penstock.storage.files import Files

FORMAT = 1

_ID = re.compile(r"[0-9a-f]{0,16}")
_ATTEMPT = re.compile(r"[0-9a-f]{32}")

Run = tuple[int, int]  # first ordinal, count


@dataclass(frozen=True, slots=True)
class HandoverIntent:
    """A batch that the other node may have published: its messages must not fire here."""

    address: str
    node: str
    query: str
    batch: int
    attempt: str
    count: int
    slots: tuple[tuple[int, tuple[Run, ...]], ...]


@dataclass(frozen=True, slots=True)
class DrainRecord:
    """The state of a drain."""

    number: int = 0  # of this state; each has a higher one
    draining: bool = False
    id: str = ""  # of this drain; part of the names of its batches
    since_ms: int = 0
    to: str = ""  # where deferred messages are handed over to
    batch: int = 0  # of the next intent
    handed_over: int = 0  # messages
    intent: HandoverIntent | None = None


@dataclass
class DrainFiles:
    """The contents of the two files."""

    record: DrainRecord = field(default_factory=DrainRecord)
    problems: list[str] = field(default_factory=list)  # for the damage report
    stale: bool = False  # the files have to be written


def encode_drain(record: DrainRecord) -> bytes:
    entry = _entry(record)
    return json.dumps({"format": FORMAT, "drain": entry, "checksum": _checksum(entry)}).encode()


def decode_drain(data: bytes, path: str) -> DrainRecord:
    """Decode a file; CorruptError if damaged, StorageError if from a later version."""
    try:
        whole = json.loads(data)
        version = int(whole["format"])
        if version <= FORMAT:
            if whole["checksum"] != _checksum(whole["drain"]):
                raise CorruptError(f"{path} fails its checksum")
            return _record(whole["drain"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{path} cannot be read: {error!r}") from error
    raise StorageError(f"{path}: written by a later version (format {version})")


def load_drain(files: Files, path: str, copy: str) -> DrainFiles:
    """The state that an earlier process left; blocking.

    A later format, or a file that cannot be read, raises before anything is changed.
    """
    read = {each: files.read(each) for each in (path, copy) if files.exists(each)}
    found: dict[str, DrainRecord] = {}
    bad: dict[str, str] = {}
    for name, data in read.items():
        try:
            found[name] = decode_drain(data, name)
        except CorruptError as error:
            bad[name] = str(error)
    loaded = DrainFiles(max(found.values(), key=lambda each: each.number, default=DrainRecord()))
    for name, reason in bad.items():
        files.write_new(f"{name}.bad", read[name])
        loaded.problems.append(f"{reason}; kept as {name.rpartition('/')[2]}.bad")
    active = loaded.record.draining or loaded.record.intent is not None
    if active or bad:
        missing = [name for name in (path, copy) if name not in read]
        loaded.problems += [f"{name} is missing; rewritten" for name in missing]
    loaded.stale = bool(loaded.problems) or found.get(path) != found.get(copy)
    if loaded.problems and not found:
        loaded.problems.append(
            "a drain is not continued; deferred messages that were being handed over may be"
            " delivered by both nodes"
        )
    return loaded


def write_drain(files: Files, path: str, copy: str, data: bytes) -> None:
    """Blocking; durable when it returns."""
    if not files.exists(path) and not files.exists(copy):
        for each in (copy, path):
            files.write_new(each, encode_drain(DrainRecord()))
    for each in (copy, path):
        files.write_new(each, data)


def _entry(record: DrainRecord) -> dict[str, Any]:
    intent = record.intent
    return {
        "number": record.number,
        "draining": record.draining,
        "id": record.id,
        "since_ms": record.since_ms,
        "to": record.to,
        "batch": record.batch,
        "handed_over": record.handed_over,
        "intent": None
        if intent is None
        else {
            "address": intent.address,
            "node": intent.node,
            "query": intent.query,
            "batch": intent.batch,
            "attempt": intent.attempt,
            "count": intent.count,
            "slots": [[number, [list(run) for run in runs]] for number, runs in intent.slots],
        },
    }


def _record(entry: dict[str, Any]) -> DrainRecord:
    intent = entry["intent"]
    if not _ID.fullmatch(entry["id"]):
        raise ValueError(f"not an id: {entry['id']!r:.100}")
    return DrainRecord(
        int(entry["number"]),
        bool(entry["draining"]),
        entry["id"],
        int(entry["since_ms"]),
        str(entry["to"]),
        int(entry["batch"]),
        int(entry["handed_over"]),
        None if intent is None else _intent(intent),
    )


def _intent(entry: dict[str, Any]) -> HandoverIntent:
    if not _ATTEMPT.fullmatch(entry["attempt"]):
        raise ValueError(f"not an attempt: {entry['attempt']!r:.100}")
    return HandoverIntent(
        str(entry["address"]),
        str(entry["node"]),
        str(entry["query"]),
        int(entry["batch"]),
        entry["attempt"],
        int(entry["count"]),
        tuple(
            (int(number), tuple((int(first), int(count)) for first, count in runs))
            for number, runs in entry["slots"]
        ),
    )


def _checksum(entry: dict[str, Any]) -> str:
    return f"{crc32c(json.dumps([FORMAT, entry]).encode()):08x}"
