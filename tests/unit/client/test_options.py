"""The client's options by name: type checkers know the same ones as `Config`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from penstock.client.config import Config, Seconds
from penstock.client.options import Options
from penstock.settings.table import settings_of

RIGHT = """
from penstock import Config, Consumer, Producer
from penstock.client import sync

def handle(message: object) -> None: ...

Consumer("t", "c", handle, nsqd_tcp_addresses="h:1", max_in_flight=5, msg_timeout="1m30s")
Producer("h:1", response_timeout=2.5, config=Config(snappy=True))
sync.Producer("h:1", batch_publish_count=200)
sync.Consumer("t", "c", lookupd_http_addresses=["h:1"], max_attempts=0)
Config().replace(max_in_flight=3)
"""
WRONG = """
from penstock import Config, Consumer, Producer
from penstock.client import sync

def handle(message: object) -> None: ...

Consumer("t", "c", handle, nsqd_tcp_addresses="h:1", max_inflight=5)
Consumer("t", "c", handle, nsqd_tcp_addresses="h:1", max_in_flight="five")
Producer("h:1", responsetimeout=2.5)
Producer("h:1", snappy=2.5)
sync.Producer("h:1", batch_count=200)
sync.Consumer("t", "c", max_tries=0)
Config().replace(max_inflight=3)
Config(max_inflight=3)
"""


def test_type_checkers_know_every_option_and_no_other() -> None:
    hints = get_type_hints(Options)
    own = get_type_hints(Config)
    settings = settings_of(Config)
    assert list(hints) == [setting.field for setting in settings]
    for setting in settings:
        wanted = float | str if isinstance(setting.kind, Seconds) else own[setting.field]
        assert hints[setting.field] == wanted, setting.field


@pytest.mark.parametrize(("text", "wrong"), [(RIGHT, False), (WRONG, True)])
def test_mypy_finds_options_that_are_not_there(tmp_path: Path, text: str, wrong: bool) -> None:
    file = tmp_path / "program.py"
    file.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    cache = f"--cache-dir={tmp_path / 'cache'}"
    done = subprocess.run(
        [*command, cache, "--config-file=", str(file)], capture_output=True, text=True, timeout=120
    )
    told = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    calls = {n for n, line in enumerate(text.splitlines(), 1) if "(" in line and "def" not in line}
    assert told == (calls if wrong else set()), done.stdout + done.stderr
