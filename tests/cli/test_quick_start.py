"""docs/quick-start.md does what it says, on the parts that `penstock up` runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.cli.test_up import Up
from tests.meta.coverage_table import ROOT
from tests.meta.test_http_docs import examples

PAGE = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PORTS = {
    "4150": ("nsqd", "TCP"),
    "4151": ("nsqd", "HTTP"),
    "4161": ("nsqlookupd", "HTTP"),
    "4171": ("nsqadmin", "HTTP"),
}


def run(command: list[str]) -> str:
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def paste(shown_in_page: list[tuple[str, str]], here: Callable[[str], str]) -> None:
    """Run the commands of a page; a line ``...`` stands for any lines."""
    for command, shown in shown_in_page:
        given = run(["bash", "-c", here(command)])
        lines = [line.rstrip() for line in given.strip().splitlines()]
        parts = ["(?s:.*)" if line == "..." else re.escape(line) for line in shown.split("\n")]
        assert re.fullmatch("\n".join(parts), "\n".join(lines)), (command, given)


def test_the_readme_publishes_consumes_and_replays(tmp_path: Path) -> None:
    """Also though a reader by index, such as the archive's, is the topic's first channel."""
    page = README.partition("## Publish and consume\n")[2].partition("\n## ")[0]
    shown_in_page = examples(re.sub(r"(?s)```.*?```", "", page))
    assert any(" seek " in command for command, _ in shown_in_page)
    with Up(tmp_path / "data") as up:
        nsqd = up.address("nsqd", "HTTP")
        body = {"channel": "archive", "identity": "1f" * 16, "topics": ["*"]}
        request = urllib.request.Request(
            f"http://{nsqd}/channel/pattern", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.status == 200

        def here(text: str) -> str:
            for port, part in PORTS.items():
                text = text.replace(f"127.0.0.1:{port}", up.address(*part))
            return text.replace(".venv/bin/", "")

        paste(shown_in_page, here)


def test_the_examples_give_what_the_page_shows(tmp_path: Path) -> None:
    with Up(tmp_path / "data") as up:

        def here(text: str) -> str:
            for port, part in PORTS.items():
                text = text.replace(f"127.0.0.1:{port}", up.address(*part))
            return text

        shown_in_page = examples(re.sub(r"(?s)```.*?```", "", PAGE))
        assert len(shown_in_page) >= 8
        paste(shown_in_page, here)
        (program,) = re.findall(r"(?s)```python\n(.*?)```", PAGE)
        assert run([sys.executable, "-c", here(program)]) == "b'hello from Python'\n"
