"""nsqjs, installed beside the Python packages of the tests: <venv>/node/node_modules.

    python -m tests.conformance.nodejs      # what `make test` does first; quick when it is there

The versions are those of node/package-lock.json.  Node itself is installed by apt-get when it is
missing and we may; otherwise the tests fail and say what they need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "node"
FOLDER = Path(sys.prefix) / "node"
INSTALL_SECONDS_MAX = 300


class NodeMissing(Exception):
    """There is no Node.js and it could not be installed."""


def install() -> Path:
    """Install what the lock file names, unless it is there; return the folder."""
    lock = (SOURCE / "package-lock.json").read_bytes()
    stamp = FOLDER / "installed-whole.json"
    if stamp.exists() and stamp.read_bytes() == lock and shutil.which("node"):
        return FOLDER
    if not (shutil.which("node") and shutil.which("npm")):
        _install_node()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCE / name, FOLDER / name)
    # With what nsqjs calls optional, which is snappy.
    _run("npm", "ci", "--no-audit", "--no-fund", cwd=FOLDER)
    stamp.write_bytes(lock)
    return FOLDER


def _install_node() -> None:
    if os.getuid() != 0 or not shutil.which("apt-get"):
        raise NodeMissing("the tests of nsqjs need node (12.13 or later) and npm: install them")
    _run("apt-get", "update", "-q")
    _run("apt-get", "install", "-q", "-y", "--no-install-recommends", "nodejs", "npm")


def _run(*command: str, cwd: Path | None = None) -> None:
    ended = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX
    )
    if ended.returncode:
        raise NodeMissing(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")


if __name__ == "__main__":
    install()
