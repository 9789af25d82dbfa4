"""Chromium, the browser of the tests of nsqadmin's pages.

    python -m tests.admin.chromium      # what `make test` does first; quick when it is there

It is Debian's package, installed by apt-get when it is missing and we may; otherwise the tests fail
and say what they need.  Playwright drives it; the browsers that Playwright would download are not
used.
"""

from __future__ import annotations

import os
import shutil
import subprocess

# The fonts are for the screenshots; without any, Chromium draws boxes.
PACKAGES = ("chromium", "fonts-inter", "fonts-dejavu-core")
NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL_SECONDS_MAX = 300


class ChromiumMissing(Exception):
    """There is no Chromium and it could not be installed."""


def install() -> str:
    """Install the browser unless it is there; return the path of its program."""
    path = _found()
    if path is None:
        if os.getuid() != 0 or not shutil.which("apt-get"):
            raise ChromiumMissing("the tests of nsqadmin need chromium: install it")
        _run("apt-get", "update", "-q")
        _run("apt-get", "install", "-q", "-y", "--no-install-recommends", *PACKAGES)
        path = _found()
    if path is None:
        raise ChromiumMissing(f"installed {' '.join(PACKAGES)}, but there is no chromium in PATH")
    return path


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX
    )
    if ended.returncode:
        raise ChromiumMissing(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")


if __name__ == "__main__":
    install()
