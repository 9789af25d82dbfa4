"""A command of `penstock` that ends with its parent process.

    python -P -m penstock.cli.child <pid of the parent> <command> [flags]

Rule 1: when the parent ends, even by kill -9, the child gets SIGTERM and shuts down normally.  The
        kernel sends the signal, so nothing has to watch the parent.
Rule 2: Ctrl-C in a terminal reaches only the parent, which then ends its children in order.
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
    """Start a command of `penstock`; call it on the main thread, because the child ends with it.

    The child sets its own death signal: ``preexec_fn`` would run Python between fork and exec.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "penstock.cli.child", str(os.getpid())),
        *command,
        stdin=DEVNULL,
        stderr=stderr,
        process_group=0,
    )


async def end(process: Process, seconds_max: float) -> bool:
    """Terminate it and wait; False if it had to be killed after ``seconds_max``."""
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
    """How a process ended: "with status 1", "by SIGKILL"."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def run_as_child(arguments: Sequence[str]) -> int:
    """Set the signal for the parent's end, then run the command."""
    parent = int(arguments[0])
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    # The parent may have ended before prctl.
    if os.getppid() != parent:
        return 1
    from penstock.cli.main import main

    return main(arguments[1:])


if __name__ == "__main__":
    sys.exit(run_as_child(sys.argv[1:]))
