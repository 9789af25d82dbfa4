# Staging files and the ledger as text; see dump.py.

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from penstock.errors import CorruptError, StorageError
from penstock.storage import ledger, staging_notes
from penstock.storage.files import Files
from penstock.storage.staging import PartRecord, StagingStore
from penstock.storage.text import body_of, short, time_of


def dump_staging(files: Files, path: str, out: TextIO, brief: bool) -> int:
    """Write the contents of a staging file; return the number of damaged places."""
    folder, _, file = path.rpartition("/")
    try:
        number = int(file.removesuffix(".staging"), 16)
    except ValueError:
        raise StorageError(f"{path}: the name of a staging file is its number") from None
    store = StagingStore(files, folder or ".")
    found = store.walk(number)
    if found is None:
        print(f"!! {0:>9}  no good header; {files.size(path)} bytes", file=out)
        return 1
    key = found.key
    print(
        f"{0:>12}  staging={number:016x} query={key.query} batch={key.batch}"
        f" partition={key.partition} attempt={key.attempt} created={time_of(found.created_ns)}",
        file=out,
    )
    damage = 0
    for part in sorted(found.parts.values(), key=lambda part: part.offset):
        late = " deferred" * part.deferred
        print(
            f"{part.offset:>12}  part {part.part} topic={part.topic} count={part.count}"
            f" size={part.size}{late}",
            file=out,
        )
        try:
            body = store.read(number, part)
        except CorruptError:
            damage += 1
            print(f"!! {part.offset:>9}  the part is damaged", file=out)
            continue
        for line in _rows(part, body) if not brief else ():
            print(line, file=out)
    if found.seal is not None:
        line = f"parts={found.seal.part_count} count={found.seal.count}"
        print(f"{found.good_size:>12}  sealed {line}", file=out)
    else:
        print(f"{found.good_size:>12}  not sealed", file=out)
    if found.good_size < found.size:
        damage += 1
        size = found.size - found.good_size
        print(f"!! {found.good_size:>9}  {size} bytes are not a record", file=out)
    return damage


def _rows(part: PartRecord, body: bytes) -> Iterator[str]:
    at = 4
    while at < len(body):
        due = ""
        if part.deferred:
            due = f"due={time_of(int.from_bytes(body[at : at + 8], 'big', signed=True))} "
            at += 8
        end = at + 4 + int.from_bytes(body[at : at + 4], "big")
        yield f"{part.offset + at:>12}    {due}{body_of(body[at + 4 : end])}"
        at = end


def dump_ledger(data: bytes, out: TextIO) -> int:
    """Write the contents of the ledger or the notes; return the number of damaged places."""
    damage = 0
    names = {**ledger.NAMES, **staging_notes.NAMES}
    for offset, _, kind, payload, _ in ledger.records(data):
        if payload is None:
            damage += 1
            print(f"!! {offset:>9}  bytes that are not a record", file=out)
            continue
        values = json.loads(payload)
        name = names.get(kind, f"type {kind}")
        when = time_of(values.pop("time", 0))
        fields = " ".join(f"{field}={_value(value)}" for field, value in values.items())
        print(f"{offset:>12}  {name} time={when} {fields}", file=out)
    return damage


def _value(value: Any) -> str:
    if isinstance(value, list):
        return short([":".join(map(str, item)) for item in value])
    if isinstance(value, dict):
        return short([f"{name}~{bound[0]:016x}>={bound[1]}" for name, bound in value.items()])
    return str(value)
