from __future__ import annotations

import os
import pty
import random
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import up_extras
from penstock.cli.demo import make_message
from penstock.cli.flags import UsageError
from penstock.cli.pipeline import FileOptions, Terminal, overrides_of


def test_the_command_line_becomes_keys_of_the_file() -> None:
    options = FileOptions(
        param=("topics=a",),
        set=("sink.rows=5",),
        lookupd_http_address=("h:1", "h:2"),
        checkpoint="/c",
        master="local[1]",
        conf=("spark.ui.enabled=true",),
    )
    assert overrides_of(options) == [
        "parameters.topics=a",
        "parameters.lookupd=h:1,h:2",
        "?parameters.nsqd=",
        "spark.ui.enabled=true",
        "master=local[1]",
        "checkpoint=/c",
        "sink.rows=5",
    ]


def test_a_checkpoint_elsewhere_keeps_its_scheme() -> None:
    assert overrides_of(FileOptions(checkpoint="hdfs://h/c")) == ["checkpoint=hdfs://h/c"]


CALLS = """
import sys
from penstock.cli.pipeline import main

for words in (
    ["check", "archive", "--param=topic=orders"],
    ["run", "archive", "--param=topic=orders"],
    ["run", "archive", "--param=topics"],
    ["run", "archive", "--checkpoint=archive/x"],
    ["check", "archive", "--nsqd-http-address=127.0.0.1"],
    ["check", "metrics", "--set=sink.2.path=metrics"],
):
    print(main(words), flush=True)
assert "py4j" not in sys.modules
"""


def test_what_cannot_run_is_refused_before_spark_starts(tmp_path: Path) -> None:
    """A wrong command line has status 2, a pipeline that cannot run has 1."""
    found = subprocess.run(
        [sys.executable, "-c", CALLS], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["2", "2", "2", "1", "1", "1"]
    for text in (
        "no parameter 'topic' (did you mean topics?); it has topics, path,",
        'invalid value "topics" for flag -param: must be name=value',
        f"the checkpoint ({tmp_path}/archive/x) is inside [sink] path ({tmp_path}/archive)",
        "nsqd_http_addresses: '127.0.0.1' must be host:port",
        f"[[sink]] 1 path and [[sink]] 2 path are the same path, {tmp_path}/metrics;",
    ):
        assert text in found.stderr


def test_brokers_are_named_in_one_way() -> None:
    with pytest.raises(UsageError, match="cannot be used together"):
        overrides_of(FileOptions(nsqd_http_address=("h:1",), lookupd_http_address=("h:2",)))


def test_a_log_gets_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock")
    terminal = Terminal()
    terminal.progress("batch 1")
    terminal.progress("batch 2")
    terminal.close()
    assert caplog.messages == ["batch 1"]


def test_what_was_asked_for_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.show("rows")
    terminal.log("noise")
    assert capsys.readouterr() == ("rows\n", "noise\n")


def test_the_demo_makes_orders_clicks_and_mistakes() -> None:
    chance = random.Random(1)
    made = [make_message(number, chance) for number in range(1000)]
    assert {topic for topic, _ in made} == {"orders", "clicks"}
    assert 0 < sum(body == b"oops, not JSON" for _, body in made) < 30


def test_up_gives_a_pipeline_its_brokers_and_its_folder() -> None:
    extra = up_extras.pipeline("archive", "127.0.0.1:4161", "/data")
    assert "--lookupd-http-address=127.0.0.1:4161" in extra.command
    assert "--param=path=/data/archive" in extra.command
    assert "/data/archive" in extra.notices[0]
    assert up_extras.pipeline("mine.toml", "h:1", "/data").command == (
        *("pipeline", "run"),
        "mine.toml",
    )


def test_a_terminal_gets_one_line_that_changes() -> None:
    code = (
        "from penstock.cli.pipeline import Terminal\n"
        "t = Terminal()\nt.progress('batch 1')\nt.progress('batch 2')\nt.show('rows')\nt.close()\n"
    )
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, timeout=60
    )
    os.close(theirs)
    shown = os.read(ours, 65536)
    os.close(ours)
    assert done.stdout == b"rows\n"
    assert shown == b"\rbatch 1\x1b[K\rbatch 2\x1b[K\r\x1b[K\r\n"
