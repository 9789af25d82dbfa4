"""Copying a segment to a new file: after a failed sync, or to replace a lost header."""

from __future__ import annotations

from penstock.errors import UncutError
from penstock.storage.files import Files

COPY_SIZE = 1024 * 1024


def copy_bytes(
    files: Files, source: str, target: str, start: int, end: int, header: bytes = b""
) -> None:
    """Write ``header`` and the bytes start .. end of ``source`` to ``target``, synced; blocking.

    The target is replaced atomically, and may be the source itself.
    """
    temporary = f"{target}.new"
    files.unlink(temporary)
    try:
        if header:
            files.append(temporary, [header])
        for offset in range(start, end, COPY_SIZE):
            size = min(COPY_SIZE, end - offset)
            files.append(temporary, [files.pread(source, offset, size, True) or b""])
        files.sync(temporary)
        files.rename(temporary, target)
    except (OSError, UncutError):
        files.unlink(temporary)
        raise
    files.sync_folder(target.rpartition("/")[0])
