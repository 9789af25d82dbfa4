"""Reads the records of tables written by a version without ledgers.

    <table>/_penstock/<query>/sealed.json    a decided batch: which files to move where
    <table>/_penstock/<query>/done.json      the last batch in the table
    of a Delta table    the application transaction (query, batch)

The checkpoint of that query shows which messages the batch had.
"""

from __future__ import annotations

import json
import re
from typing import Any

from penstock.errors import PipelineError
from penstock.pipeline.folders import Folder, LocalFolder
from penstock.pipeline.parquet import STATE

QUERY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def finished_batch(folder: Folder, query: str) -> int | None:
    """The last batch of a query that a Parquet table has, after finishing a sealed one."""
    state = f"{STATE}/{query}"
    sealed = _read(folder, f"{state}/sealed.json")
    if sealed is not None:
        for path, target in sealed["moves"]:
            folder.move(path, target)
        for path in sealed["remove"]:
            folder.remove(path)
        if sealed["batch"] is not None:
            data = json.dumps({"batch": sealed["batch"]}).encode()
            folder.write(f"{state}/done.json", data)
        folder.remove(f"{state}/{sealed['stage']}")
        folder.remove(f"{state}/sealed.json")
    done = _read(folder, f"{state}/done.json")
    return None if done is None else int(done["batch"])


def finished_delta_batch(folder: LocalFolder, query: str) -> int | None:
    """The last batch of a query that a Delta table has."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(folder.uri):
        return None
    return DeltaTable(folder.uri).transaction_version(query)


def queries_in(folder: Folder) -> set[str]:
    """The streams that wrote a Parquet table before it had a ledger."""
    found = set()
    for file in folder.files(STATE):
        words = file.path.split("/")
        if len(words) == 3 and words[2] in ("done.json", "sealed.json"):
            found.add(words[1])
    return {query for query in found if QUERY.fullmatch(query)}


def _read(folder: Folder, path: str) -> dict[str, Any] | None:
    data = folder.read(path)
    if data is None:
        return None
    try:
        found: dict[str, Any] = json.loads(data)
    except ValueError:
        raise PipelineError(f"{folder.uri}/{path} is damaged") from None
    return found
