"""One word for one thing: no public class name stands twice in a package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "penstock"
PACKAGES = sorted(path.name for path in SRC.iterdir() if (path / "__init__.py").exists())
_COMPILED = re.compile(r"^(?:cdef )?class (\w+)", re.M)

# `client.sync` has the classes of `client` for programs without asyncio, under the same names.
TWINS = {("client", "Consumer"), ("client", "Producer")}


def classes_of(path: Path) -> Iterable[str]:
    """The public classes of a module, in Python or Cython."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".pyx":
        names = _COMPILED.findall(text)
    else:
        names = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return [name for name in names if not name.startswith("_")]


def repeated(package: Path) -> dict[str, list[str]]:
    """The names that more than one module of a package, or of its rooms, gives to a class."""
    modules: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".pyx"):
            for name in classes_of(path):
                modules.setdefault(name, []).append(str(path.relative_to(package)))
    return {name: found for name, found in modules.items() if len(found) > 1}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_class_name_stands_twice_in_a_package(package: str) -> None:
    found = repeated(SRC / package)
    assert {n: where for n, where in found.items() if (package, n) not in TWINS} == {}


def test_what_may_stand_twice_does() -> None:
    assert {(p, name) for p in PACKAGES for name in repeated(SRC / p)} == TWINS


def test_a_repeated_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "a.py").write_text("class Batch:\n    class Inner: ...\nclass _Own: ...\n")
    (tmp_path / "b.pyx").write_text("cdef class Batch:\n    pass\ncdef class Other: pass\n")
    (tmp_path / "room" / "c.py").write_text("class Batch: ...\nclass _Own: ...\nclass Inner: ...\n")
    assert repeated(tmp_path) == {"Batch": ["a.py", "b.pyx", "room/c.py"]}
