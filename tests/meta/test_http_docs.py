"""docs/http.md tells of every route, of none that is not there, and its examples are true."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.engine.options import Options
from penstock.nsqd.daemon import Daemon
from tests.meta.coverage_table import ROOT
from tests.support.daemon import Nsqd

PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:4151"


def routes(data_path: Path) -> set[tuple[str, str]]:
    """Those of the whole daemon, which need not run for it."""

    async def made() -> set[tuple[str, str]]:
        options = dataclasses.replace(Options(), data_path=str(data_path))
        daemon = Daemon(options, asyncio.get_running_loop(), None)
        return set(daemon._api.router.routes())

    return asyncio.run(made())


def test_the_page_has_every_route_and_no_other(tmp_path: Path) -> None:
    told = {(method, path) for method, path in re.findall(r"`([A-Z]+) (/[^`]*)`", PAGE)}
    known = routes(tmp_path)
    assert told - known == set(), "told of, but not there"
    assert known - told == set(), "not told of"


def test_the_page_about_the_log_tells_of_routes_that_are_there(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(GET|POST|PUT) (/[^`?]*)", page))
    assert told and told <= routes(tmp_path)


def examples(page: str = PAGE) -> list[tuple[str, str]]:
    """Commands behind ``$`` and what the page shows below them."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", page):
        # What stands in a block without a command is shown for something else.
        shown: list[str] = []
        for line in block.splitlines():
            text = line[4:]
            if text.startswith("$ "):
                shown = []
                found.append((text[2:], shown))
            else:
                shown.append(text)
    return [(command, "\n".join(lines).strip()) for command, lines in found]


def test_there_are_examples() -> None:
    assert len(examples()) > 15


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_examples_give_what_the_page_shows(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        for command, shown in examples():
            done = subprocess.run(
                command.replace(ADDRESS, f"127.0.0.1:{nsqd.http_port}"),
                shell=True,
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert done.returncode == 0, (command, done.stderr)
            given = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
            pattern = re.escape(shown).replace(r"\.\.\.", ".*")
            assert re.fullmatch(pattern, given), (command, given, shown)
