"""The files in ``examples/`` are right: what they name exists, and what they run runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from penstock.admin.options import checked
from penstock.cli import nsqadmin, nsqd, nsqlookupd, pipeline
from penstock.cli.flags import FlagTable, Parsed
from penstock.errors import AlreadyRunningError
from penstock.pipeline import runner
from tests.support.daemon import Nsqd

EXAMPLES = Path(__file__).parents[2] / "examples"
UNITS = sorted((EXAMPLES / "systemd").glob("nsq*.service"))
PIPELINE_UNIT = EXAMPLES / "systemd" / "penstock-pipeline@.service"
CONTAINERFILE = EXAMPLES / "container" / "Containerfile"
COMPOSE = EXAMPLES / "container" / "compose.yaml"
CONFIG = EXAMPLES / "systemd" / "nsqd.toml"
PROGRAMS: dict[str, FlagTable[Any]] = {
    "nsqd": nsqd.flag_table(),
    "nsqlookupd": nsqlookupd.flag_table(),
    "nsqadmin": nsqadmin.flag_table(),
}
SECTIONS = {"Unit", "Service", "Install"}


def parse_unit(path: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#", ";"))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def parse_command(words: list[str]) -> Parsed[Any]:
    """What a program would make of its command line; an unknown flag raises."""
    if words[0].endswith("penstock"):
        words = words[1:]
    table = PROGRAMS[Path(words[0]).name]
    arguments = [word.replace("/etc/nsqd/nsqd.toml", str(CONFIG)) for word in words[1:]]
    parsed = table.parse(arguments, {})
    if table is PROGRAMS["nsqadmin"]:
        checked(parsed.options)
    return parsed


def image_commands() -> list[list[str]]:
    """The JSON lists behind CMD and ``command:``, health checks aside."""
    texts = re.findall(r"(?m)^CMD (\[.*\])$", CONTAINERFILE.read_text(encoding="utf-8"))
    texts += re.findall(r"(?m)^ +command: (\[.*\])$", COMPOSE.read_text(encoding="utf-8"))
    return [json.loads(text) for text in texts]


def test_there_are_units_for_all_daemons() -> None:
    assert [path.stem for path in UNITS] == sorted(PROGRAMS)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_parses_and_starts_its_daemon_with_known_flags(path: Path) -> None:
    unit = parse_unit(path)
    assert set(unit.sections()) == SECTIONS
    words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(words[0]).name == path.stem
    parsed = parse_command(words)
    assert (parsed.action, parsed.warnings) == ("run", [])
    assert unit["Service"]["KillSignal"] == "SIGTERM"
    assert unit["Service"]["Restart"] == "always"
    assert int(unit["Service"]["LimitNOFILE"]) >= 16384


def test_the_unit_of_a_pipeline_signals_the_driver_and_repeats_what_may_pass() -> None:
    unit = parse_unit(PIPELINE_UNIT)
    assert set(unit.sections()) == SECTIONS
    program, command, verb, file, *flags = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, command, verb, file[-8:]) == (
        "penstock",
        "pipeline",
        "run",
        "/%i.toml",
    )
    [table] = [table for table in pipeline.flag_tables() if " run " in table.program]
    assert table.parse(flags, {}).warnings == []
    service = unit["Service"]
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert int(service["TimeoutStopSec"]) > runner.BATCH_END_S * 2
    statuses = dict(pipeline.EXIT_STATUSES)
    prevented = set(map(int, service["RestartPreventExitStatus"].split()))
    assert prevented < set(statuses) and AlreadyRunningError.status not in prevented


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("path", [*UNITS, PIPELINE_UNIT], ids=lambda path: path.stem)
def test_systemd_has_nothing_to_say_about_a_unit(path: Path, tmp_path: Path) -> None:
    """With our own programs in place of those in /opt, which it looks for."""
    text = path.read_text(encoding="utf-8")
    unit = tmp_path / path.name.replace("@", "@orders")
    unit.write_text(text.replace("/opt/penstock/bin", str(Path(sys.executable).parent)))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_config_file_has_only_options_of_nsqd() -> None:
    """Those in comments too."""
    text = CONFIG.read_text(encoding="utf-8")
    known = {setting.option for setting in PROGRAMS["nsqd"].settings}
    assert set(tomllib.loads(text)) <= known
    everything = tomllib.loads(re.sub(r"(?m)^# (\w+ = )", r"\1", text))
    assert set(everything) <= known
    assert len(everything) > len(tomllib.loads(text))


def test_containers_run_known_programs_with_known_flags() -> None:
    found = image_commands()
    assert len(found) == 5
    assert {Path(words[0]).name for words in found[1:]} == set(PROGRAMS)
    for words in found:
        parsed = parse_command(words)
        assert (parsed.action, parsed.warnings) == ("run", []), words


def test_the_image_is_built_from_files_that_exist() -> None:
    text = CONTAINERFILE.read_text(encoding="utf-8")
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", text)
    names = [name for line in copied for name in line.split()]
    assert names
    ignored = (CONTAINERFILE.parent / "Containerfile.dockerignore").read_text(encoding="utf-8")
    for name in names:
        assert (EXAMPLES.parent / name).exists(), name
        assert f"!{name}\n" in ignored


def test_the_health_check_tells_a_daemon_from_none(tmp_path: Path) -> None:
    text = CONTAINERFILE.read_text(encoding="utf-8")
    match = re.search(r"HEALTHCHECK .*\\\n +CMD (\[.*\])", text)
    assert match is not None
    _, *arguments = json.loads(match[1])

    def check(port: int) -> int:
        command = [sys.executable, *(word.replace("4151", str(port)) for word in arguments)]
        return subprocess.run(command, capture_output=True, timeout=30).returncode

    with Nsqd(tmp_path) as daemon:
        assert check(daemon.http_port) == 0
    assert check(daemon.http_port) != 0
