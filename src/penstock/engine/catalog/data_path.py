"""Watches that the data path is where it was: rm -rf, or another folder in its place.

The lock is on a folder, not on its name.  If that is removed or replaced, nothing that is written
by name would be found again, or would go to another nsqd that was started there meanwhile.  So
publishes are refused and nothing is written by name until it is back.
"""

from __future__ import annotations

import errno

from penstock.engine.context import Context
from penstock.engine.health import Health

SOURCE = "data path"


class DataPathCheck:
    """Looks once a second whether the folders of the data path are still the same."""

    def __init__(self, context: Context, health: Health) -> None:
        self._context = context
        self._health = health
        self._looking = False
        self._displaced = ""

    def look(self) -> None:
        if not self._looking:
            self._looking = True
            self._context.disk.submit(self._context.data.displaced, self._looked)

    def _looked(self, path: str | None, error: Exception | None) -> None:
        self._looking = False
        health, files = self._health, self._context.files
        if error is not None:
            health.failing(SOURCE, error)
        elif path:
            gone = OSError(
                errno.ESTALE,
                f"{path} was removed or replaced while nsqd runs on it: nothing that is published"
                " would be kept.  Put it back, or restart nsqd",
            )
            self._displaced = path
            files.bar(gone)
            health.refuse(SOURCE, gone)
        elif self._displaced:
            self._displaced = ""
            files.bar(None)
            health.accept(SOURCE)
        else:
            health.working(SOURCE)
