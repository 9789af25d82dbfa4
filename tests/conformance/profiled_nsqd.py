"""nsqd with every call of a Python function counted, between SIGUSR1 and SIGUSR2.

    python -m tests.conformance.profiled_nsqd COUNTS --data-path=...

SIGUSR2 writes {"file:function": calls} to COUNTS.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from penstock.cli.nsqd import main

counts: Counter[str] = Counter()
SOURCE = str(Path(__file__).parents[2] / "src" / "penstock") + "/"


def count(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(SOURCE):
        counts[f"{code.co_filename.removeprefix(SOURCE)}:{code.co_name}"] += 1


def begin(*_: object) -> None:
    counts.clear()
    sys.setprofile(count)


def end(*_: object) -> None:
    sys.setprofile(None)
    path = Path(sys.argv[1])
    path.with_suffix(".new").write_text(json.dumps(counts))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    sys.exit(main(sys.argv[2:]))
