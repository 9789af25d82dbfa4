"""One word for one thing: names that are easy to confuse."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parent
CLASS = re.compile(r"^(?:cdef )?(?:class|struct) ([A-Z]\w*)", re.M)


def class_places(package: Path) -> dict[str, set[str]]:
    """The modules that define each public class or struct of a package."""
    places = defaultdict(set)
    for path in package.rglob("*.p*"):
        if path.suffix in {".py", ".pyx", ".pxd"}:
            for name in CLASS.findall(path.read_text(encoding="utf-8")):
                places[name].add(str(path.relative_to(package).with_suffix("")))
    return places


@pytest.mark.parametrize("package", ["core", "storage", "wire"])
def test_a_class_name_occurs_once_in_a_package(package: str) -> None:
    places = class_places(ROOT / package)
    assert places, package
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_second_class_of_a_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.pyx").write_text("cdef class Batch(Records):\n    pass\n")
    (tmp_path / "a.pxd").write_text("cdef class Batch:\n    pass\n")
    (tmp_path / "b.py").write_text("class Batch:\n    pass\n")
    assert class_places(tmp_path) == {"Batch": {"a", "b"}}


# Words that meant several things, and what says it: stated, received, check, resume, remainder.
REPLACED = {"told", "tells", "heard", "hears", "look", "looked", "rest", "go_on"}
NAME = re.compile(r"\b[A-Za-z_]\w*\b")
PROSE = re.compile(r'"""(?:.|\n)*?"""|#[^\n]*|"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'")


def replaced_words(text: str) -> set[str]:
    """The names in a file that have one of the words in them."""
    names = set(NAME.findall(PROSE.sub("", text)))
    return {
        name for name in names if REPLACED & set(name.lower().split("_")) or "go_on" in name.lower()
    }


@pytest.mark.parametrize("package", ["core", "storage", "wire"])
def test_replaced_words_are_no_names(package: str) -> None:
    found = {
        path.name: words
        for path in (ROOT / package).rglob("*.p*")
        if path.suffix in {".py", ".pyi", ".pyx", ".pxd"}
        if (words := replaced_words(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_replaced_word_is_found_in_names_only() -> None:
    text = 'def keep_rest(self):\n    """The rest."""\n    go_on = "told"  # look\n'
    assert replaced_words(text) == {"keep_rest", "go_on"}
