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
        # Why it must not be held: publishes are refused while it is not.
        self.barred: Exception | None = None

    def bar(self, reason: Exception) -> None:
        """Count as not held until ``unbar``, whatever room there is."""
        self.barred = reason
        self.held = False

    def unbar(self) -> None:
        """It may be held again: see hold()."""
        self.barred = None
        self.held = self.size == 0

    def hold(self) -> bool:
        """Take the space if there is room; whether it is held now.  Blocking."""
        if self.held:
            return True
        if self.barred is not None:
            return False
        try:
            self._files.allocate(self._path, self.size)
        except OSError:
            # A reserve that is not whole is worth less than the bytes it takes from others.
            self._files.unlink(self._path)
            return False
        self.held = self.barred is None
        return self.held

    def free(self) -> None:
        """Give the space back to the file system.  Blocking."""
        if self.size:
            self.held = False
            self._files.unlink(self._path)
