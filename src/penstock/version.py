"""Versions: Penstock's own, and that of the NSQ it is compatible with."""

from __future__ import annotations

VERSION = "0.1.0"
NSQ_VERSION = "1.3.0"


def matched_line(program: str) -> str:
    """The version as NSQ's daemons print it: ``-version``, and the first line of ``/stats``.

    Programs that manage NSQ match ``<program> vX.Y.Z (built w/go...)`` and ignore what follows.
    Penstock does not use Go: that part exists only to be matched.
    """
    return f"{program} v{NSQ_VERSION} (built w/go1.21.5) penstock v{VERSION}"


def version_line(program: str) -> str:
    """The version of a daemon for people, as in its log."""
    return f"{program} v{NSQ_VERSION} penstock v{VERSION}"


def penstock_line() -> str:
    """The version of Penstock's own commands."""
    return f"penstock v{VERSION} (as NSQ v{NSQ_VERSION})"
