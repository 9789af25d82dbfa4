"""Disk space reserved for journals and metadata, so that FIN works on a full disk (R8)."""

from __future__ import annotations

from penstock.storage.files import Files

# Enough to compact the journals of the busiest topics and to write nsqd.dat and node.json.
RESERVE_SIZE = 16 * 1024 * 1024


class Reserve:
    """A file of ``size`` allocated bytes, which is removed when the disk is full."""

    def __init__(self, files: Files, path: str, size: int = RESERVE_SIZE) -> None:
        self._files = files
        self._path = path
        self.size = size
        self.held = self.allocated = size == 0
        # Why it must not be held, by source; publishes are rejected while it is not.
        self._bars: dict[str, Exception] = {}

    @property
    def barred(self) -> Exception | None:
        """The first reason why it must not be held."""
        return next(iter(self._bars.values()), None)

    def bar(self, source: str, reason: Exception) -> None:
        """Count as not held until ``unbar``, even if there is space."""
        self._bars[source] = reason
        self.held = False

    def unbar(self, source: str) -> None:
        """It is held again if no other source bars it, and it was not freed: see hold()."""
        if self._bars.pop(source, None) is not None and not self._bars:
            self.held = self.allocated

    def hold(self) -> bool:
        """Allocate the space if there is room; return whether it is held.  Blocking."""
        if self.held:
            return True
        if self.barred is not None:
            return False
        try:
            self._files.allocate(self._path, self.size)
        except OSError:
            # A partial reserve is useless, and others need the space.
            self._files.unlink(self._path)
            return False
        self.allocated = True
        self.held = self.barred is None
        return self.held

    def free(self) -> None:
        """Free the space.  Blocking."""
        if self.size:
            self.held = self.allocated = False
            self._files.unlink(self._path)
