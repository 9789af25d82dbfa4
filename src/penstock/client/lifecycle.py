"""The ends of producers and consumers: started by ``async with``, stopped by leaving it."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Life:
    """Something that starts and stops."""

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
