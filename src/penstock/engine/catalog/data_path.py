"""Checks that the data path was not removed or replaced while nsqd runs.

The lock is on a folder, not on its name.  If the folder is removed or replaced, files written by
name would be lost, or go to another nsqd that was started there.  So publishes are refused, and
nothing is written by name, until the folder is back.
"""

from __future__ import annotations

import errno

from penstock.engine.context import Context
from penstock.engine.health import Health

SOURCE = "data path"


class DataPathCheck:
    """Checks once a second that the folders of the data path are still the same."""

    def __init__(self, context: Context, health: Health) -> None:
        self._context = context
        self._health = health
        self._checking = False
        self._displaced = ""

    def run(self) -> None:
        if not self._checking:
            self._checking = True
            self._context.disk.submit(self._context.data.displaced, self._checked)

    def _checked(self, path: str | None, error: Exception | None) -> None:
        self._checking = False
        health, files = self._health, self._context.files
        if error is not None:
            health.failing(SOURCE, error)
        elif path:
            gone = OSError(
                errno.ESTALE,
                f"{path} was removed or replaced while nsqd was running: publishes would be lost."
                "  Put it back, or restart nsqd",
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
