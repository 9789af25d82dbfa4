"""Copies of damaged bytes for an operator, made before they are dropped."""

from __future__ import annotations

from penstock.storage.files import Files

SUFFIX = ".corrupt"

# A failing disk may damage everything: the copies must not fill it up.
SIZE_MAX = 1024 * 1024
FILE_MAX = 32


def keep_evidence(files: Files, path: str, offset: int, end: int) -> str | None:
    """Copy the bytes ``offset`` .. ``end`` of ``path``; return the copy's path, or None.

    Never fails: with a full disk there is just no copy.
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
    """Rename an unusable file to ``*.corrupt``; return its new name.  Blocking.

    Unlike keep_evidence() this takes no space, so the whole file is kept.
    """
    target, number = f"{path}{SUFFIX}", 1
    while files.exists(target):
        number += 1
        target = f"{path}.{number}{SUFFIX}"
    files.rename(path, target)
    return target
