"""The table of docs/ARCHITECTURE.md lists every module of the source tree, and no others.

A path in its first column is relative to ``src/penstock``.  A name without a folder is in the
folder of the path before it, and ``*`` stands for any characters.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import penstock

ROOT = Path(penstock.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md"
HEADING = "| Read | To learn |\n|---|---|\n"
SUFFIXES = (".py", ".pyx", ".pxd")


def listed_paths(page: str) -> list[str]:
    """The paths of the first column, each with its folder."""
    found = []
    for line in page.partition(HEADING)[2].partition("\n\n")[0].splitlines():
        folder = PurePosixPath()
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
            path = PurePosixPath(name)
            folder = path.parent if "/" in name else folder
            found.append(str(folder / path.name))
    return found


def unlisted(root: Path, patterns: list[str]) -> set[str]:
    """The modules below ``root`` that no pattern matches, without their suffix."""
    modules = {path for path in root.rglob("*.p*") if path.suffix in SUFFIXES}
    listed = {path for pattern in patterns for path in root.glob(pattern)}
    return {
        str(module.relative_to(root).with_suffix(""))
        for module in modules
        if module.stem != "__init__"
        and not any(module.with_suffix(suffix) in listed for suffix in SUFFIXES)
    }


def test_every_module_is_in_the_table() -> None:
    paths = listed_paths(PAGE.read_text(encoding="utf-8"))
    assert "core/window.pyx" in paths
    assert unlisted(ROOT, paths) == set()


def test_every_path_of_the_table_exists() -> None:
    paths = listed_paths(PAGE.read_text(encoding="utf-8"))
    assert [path for path in paths if not any(ROOT.glob(path))] == []


def test_a_name_without_a_folder_is_in_the_one_before_it() -> None:
    page = (
        f"{HEADING}| `clock.py`, `a/b.py`, `c.pyx`, `d/*.py` | `e.py` |\n| `f.py` | g |\n\n| `h` |"
    )
    assert listed_paths(page) == ["clock.py", "a/b.py", "a/c.pyx", "d/*.py", "f.py"]


def test_a_module_that_is_not_listed_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/__init__.py", "a/b.pyx", "a/b.pxd", "a/c.py", "d.py", "notes.txt"):
        (tmp_path / name).touch()
    assert unlisted(tmp_path, ["d.py", "a/b.pyx"]) == {"a/c"}
    assert unlisted(tmp_path, ["*.py", "a/*"]) == set()
