"""Disk space held back for journals and metadata, so that finishing works on a full disk (R8)."""

from __future__ import annotations

from penstock.storage.files import Files

# Enough to compact the journals of the busiest topics and to write nsqd.dat and node.json.
RESERVE_SIZE = 16 * 1024 * 1024


class Reserve:
    """A file of ``size`` allocated bytes: held in good times, freed when the disk is full."""

    def __init__(self, files: Files, path: str, size: int = RESERVE_SIZE) -> None:
        self._files = files
        self._path = path
        self.size = size
        self.held = size == 0

    def hold(self) -> bool:
        """Take the space if there is room; whether it is held now.  Blocking."""
        if self.held:
            return True
        try:
            self._files.allocate(self._path, self.size)
        except OSError:
            # A reserve that is not whole is worth less than the bytes it takes from others.
            self._files.unlink(self._path)
            return False
        self.held = True
        return True

    def free(self) -> None:
        """Give the space back to the file system.  Blocking."""
        if self.size:
            self.held = False
            self._files.unlink(self._path)
