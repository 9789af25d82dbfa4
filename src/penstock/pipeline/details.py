"""What lies beside a run's tables, for `penstock pipeline status`: locks and ledgers.

    <table>/_penstock/ledger/<pipeline>/    lock.json, head.json and records
    <checkpoint>.ledger/                    lock.json; a folder with head.json for each topic sink

Only folders of this machine are read.  Whatever is missing or makes no sense is left out: this is
for eyes, and a ledger may be of a later version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.pipeline.folders import is_local
from penstock.pipeline.lock import NAME as LOCK
from penstock.pipeline.lock import Owner

HEAD = "head.json"
FILE_SIZE_MAX = 64 << 20
RECORD_COUNT_MAX = 1024  # those that are not rolled up yet; a ledger rolls up 256 at once
SHOWN_MAX = 20


def details_of(folders: list[str]) -> dict[str, Any]:
    """``lock``, ``identity``, ``ledgers`` and ``losses``, as JSON."""
    owner: dict[str, Any] | None = None
    ledgers = []
    for uri in folders:
        if not is_local(uri):
            continue
        folder = Path(uri.removeprefix("file://").removeprefix("file:"))
        if owner is None:
            owner = _owner(folder)
        ledgers += [found for path in (folder, *_below(folder)) if (found := _ledger(path))]
    identities = [ledger["identity"] for ledger in ledgers if ledger["identity"]]
    return {
        "lock": owner,
        "identity": identities[0] if identities else "",
        "ledgers": ledgers,
        "losses": [loss for ledger in ledgers for loss in ledger["losses"]],
    }


def lines_of(details: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = []
    if details["lock"]:
        owner = Owner.read(json.dumps(details["lock"]).encode())
        lines.append(f"lock: {owner.label}")
    if details["identity"]:
        lines.append(f"identity: {details['identity']}")
    for ledger in details["ledgers"]:
        messages = f"{ledger['messages']:,} messages"
        lines.append(f"ledger {ledger['path']}: {messages} up to record {ledger['done']}")
        ends = ledger["ends"]
        lines += [
            f"  {each['topic']} on {each['node']}: {each['end']}" for each in ends[:SHOWN_MAX]
        ]
        if len(ends) > SHOWN_MAX:
            lines.append(f"  and {len(ends) - SHOWN_MAX:,} more; --json has all")
    losses = details["losses"]
    lines += [f"loss accepted: {json.dumps(loss)}" for loss in losses[:SHOWN_MAX]]
    if len(losses) > SHOWN_MAX:
        lines.append(f"  and {len(losses) - SHOWN_MAX:,} more losses; --json has all")
    return lines


def _below(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _owner(folder: Path) -> dict[str, Any] | None:
    found = _read(folder / LOCK)
    return found if isinstance(found, dict) else None


def _ledger(folder: Path) -> dict[str, Any] | None:
    head = _read(folder / HEAD)
    if not isinstance(head, dict):
        return None
    done, rolled = (_count(head.get(name)) for name in ("done", "rolled"))
    ends: dict[tuple[str, str, str], int] = {}
    messages = 0
    for row in (*_rows(head), *_records(folder, rolled, done)):
        node, topic, instance, _, end, count = row
        place = (str(node), str(topic), str(instance))
        ends[place] = max(ends.get(place, 0), _count(end))
        messages += _count(count)
    losses = head.get("losses")
    return {
        "path": str(folder),
        "sink": str(head.get("sink", "")),
        "identity": str(head.get("identity") or ""),
        "done": done,
        "messages": messages,
        "ends": [
            {"node": node, "topic": topic, "instance": instance, "end": end}
            for (node, topic, instance), end in sorted(ends.items())
        ],
        "losses": losses if isinstance(losses, list) else [],
    }


def _records(folder: Path, rolled: int, done: int) -> Iterator[list[Any]]:
    for seq in range(rolled + 1, min(done, rolled + RECORD_COUNT_MAX) + 1):
        record = _read(folder / f"{seq:012d}.json")
        if isinstance(record, dict):
            yield from _rows(record)


def _rows(table: dict[str, Any]) -> list[list[Any]]:
    rows = table.get("ranges")
    if not isinstance(rows, list):
        return []
    return [row for row in rows if isinstance(row, list) and len(row) == 6]


def _count(value: object) -> int:
    return value if type(value) is int else 0


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
