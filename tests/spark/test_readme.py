"""The README's first screen delivers, pasted line by line into what `make run` starts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.client import sync
from tests.cli.test_quick_start import PORTS
from tests.cli.test_up import Up
from tests.meta.coverage_table import ROOT
from tests.meta.test_http_docs import examples
from tests.spark.pipelines import RUN_SECONDS_MAX
from tests.spark.test_pipeline_cli import QUICK_JAVA, archived
from tests.support.waits import wait_until

pytestmark = pytest.mark.timeout(400)

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = Path(sys.executable).parent
PAUSE_S = 0.5


def here(up: Up, text: str) -> str:
    """With the programs of this environment, and the ports of ``up``."""
    for port, part in PORTS.items():
        text = text.replace(f"127.0.0.1:{port}", up.address(*part))
    return text.replace(".venv/bin/", f"{PROGRAMS}/")


def run(command: list[str], folder: Path, **more: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=folder, input=more.get("input")
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def adopt(up: Up, topic: str) -> None:
    """Until the archive has its channel of ``topic``: later channels begin behind it."""
    lookupd = up.address("nsqlookupd", "HTTP")
    command = ["curl", "-s", f"http://{lookupd}/channels?topic={topic}"]
    wait_until(lambda: "archive" in run(command, ROOT), RUN_SECONDS_MAX, lambda: up.log)


def test_every_line_gives_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    for name, text in QUICK_JAVA.items():
        monkeypatch.setenv(name, text)
    shown_in_page = examples(re.sub(r"(?s)```.*?```", "", README))
    assert len(shown_in_page) >= 6
    with Up(tmp_path / "data", "--pipeline=archive") as up:
        for number, (command, shown) in enumerate(shown_in_page):
            given = run(["bash", "-c", here(up, command)], tmp_path)
            assert given.strip() == shown, command
            # Somebody reads on before the next line; the archive meanwhile takes the topic up.
            if number == 1:
                adopt(up, "greetings")
            time.sleep(PAUSE_S)
        (program,) = re.findall(r"(?s)```python\n(.*?)```", README)
        program = here(up, program)
        assert run([sys.executable, "-c", program], tmp_path) == "hello from Python\n"
        # Pasted, too: a prompt takes the program line by line.  By now the archive may have the
        # topic, and the channel is there.
        adopt(up, "letters")
        pasted = run([sys.executable, "-i", "-q"], tmp_path, input=program)
        assert pasted == "hello from Python\n"
        folder = tmp_path / "data" / "archive"
        wanted = {b"hello", b"hello again", b"hello from Python"}
        wait_until(lambda: wanted <= set(archived(folder)), RUN_SECONDS_MAX, lambda: up.log)
        assert not (ROOT / "archive").exists()
        with sync.Consumer(
            "greetings", "readme", nsqd_tcp_addresses=up.address("nsqd", "TCP")
        ) as consumer:
            assert consumer.get(timeout=0.5) is None, "all that is due was delivered"
