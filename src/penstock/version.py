"""Versions: Penstock's own, and the NSQ whose behaviour and answers it gives."""

from __future__ import annotations

VERSION = "0.1.0"
NSQ_VERSION = "1.3.0"


def version_line(program: str) -> str:
    """Return the line of ``-version``.

    Programs that manage NSQ match ``<program> vX.Y.Z (built w/go...)`` and drop the rest.  No Go is
    involved: that part is there to be matched.
    """
    return f"{program} v{NSQ_VERSION} (built w/go1.21.5) penstock v{VERSION}"
