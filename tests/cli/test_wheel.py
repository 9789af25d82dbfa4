"""The wheel of `make wheel`, in an empty environment without a compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS
from tests.support.daemon import Nsqd

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src"
STEP_SECONDS_MAX = 240

pytestmark = pytest.mark.timeout(2 * STEP_SECONDS_MAX + 60)

# pip, in the environment of the tests, installs into another one: that one needs no pip.
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(["make", "-s", "wheel", f"DIST={folder}"], os.environ)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the installed programs."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, symlinks=True)
    environment = {**outside(), "CC": "/bin/false", "CXX": "/bin/false"}
    python = str(folder / "bin" / "python")
    install = ["--python", python, "install", "--only-binary", ":all:", str(wheel)]
    run([*PIP, *install], environment)
    yield folder / "bin"


def run(command: list[str], environment: os._Environ[str] | dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS_MAX,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def outside() -> dict[str, str]:
    """An environment that knows nothing of this repository's."""
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}


class InstalledNsqd(Nsqd):
    """An nsqd of another environment."""

    def __init__(self, programs: Path, data_path: Path) -> None:
        super().__init__(data_path)
        self.programs = programs

    def command(self) -> list[str]:
        program, *rest = super().command()
        return [str(self.programs / Path(program).name), *rest]


def test_the_wheel_holds_the_package_and_no_sources_of_the_core(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}
    core = {path.stem for path in SOURCE.rglob("*.pyx")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {Path(name).name.split(".")[0] for name in names if name.endswith(".so")} == core
    assert {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.pyi")} <= names
    assert "penstock/py.typed" in names
    assert {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.toml")} <= names
    assert "penstock/spark/log4j2.properties" in names
    folder = SOURCE / "penstock" / "admin"
    pages = [*folder.glob("templates/*.html"), *folder.glob("static/*")]
    assert len(pages) > 20
    assert {str(path.relative_to(SOURCE)) for path in pages} <= names
    assert not {name for name in names if Path(name).suffix in (".c", ".pyx", ".pyc")}


def test_the_wheel_says_what_it_runs_on(wheel: Path) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"penstock-[0-9.]+-{tag}-{tag}-\w+\.whl", wheel.name)


def test_installed_programs_tell_their_version_and_flags(programs: Path) -> None:
    environment = outside()
    for name in ("nsqd", "nsqlookupd"):
        program = str(programs / name)
        assert run([program, "-version"], environment).startswith(f"{name} v")
        assert "-log-level" in run([program, "--help"], environment)
    listed = run([str(programs / "penstock"), "--help"], environment)
    assert all(f"  {command} " in listed for command in COMMANDS)


def test_without_spark_a_pipeline_says_what_to_install(programs: Path) -> None:
    command = [str(programs / "penstock"), "pipeline", "run", "archive"]
    done = subprocess.run(command, env=outside(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        "penstock pipeline: PySpark is not installed.  Run: pip install 'penstock[spark]'\n"
    )


def test_the_installed_nsqd_serves(programs: Path, tmp_path: Path) -> None:
    with InstalledNsqd(programs, tmp_path) as nsqd:
        assert nsqd.get("/ping").text == "OK"
        assert nsqd.post("/pub?topic=wheel", b"hello").text == "OK"
        with nsqd.connect() as raw:
            assert raw.command(b"SUB wheel c\n")[1] == b"OK"
            raw.send(b"RDY 1\n")
            assert raw.message().body == b"hello"
        assert nsqd.terminate() == 0
    loaded = run(
        [str(programs / "python"), "-c", "import penstock.core.window as w; print(w.__file__)"],
        outside(),
    )
    assert Path(loaded.strip()).is_relative_to(programs.parent)
