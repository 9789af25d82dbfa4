# patterns.json: which new topics get a pull channel (R47).
#
#     {"format": 1, "patterns": [{"channel": "archive", "identity": "<32 hex digits>",
#                                 "reader": "pipeline archive on host7, pid 4711", "since_ms": ...,
#                                 "topics": ["orders.*"], "except": ["archive.retry"]}],
#      "checksum": "1a2b3c4d"}
#
# Rule 1: there are two copies, in different folders.  Both are written empty before the first
#         pattern, so if there are patterns and a copy is missing, somebody has removed it.
# Rule 2: one that fails its checksum is kept as .bad, and the other is used.  If both are damaged
#         there are no patterns until their readers register them again.
# Rule 3: a later format is rejected without changes.  A file that cannot be read now is not damage.
# Rule 4: data paths of earlier versions have neither file, and no patterns.

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from penstock.core.crc32c import crc32c
from penstock.errors import CorruptError, StorageError
from penstock.storage.channel_reader import ChannelReader, is_identity, reader_of
from penstock.storage.files import Files

FORMAT = 1


@dataclass(frozen=True, slots=True)
class PatternRecord:
    """A reader's channel, and the topics that get it: globs, and excluded names."""

    channel: str
    reader: ChannelReader
    topics: tuple[str, ...]
    excepted: tuple[str, ...] = ()


@dataclass
class PatternFiles:
    """The contents of the two files."""

    records: list[PatternRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # for the damage report
    stale: bool = False  # the files have to be written


def encode_patterns(records: list[PatternRecord]) -> bytes:
    patterns = [_entry(record) for record in records]
    whole = {"format": FORMAT, "patterns": patterns, "checksum": _checksum(patterns)}
    return json.dumps(whole).encode()


def decode_patterns(data: bytes, path: str) -> list[PatternRecord]:
    """Decode a file; CorruptError if damaged, StorageError if from a later version."""
    try:
        whole = json.loads(data)
        version = int(whole["format"])
        if version <= FORMAT:
            if whole["checksum"] != _checksum(whole["patterns"]):
                raise CorruptError(f"{path} fails its checksum")
            return [_record(entry) for entry in whole["patterns"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{path} cannot be read: {error!r}") from error
    raise StorageError(f"{path}: written by a later version (format {version})")


def load_patterns(files: Files, path: str, copy: str) -> PatternFiles:
    """The patterns of a data path; blocking.

    A later format, or a file that cannot be read, raises before anything is changed.
    """
    read = {each: files.read(each) for each in (path, copy) if files.exists(each)}
    found: dict[str, list[PatternRecord]] = {}
    bad: dict[str, str] = {}
    for name, data in read.items():
        try:
            found[name] = decode_patterns(data, name)
        except CorruptError as error:
            bad[name] = str(error)
    loaded = PatternFiles(found.get(path, found.get(copy, [])))
    for name, reason in bad.items():
        files.write_new(f"{name}.bad", read[name])
        loaded.problems.append(f"{reason}; kept as {name.rpartition('/')[2]}.bad")
    if loaded.records or bad:
        missing = [name for name in (path, copy) if name not in read]
        loaded.problems += [f"{name} is missing; rewritten" for name in missing]
    loaded.stale = bool(loaded.problems) or found.get(path) != found.get(copy)
    if loaded.problems and not found:
        loaded.problems.append("new topics get no channel until readers register their patterns")
    return loaded


def write_patterns(files: Files, path: str, copy: str, data: bytes) -> None:
    """Blocking; durable when it returns."""
    if not files.exists(path) and not files.exists(copy):
        for each in (copy, path):
            files.write_new(each, encode_patterns([]))
    for each in (copy, path):
        files.write_new(each, data)


def _entry(record: PatternRecord) -> dict[str, Any]:
    return {
        "channel": record.channel,
        "identity": record.reader.identity,
        "reader": record.reader.name,
        "since_ms": record.reader.since_ms,
        "topics": list(record.topics),
        "except": list(record.excepted),
    }


def _record(entry: dict[str, Any]) -> PatternRecord:
    reader = reader_of(
        {
            "identity": entry["identity"],
            "name": entry["reader"],
            "since_ms": entry["since_ms"],
        }
    )
    if reader is None or not is_identity(reader.identity):
        raise ValueError(f"not a reader: {entry!r:.100}")
    return PatternRecord(
        str(entry["channel"]),
        reader,
        tuple(map(str, entry["topics"])),
        tuple(map(str, entry["except"])),
    )


def _checksum(patterns: list[dict[str, Any]]) -> str:
    return f"{crc32c(json.dumps([FORMAT, patterns]).encode()):08x}"
