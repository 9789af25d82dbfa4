"""``async with`` for producers and consumers: starts them, and stops them at the end."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar


class Startable(Protocol):
    """Something that starts and stops."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


S = TypeVar("S", bound=Startable)


class Lifecycle:
    """``async with`` for a class with ``start`` and ``stop``."""

    async def __aenter__(self: S) -> S:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self: Startable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
