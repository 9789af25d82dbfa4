"""Every program that is installed, and every command of `penstock`, is there and helps."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS, help_text
from tests.meta.coverage_table import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCRIPTS: dict[str, str] = PROJECT["scripts"]
PROGRAMS = Path(sys.executable).parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_leads_to_a_function(script: str) -> None:
    module, _, function = SCRIPTS[script].partition(":")
    assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_installed_script_helps(script: str) -> None:
    done = run(str(PROGRAMS / script), "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().startswith(f"usage: {script}")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_loads_and_helps(command: str) -> None:
    assert callable(import_module(COMMANDS[command][0]).main)
    asked = [run(str(PROGRAMS / "penstock"), *words) for words in help_calls(command)]
    for done in asked:
        assert done.returncode == 0, done.stderr
        assert done.stdout.lower().startswith("usage: ")
        assert done.stderr == ""
    assert asked[0].stdout == asked[1].stdout


def help_calls(command: str) -> list[list[str]]:
    return [[command, "--help"], ["help", command]]


def test_penstock_lists_all_of_them() -> None:
    listed = run(str(PROGRAMS / "penstock"), "--help").stdout
    assert listed == help_text()
    for command, (_, text) in COMMANDS.items():
        assert f"  {command} " in listed
        assert text in listed
        assert 10 < len(text) < 80, command


FLAG = re.compile(r"(?m)^ +(?:-\w, )?--?([a-z][\w-]*)")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_command_is_in_its_page(command: str) -> None:
    """On the page of commands, or on the one that it leads to."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    section = page.partition(f"## penstock {command}\n")[2].partition("\n## ")[0]
    told = set(FLAG.findall(section))
    for target in re.findall(r"\]\(([\w.-]+)", section):
        table = (ROOT / "docs" / target).read_text(encoding="utf-8")
        told.update(re.findall(r"\| `-([a-z][\w-]*)`", table))
    flags = set(FLAG.findall(run(str(PROGRAMS / "penstock"), "help", command).stdout))
    assert flags or command == "pipeline", "its help has none to compare"
    assert flags - told == set()


def test_no_command_module_is_forgotten() -> None:
    """A module of ``cli`` with a ``main`` is a command, a script, or run with ``python -m``."""
    with_main = {
        f"penstock.cli.{path.stem}"
        for path in (ROOT / "src" / "penstock" / "cli").glob("*.py")
        if "\ndef main(" in path.read_text(encoding="utf-8")
    }
    reached = {module for module, _ in COMMANDS.values()}
    reached |= {target.partition(":")[0] for target in SCRIPTS.values()}
    assert with_main - reached == {"penstock.cli.docs"}
