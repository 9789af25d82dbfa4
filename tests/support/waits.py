"""Bounded waits for another process, thread or connection.

    assert eventually(lambda: nsqd.channel("t", "c")["depth"] == 0)
    wait_until(lambda: path.exists(), why=lambda: nsqd.log)     # fails the test, with the log
    wait_for(lambda: nsqd.get("/ping").status, 200)             # fails with the last value
    await until(lambda: len(received) == 10)                    # in a coroutine

They poll every few milliseconds, or after as long as the last check took.  The limits are long
enough for a busy machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

WAIT_SECONDS_MAX = 40.0
POLL_S = 0.01
POLL_S_MAX = 0.2


def eventually(
    fact: Callable[[], object], timeout_s: float = WAIT_SECONDS_MAX, poll_s: float = POLL_S
) -> bool:
    """Whether ``fact`` becomes true in time."""
    begin_s = time.monotonic()
    deadline_s = begin_s + timeout_s
    while not fact():
        end_s = time.monotonic()
        if end_s > deadline_s:
            return False
        time.sleep(min(max(poll_s, end_s - begin_s), POLL_S_MAX))
        begin_s = time.monotonic()
    return True


def wait_until(
    fact: Callable[[], object],
    timeout_s: float = WAIT_SECONDS_MAX,
    why: Callable[[], object] | str = "",
    alive: Callable[[], object] = lambda: True,
    poll_s: float = POLL_S,
) -> None:
    """Wait until ``fact`` is true.

    The test fails after ``timeout_s``, or as soon as ``alive`` is false; ``why`` is the message,
    or returns it.
    """

    def decided() -> object:
        return fact() or not alive()

    assert eventually(decided, timeout_s, poll_s) and (alive() or fact()), (
        f"never: {why() if callable(why) else why}"
    )


def wait_for(read: Callable[[], Any], wanted: Any, timeout_s: float = WAIT_SECONDS_MAX) -> Any:
    """Poll until the value is ``wanted``, or until ``wanted``, if it is a function, accepts it."""
    value: Any = None

    def right() -> object:
        nonlocal value
        value = read()
        return wanted(value) if callable(wanted) else value == wanted

    assert eventually(right, timeout_s), f"still {value!r}"
    return value


async def until(fact: Callable[[], object], timeout_s: float = WAIT_SECONDS_MAX) -> None:
    """Run the loop until ``fact`` is true; raises TimeoutError if it never is."""
    async with asyncio.timeout(timeout_s):
        while not fact():
            await asyncio.sleep(POLL_S / 2)
