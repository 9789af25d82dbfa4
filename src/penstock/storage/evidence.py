"""Damaged bytes, copied aside before anything is done about them, for a person to look at."""

from __future__ import annotations

from penstock.storage.files import Files

SUFFIX = ".corrupt"

# A disk that goes bad may damage everything: evidence must not fill what is left of it.
SIZE_MAX = 1024 * 1024
FILE_MAX = 32


def keep_evidence(files: Files, path: str, offset: int, end: int) -> str | None:
    """Copy the bytes ``offset`` .. ``end`` of ``path``; return where to, or None if not kept.

    Nothing here is worth failing for: a full disk only means that there is no evidence.
    """
    folder, _, name = path.rpartition("/")
    target = f"{folder}/{name}.{offset}{SUFFIX}"
    if files.exists(target):
        return target
    if sum(name.endswith(SUFFIX) for name in files.list(folder)) >= FILE_MAX:
        return None
    try:
        size = min(SIZE_MAX, end - offset)
        files.write_new(target, files.pread(path, offset, size, True) or b"")
    except OSError:
        return None
    return target


def set_aside(files: Files, path: str) -> str:
    """Rename a file of which nothing is usable; return its new name.  Blocking.

    Unlike keep_evidence() this takes no room, so all of it is kept.
    """
    target, number = f"{path}{SUFFIX}", 1
    while files.exists(target):
        number += 1
        target = f"{path}.{number}{SUFFIX}"
    files.rename(path, target)
    return target
