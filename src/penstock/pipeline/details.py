"""Locks and ledgers of a run, for `penstock pipeline status`.

    <table>/_penstock/ledger/<pipeline>/    lock.json, head.json and records
    <checkpoint>.ledger/                    lock.json; a folder with head.json for each topic sink

Only local folders are read.  What is missing or unreadable is left out: this is only for display,
and a ledger may be of a later version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.pipeline.folders import LocalFolder, is_local
from penstock.pipeline.ledger import HEAD, Ledger
from penstock.pipeline.lock import NAME as LOCK
from penstock.pipeline.lock import Owner

FILE_SIZE_MAX = 1 << 20
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
    losses = {json.dumps(loss): loss for ledger in ledgers for loss in ledger["losses"]}
    return {
        "lock": owner,
        "identity": identities[0] if identities else "",
        "ledgers": ledgers,
        "losses": list(losses.values()),
    }


def lines_of(details: dict[str, Any]) -> list[str]:
    """The same, formatted for people."""
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
    if not (folder / HEAD).is_file():
        return None
    try:
        ledger = Ledger(LocalFolder(str(folder)), "", "", "").load()
    except (PenstockError, OSError, ValueError):
        return None
    return {
        "path": str(folder),
        "sink": ledger.head.sink,
        "identity": ledger.identity,
        "done": ledger.seq,
        "messages": sum(span.messages or 0 for span in ledger.coverage),
        "ends": [
            {"node": log.node, "topic": log.topic, "instance": log.instance, "end": end}
            for log, end in sorted(ledger.ends().items())
        ],
        "losses": [loss.as_json() for loss in ledger.head.losses],
    }


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
