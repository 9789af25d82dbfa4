"""A folder that fails before its n-th change, to simulate kills."""

from __future__ import annotations

from penstock.pipeline.folders import LocalFolder


class Cut(Exception):
    """Simulates a kill."""


class CutFolder(LocalFolder):
    """Fails before the n-th change and leaves the state that a kill would leave."""

    def __init__(self, path: str, change_count: int) -> None:
        super().__init__(path)
        self.left = change_count

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cut

    def write(self, path: str, data: bytes) -> None:
        self._count()
        super().write(path, data)

    def move(self, path: str, target: str) -> None:
        self._count()
        super().move(path, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)
