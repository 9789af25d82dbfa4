from __future__ import annotations

import asyncio
import time

from penstock.nsqd.loop_lag import LoopLag


def test_whoever_holds_the_loop_is_seen() -> None:
    async def run() -> LoopLag:
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(0.12)
        time.sleep(0.3)
        await asyncio.sleep(0.01)
        assert lag.maximum_ns() > 150_000_000
        lag.stop()
        return lag

    lag = asyncio.run(run())
    assert lag.times.count == 2
    assert lag.times.maximum > 150_000_000
