"""The shape of the source tree: how modules depend on each other, and how large some things are.

A knot is a set of modules that all import one another, directly or around a corner: none of them
can be read, tested or moved alone.  Imports under ``TYPE_CHECKING`` count, as do those in
functions, stubs and ``.pxd`` files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import penstock
from penstock.engine.broker import Broker
from tests.meta.test_imports import SUFFIXES, imports_of
from tests.support.engine import Engine

ROOT = Path(penstock.__file__).parent

KNOT_SIZE_MAX = 3
ENGINE_MODULE_COUNT_MAX = 20
BROKER_MEMBER_COUNT_MAX = 20

Graph = Mapping[str, set[str]]


def module_of(path: Path) -> str:
    parts = ("penstock", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    """Which of our modules each of them imports; a stub and a ``.pxd`` belong to their module."""
    graph: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.p*"):
        if path.suffix in SUFFIXES:
            graph.setdefault(module_of(path), set()).update(imports_of(path))
    return {name: (found & graph.keys()) - {name} for name, found in graph.items()}


def reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for name in graph[left.pop()] - found:
            found.add(name)
            left.append(name)
    return found


def knots(graph: Graph) -> list[set[str]]:
    """The modules that import one another, as disjoint sets of two and more."""
    reach = {name: reachable(graph, name) for name in graph}
    found: list[set[str]] = []
    for name in sorted(graph):
        if name in reach[name] and not any(name in knot for knot in found):
            found.append({name} | {other for other in reach[name] if name in reach[other]})
    return found


def top_modules(folder: Path) -> set[str]:
    """The modules directly in a package, whatever they are written in."""
    return {path.stem for path in folder.glob("*.p*") if path.suffix in SUFFIXES} - {"__init__"}


def public_members(thing: object) -> set[str]:
    """Methods and attributes, of the class and of this instance, that others may use."""
    return {name for name in dir(thing) if not name.startswith("_")}


def test_no_knot_is_larger_than_three_modules() -> None:
    large = [sorted(knot) for knot in knots(import_graph()) if len(knot) > KNOT_SIZE_MAX]
    assert large == []


def test_knots_are_found_around_corners_and_apart() -> None:
    sample = {
        "a": {"b"},
        "b": {"c"},
        "c": {"d"},
        "d": {"a", "leaf"},
        "leaf": set[str](),
        "above": {"a"},
        "x": {"y"},
        "y": {"x"},
    }
    assert knots(sample) == [{"a", "b", "c", "d"}, {"x", "y"}]
    cut = dict(sample, d={"leaf"})
    assert knots(cut) == [{"x", "y"}]


def test_the_graph_has_compiled_modules_and_their_stubs() -> None:
    graph = import_graph()
    assert "penstock.core.appender" in graph["penstock.engine.writer"]
    assert "penstock.storage.topic_log" in graph["penstock.engine.writer"]
    assert "penstock.engine.base" in graph["penstock.engine.channel"], "in the stub"
    assert "penstock.engine.base" in graph["penstock.engine.shared"], "under TYPE_CHECKING"


def test_the_top_of_the_engine_is_small() -> None:
    found = top_modules(ROOT / "engine")
    assert len(found) <= ENGINE_MODULE_COUNT_MAX, sorted(found)


def test_a_module_counts_once_and_init_not_at_all(tmp_path: Path) -> None:
    for name in ("__init__.py", "a.pyx", "a.pxd", "a.pyi", "b.py", "notes.txt"):
        (tmp_path / name).touch()
    assert top_modules(tmp_path) == {"a", "b"}


def test_every_room_of_the_engine_has_its_rules() -> None:
    for path in (ROOT / "engine").glob("*/__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert "Rule 1: " in text, path
        missing = {name for name in top_modules(path.parent) if not listed(name, text)}
        assert not missing, f"{path} does not list {missing}"


def listed(module: str, text: str) -> bool:
    return any(module in line.split() for line in lines_of_modules(text))


def lines_of_modules(text: str) -> Iterator[str]:
    """The indented lines, of which each begins with the names of modules."""
    return (line for line in text.splitlines() if line.startswith("    "))


def test_a_module_that_a_room_does_not_list_is_noticed() -> None:
    text = "About a.\n\nRule 1: b.\n\n    c        what it is\n"
    assert listed("c", text)
    assert not listed("a", text) and not listed("b", text)


def test_the_broker_is_topics_and_lifecycle() -> None:
    members = public_members(Engine().broker)
    assert {"topics", "create_topic", "start"} <= members, "instance and class"
    assert len(members) <= BROKER_MEMBER_COUNT_MAX, sorted(members)


def test_members_of_class_and_instance_are_counted() -> None:
    class Sample(Broker):
        kind = "sample"

        def __init__(self) -> None:
            self.mine = self._hidden = 1

    assert public_members(Sample()) - public_members(Broker) == {"kind", "mine"}
