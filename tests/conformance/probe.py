"""Asks /ping 50 times a second until its standard input ends, then prints how long each took.

    python -m tests.conformance.probe 4151

A process of its own: a thread beside a busy test would wait for the test's interpreter, not for the
daemon.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERVAL_S = 0.02
REPLY_SECONDS_MAX = 10.0
REQUEST = b"GET /ping HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"


def main(port: int) -> None:
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    times_s = []
    while not ended.wait(INTERVAL_S):
        begun_s = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), REPLY_SECONDS_MAX) as sock:
            sock.sendall(REQUEST)
            answer = b""
            while chunk := sock.recv(4096):
                answer += chunk
        assert answer.endswith(b"\r\n\r\nOK"), answer
        times_s.append(time.monotonic() - begun_s)
    print("\n".join(f"{seconds:.6f}" for seconds in times_s))


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


@contextmanager
def probing(port: int) -> Iterator[list[float]]:
    """Probe while entered; the times in seconds, ascending, are in the list at the end."""
    times_s: list[float] = []
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(port)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield times_s
    finally:
        out, _ = process.communicate("", timeout=3 * REPLY_SECONDS_MAX)
        assert process.returncode == 0, "a /ping was not answered"
        times_s += sorted(map(float, out.split()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
