"""A command of `penstock` that ends with whoever started it.

    python -P -m penstock.cli.child <pid of the parent> <command> [flags]

Rule 1: when the parent is gone, also by kill -9, the child gets SIGTERM and ends as it always does.
        The kernel sends it: no daemon has to watch, and nothing is left if the parent cannot act.
Rule 2: Ctrl-C in a terminal reaches only the parent, which then ends its children in its order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


async def spawn(command: Sequence[str], stderr: int | None = None) -> Process:
    """Start a command of `penstock`; to be called on the main thread, whose end is the parent's.

    The child ties itself: ``preexec_fn`` would run Python between fork and exec.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "penstock.cli.child", str(os.getpid())),
        *command,
        stdin=DEVNULL,
        stderr=stderr,
        process_group=0,
    )


async def end(process: Process, seconds_max: float) -> bool:
    """Ask it to end and wait; whether it did.  If not in ``seconds_max``, it is killed."""
    send(process, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), seconds_max)
    except TimeoutError:
        send(process, signal.SIGKILL)
        await process.wait()
        return False
    return True


def send(process: Process, number: int) -> None:
    """Send a signal, unless the process has ended."""
    if process.returncode is None:
        process.send_signal(number)


def status_text(status: int) -> str:
    """How a process ended, in words: "with status 1", "by SIGKILL"."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def run_as_child(arguments: Sequence[str]) -> int:
    """Tie this process to its parent, then run the command."""
    parent = int(arguments[0])
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    # It may have died before the kernel was told.
    if os.getppid() != parent:
        return 1
    from penstock.cli.main import main

    return main(arguments[1:])


if __name__ == "__main__":
    sys.exit(run_as_child(sys.argv[1:]))
