"""One word for one thing: no class name twice in a package, and no word that meant several."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
CLASS = re.compile(r"^(?:cdef )?(?:class|struct) ([A-Z]\w*)", re.M)

# `client.sync` has the classes of `client` for programs without asyncio, under the same names.
TWINS = {"client": {"Consumer", "Producer"}}


def class_places(package: Path) -> dict[str, set[str]]:
    """The modules that define each public class or struct of a package."""
    places = defaultdict(set)
    for path in package.rglob("*.p*"):
        if path.suffix in {".py", ".pyx", ".pxd"}:
            for name in CLASS.findall(path.read_text(encoding="utf-8")):
                places[name].add(str(path.relative_to(package).with_suffix("")))
    return places


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_name_occurs_once_in_a_package(package: str) -> None:
    places = class_places(ROOT / package)
    repeated = {name for name, where in places.items() if len(where) > 1}
    assert repeated == TWINS.get(package, set())


def test_a_second_class_of_a_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.pyx").write_text("cdef class Batch(Records):\n    pass\n")
    (tmp_path / "a.pxd").write_text("cdef class Batch:\n    pass\n")
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "b.py").write_text("class Batch:\n    class Inner: ...\nclass _Own: ...\n")
    assert class_places(tmp_path) == {"Batch": {"a", "room/b"}}


# Words that meant several things.  What says it: reported, notify, received, check, poll, resume,
# continue, remainder.
REPLACED = {
    *("told", "tell", "tells", "heard", "hear", "hears", "look", "looks", "looked", "rest"),
    *("said", "says", "say", "anew", "deed", "deeds"),
}
PHRASES = re.compile(r"go(?:es)?_on|went_on")
NAME = re.compile(r"\b[A-Za-z_]\w*\b")
PROSE = re.compile(r'"""(?:.|\n)*?"""|#[^\n]*|"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def replaced_words(text: str) -> set[str]:
    """The names in a file that have one of the words in them."""
    return {
        name
        for name in NAME.findall(PROSE.sub("", text))
        if REPLACED & {word.lower() for word in WORD.findall(name)} or PHRASES.search(name.lower())
    }


# The way of a packet is rebuilt as a whole, with its names.
KEPT = {"net/lookout"}
# What net/lookout is called with, and the flag --begin-anew.
KEPT_NAMES = {"heard", "begin_anew", "BEGIN_ANEW"}


@pytest.mark.parametrize("package", PACKAGES)
def test_replaced_words_are_no_names(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): words
        for path in (ROOT / package).rglob("*.p*")
        if path.suffix in {".py", ".pyi", ".pyx", ".pxd"}
        if str(path.relative_to(ROOT).with_suffix("")) not in KEPT
        if (words := replaced_words(path.read_text(encoding="utf-8")) - KEPT_NAMES)
    }
    assert found == {}


def test_a_replaced_word_is_found_in_names_only() -> None:
    text = 'def keep_rest(self):\n    """The rest."""\n    goes_on = restored = "told"  # look\n'
    assert replaced_words(text + "class Told: ...\n") == {"keep_rest", "goes_on", "Told"}


# Modules are nouns: a gerund names what is done in them, not what is there.
GERUND = re.compile(r"[a-z]{2,}ing$")
NOUNS = {"drawing", "listing", "monitoring", "staging"}


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_nouns(package: str) -> None:
    last_words = {path.stem.rpartition("_")[2] for path in (ROOT / package).rglob("*.p*")}
    assert {word for word in last_words if GERUND.fullmatch(word)} - NOUNS == set()
