"""Syncs a query's checkpoint on this machine before its channel is committed.

    <checkpoint>/offsets/<batch>    what a batch reads, written before it runs
    <checkpoint>/commits/<batch>    the batch is done

Spark does not sync these files.  A power failure could undo the last of them after the batch was
committed on the broker; the query would then start below its channel's low, as after a loss.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import QueryError

FOLDERS = ("offsets", "commits")


class CheckpointSyncer:
    """Syncs ``folder``; with "" it does nothing."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None
        self._synced = dict.fromkeys(FOLDERS, -1)  # the newest batch that is durable

    def sync(self) -> None:
        """Make all batches in the checkpoint durable; raises QueryError if that fails."""
        if self._folder is None:
            return
        try:
            for name in FOLDERS:
                self._sync(name, self._folder / name)
        except OSError as error:
            raise QueryError(
                f"cannot sync the checkpoint {self._folder}, so the channel is not committed: "
                f"{error}; the option checkpoint must be the query's checkpointLocation, on this "
                "machine"
            ) from None

    def _sync(self, name: str, folder: Path) -> None:
        new = [
            int(path.name)
            for path in folder.iterdir()
            if path.name.isdecimal() and int(path.name) > self._synced[name]
        ]
        if not new:
            return
        for batch in new:
            for path in (folder / f"{batch}", folder / f".{batch}.crc"):
                if path.exists():
                    sync(path)
        sync(folder)
        self._synced[name] = max(new)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
