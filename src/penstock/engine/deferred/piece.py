"""Reads a piece of a slot file on a disk thread; the first time also header and checkpoints."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from penstock.core.slots import SlotRecords
from penstock.storage.slot_counts import SlotCount
from penstock.storage.slots import VERSION, FiredRuns, SlotHeader, SlotName, SlotStore


class Primed(NamedTuple):
    """Header, size and checkpoints of a file found at start."""

    header: SlotHeader | None
    size: int
    runs: list[tuple[int, int]]
    fired_size: int
    fired_count: int
    fired_torn: bool = False
    fired_damage: str = ""


class Piece(NamedTuple):
    """Records of a piece, and the end of the file.  ``records`` is None if the file is missing."""

    records: SlotRecords | None
    end: int
    primed: Primed | None = None
    later_version: int = 0


def read_piece(
    store: SlotStore,
    name: SlotName,
    offset: int,
    end: int,
    known: bool,
    stated: SlotCount | None,
) -> Piece:
    """Read the piece at ``offset``; unless ``known``, also the file's header and checkpoints."""
    primed = None
    try:
        if not known:
            header = store.header(name)
            if header is not None and header.version > VERSION:
                return Piece(None, 0, later_version=header.version)
            end = store.size(name)
            primed = _prime(store, name, header, end, stated)
        records, end = store.scan_piece(name, min(offset, end), end)
    except FileNotFoundError:
        if not store.is_missing(name):
            raise
        if not known:
            primed = _prime(store, name, None, 0, stated)
        return Piece(None, 0, primed)
    return Piece(records, end, primed)


def _prime(
    store: SlotStore,
    name: SlotName,
    header: SlotHeader | None,
    size: int,
    stated: SlotCount | None,
) -> Primed:
    fired = store.read_fired(name)
    damage = fired_damage(store, name, fired, stated)
    torn = bool(fired.bad_size) and not damage
    fired_size, fired_count = fired.size, fired.ordinal_count
    if fired.bad_size:
        # On a full disk they stay as they are: readers skip the bad bytes.
        with suppress(OSError):
            fired_size = store.rewrite_fired(name, fired.runs)
    return Primed(header, size, fired.runs, fired_size, fired_count, torn, damage)


def fired_damage(
    store: SlotStore, name: SlotName, fired: FiredRuns, stated: SlotCount | None
) -> str:
    """Describe damage to the checkpoints and keep a copy; "" if there is none."""
    if stated is None:
        if not fired.corrupt_size:
            return ""
        again = "messages"
    else:
        if fired.size >= stated.fired_size and not 0 <= fired.bad_offset < stated.fired_size:
            return ""
        again = f"up to {max(0, stated.fired_count - fired.ordinal_count)} messages"
    if not fired.size:
        what = "missing or empty"
    elif stated is not None and fired.size < stated.fired_size:
        what = f"cut at {fired.size} of {stated.fired_size} bytes"
    else:
        what = f"{fired.bad_size} bytes are damaged"
    kept = store.keep_evidence(name.fired_file, 0, fired.size) if fired.size else None
    copied = f"; copied to {kept}" if kept else ""
    return f"{what}; {again} may be delivered again{copied}"
