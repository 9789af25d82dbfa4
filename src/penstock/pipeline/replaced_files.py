"""``merging.json``: files that a merge has replaced and that are removed later.

    {"merge": "merge-00000012", "swapped_ms": 1794981197320, "removed": [path, ...],
     "swaps": [["merge-00000012", 1794981197320, 7], ...]}

Listing a folder is not atomic, and a reader may be listing it when files are swapped.  So the old
files stay for ``GRACE_MS``: the reader then sees rows twice, but never fewer.  ``removed`` has the
paths of all swaps, one after the other; ``merge`` is the last one.

The file is written before the merge is recorded in the ledger, and removed after the files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import PipelineError
from penstock.pipeline.ledger import RESTORE, Ledger
from penstock.pipeline.ledger_records import packed, unpacked

NAME = "merging.json"
GRACE_MS = 60_000
SWEEP_MAX = 1_000  # files per call, so that a batch never waits long


@dataclass(slots=True)
class Swap:
    merge: str
    swapped_ms: int
    paths: list[str]


class Replaced:
    """The replaced files of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._loaded: list[Swap] | None = None

    @property
    def _path(self) -> str:
        return f"{self._ledger.path}/{NAME}"

    @property
    def _swaps(self) -> list[Swap]:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def _load(self) -> list[Swap]:
        data = self._ledger.folder.read(self._path)
        if data is None:
            return []
        try:
            swaps = _swaps_of(unpacked(data))
        except (ValueError, KeyError, TypeError) as error:
            uri = f"{self._ledger.folder.uri}/{self._path}"
            raise PipelineError(f"{uri} is damaged ({error}).  {RESTORE}") from None
        # A file that the ledger has is never removed, whatever was restored from a backup.
        live = self._ledger.live_files()
        for swap in swaps:
            swap.paths = [path for path in swap.paths if path not in live]
        return [swap for swap in swaps if swap.paths]

    def add(self, merge: str, paths: Iterable[str], now_ms: int) -> None:
        """Files are about to be replaced; the same merge may be added again."""
        self._loaded = [swap for swap in self._swaps if swap.merge != merge]
        self._loaded.append(Swap(merge, now_ms, list(paths)))
        self._write()

    def sweep(self, now_ms: int) -> None:
        """Remove files whose grace period is over."""
        left = SWEEP_MAX
        swaps = self._swaps
        while left and swaps and swaps[0].swapped_ms <= now_ms - GRACE_MS:
            swap = swaps[0]
            expired, swap.paths = swap.paths[:left], swap.paths[left:]
            left -= len(expired)
            for path in expired:
                self._ledger.folder.remove(path)
            if not swap.paths:
                swaps.pop(0)
        if left < SWEEP_MAX:
            self._write()

    def wait_ms(self, now_ms: int) -> int | None:
        """How long until the last of them may be removed; None if there are none."""
        if not self._swaps:
            return None
        return max(0, self._swaps[-1].swapped_ms + GRACE_MS - now_ms)

    def _write(self) -> None:
        swaps, folder = self._swaps, self._ledger.folder
        if not swaps:
            folder.remove(self._path)
            return
        value = {
            "merge": swaps[-1].merge,
            "swapped_ms": swaps[-1].swapped_ms,
            "removed": [path for swap in swaps for path in swap.paths],
            "swaps": [[swap.merge, swap.swapped_ms, len(swap.paths)] for swap in swaps],
        }
        folder.write(self._path, packed(value))


def _swaps_of(value: dict[str, Any]) -> list[Swap]:
    removed, swaps = [str(path) for path in value["removed"]], []
    for merge, swapped_ms, count in value["swaps"]:
        swaps.append(Swap(str(merge), int(swapped_ms), removed[: int(count)]))
        removed = removed[int(count) :]
    if removed:
        raise ValueError("it has files that belong to no merge")
    return swaps
