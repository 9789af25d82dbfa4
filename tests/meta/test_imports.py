"""The import arrows of the architecture: which package may import which (``arrows.py``).

Every package may use the modules directly under ``penstock`` (errors, clock, record, version),
which use nothing but each other; ``penstock/__init__.py`` also names the client, its public face,
and ``penstock/__main__.py`` the commands.  An import inside a function counts like any other; one
under ``TYPE_CHECKING`` does too, because a type one has to know is a thing one depends on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.meta.arrows import ALLOWED, drawing, shown

ROOT = Path(penstock.__file__).parent
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd"}

# What the compiled core must not reach: Rule "no I/O, no clock, no logging".
CORE_FORBIDDEN = {"os", "io", "time", "datetime", "socket", "asyncio", "logging", "threading"}


def modules_imported(path: Path) -> Iterator[str]:
    """Yield the full names a Python file imports; ``from a import b`` yields a and a.b."""
    package = ("penstock", *path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*parts, *([node.module] if node.module else [])))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def modules_cimported(path: Path) -> Iterator[str]:
    """Yield what a Cython file imports or cimports."""
    text = path.read_text(encoding="utf-8")
    for match in re.finditer(r"^\s*(?:from\s+([\w.]+)\s+c?import|c?import\s+([\w.]+))", text, re.M):
        yield match[1] or match[2]


def package_of(module: str) -> str | None:
    """Return the package of ours that a module belongs to, None for all others."""
    parts = module.split(".")
    if parts[0] != "penstock" or len(parts) < 2 or not (ROOT / parts[1]).is_dir():
        return None
    return parts[1]


def sources(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.p*") if path.suffix in SUFFIXES)


def imports_of(path: Path) -> Iterator[str]:
    python = path.suffix in (".py", ".pyi")
    yield from modules_imported(path) if python else modules_cimported(path)


def test_every_package_has_its_arrows() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_along_the_arrows(package: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(package)
        for module in imports_of(path)
        if package_of(module) not in {None, package, *ALLOWED[package]}
    }
    assert wrong == set()


def test_modules_above_the_packages_import_none_of_them() -> None:
    faces = {"__init__": "client", "__main__": "cli"}
    wrong = {
        f"{path.name} imports {module}"
        for path in ROOT.glob("*.py")
        for module in modules_imported(path)
        if package_of(module) not in {None, faces.get(path.stem)}
    }
    assert wrong == set()


def test_the_core_does_no_io_and_knows_no_clock() -> None:
    wrong = {
        f"{path.name} imports {module}"
        for path in sources("core")
        for module in imports_of(path)
        if module.split(".")[0] in CORE_FORBIDDEN
    }
    assert wrong == set()


def test_the_page_draws_the_arrows() -> None:
    assert shown() == drawing(ALLOWED), "run: python -m tests.meta.arrows"


def test_the_drawing_leaves_out_what_follows() -> None:
    table = {"a": set(), "b": {"a"}, "c": {"a", "b"}}
    assert drawing(table).split("\n") == ["    a", "    b         -> a", "    c         -> b"]


def test_what_a_package_imports_it_may_reach() -> None:
    """The drawing says "and everything below": so the table has to."""
    for package, needs in ALLOWED.items():
        assert needs >= {below for need in needs for below in ALLOWED[need]}, package


def test_the_arrows_have_no_cycle() -> None:
    placed: set[str] = set()
    while len(placed) < len(ALLOWED):
        free = {name for name, needs in ALLOWED.items() if name not in placed and needs <= placed}
        assert free, f"a cycle among {set(ALLOWED) - placed}"
        placed |= free


def test_relative_and_nested_imports_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine").mkdir()
    path = tmp_path / "engine" / "sample.py"
    path.write_text(
        "from ..nsqd import auth\ndef f():\n    from . import ids\n    import os.path\n"
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert set(modules_imported(path)) == {
        *("penstock.nsqd", "penstock.nsqd.auth", "penstock.engine", "penstock.engine.ids"),
        "os.path",
    }
