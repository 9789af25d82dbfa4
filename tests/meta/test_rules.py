"""Every citation of a rule leads to docs/rules.md, and every rule there is cited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.meta.coverage_table import TARGET
from tests.meta.rules import ROOT, RULES, anchor, cited, headings

SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".md"}
FOLDERS = ("src", "tests", "docs", "bench", "examples")
# The rules themselves, the page that is generated from them, and the samples below.
LEFT_OUT = {RULES, TARGET, Path(__file__), ROOT / "tests" / "meta" / "rules.py"}


def files(root: Path) -> Iterator[Path]:
    """The files in which a citation counts."""
    yield from root.glob("*.md")
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.suffix in SUFFIXES and path not in LEFT_OUT:
                yield path


def citations(root: Path = ROOT) -> dict[str, list[str]]:
    """The files that cite a rule or row, by its number."""
    found: dict[str, list[str]] = {}
    for path in sorted(files(root)):
        for row in cited(path.read_text(encoding="utf-8")):
            found.setdefault(row, []).append(str(path.relative_to(root)))
    return found


def test_every_citation_has_a_heading() -> None:
    known = headings()
    unknown = {row: where for row, where in citations().items() if row not in known}
    assert unknown == {}, "define them in docs/rules.md"


def test_every_heading_is_cited() -> None:
    assert set(headings()) - set(citations()) == set()


def test_every_heading_has_a_paragraph() -> None:
    parts = re.split(r"(?m)^#+ ", RULES.read_text(encoding="utf-8"))
    text = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}
    assert [heading for heading in headings().values() if not text[heading]] == []


def test_paths_on_the_page_exist() -> None:
    named = re.findall(
        r"`([\w./-]+/[\w.-]+\.(?:py|pyx|pxd|md))`", RULES.read_text(encoding="utf-8")
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_names_in_the_drawing_of_the_ends_exist() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = page.partition("\n## The ends of a log\n")[2].partition("\n## ")[0]
    names = re.findall(r"`([A-Z]\w+)\.(\w+)", section)
    assert names
    sources = [
        p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*") if p.suffix in SUFFIXES
    ]
    for owner, name in names:
        holders = [text for text in sources if re.search(rf"\bclass {owner}\b", text)]
        assert any(re.search(rf"\b{name}\b", text) for text in holders), f"{owner}.{name}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the loop never waits (R9)", {"R9"}),
        ("R16, D-5, S4-6: short delays", {"R16", "D-5", "S4-6"}),
        ("bad days (R45 to R48)", {"R45", "R46", "R47", "R48"}),
        ("S1-1 to S1-3, A-1", {"S1-1", "S1-2", "S1-3", "A-1"}),
        ("S1-1 to 3", {"S1-1", "S1-2", "S1-3"}),
        ("R1 to S0-3", {"R1", "S0-3"}),
        ("R99", {"R99"}),
        ("S9-1", {"S9-1"}),
        ("offsets/N-1, CRC32, RDY 1, UTF-8, Rule 1, ERR1, R1x, SHA-1", set()),
    ],
)
def test_citations_are_found_in_a_text(text: str, expected: set[str]) -> None:
    assert cited(text) == expected


def test_citations_are_found_in_all_kinds_of_files(tmp_path: Path) -> None:
    samples = {
        "README.md": "R1",
        "src/a/b.pyx": "# R2",
        "src/a/b.c": "R3",
        "tests/test_a.py": '"""R4."""',
        "docs/a.md": "S0-1 to S0-2",
        "elsewhere/a.py": "R5",
    }
    for name, text in samples.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert citations(tmp_path) == {
        "R1": ["README.md"],
        "R2": ["src/a/b.pyx"],
        "R4": ["tests/test_a.py"],
        "S0-1": ["docs/a.md"],
        "S0-2": ["docs/a.md"],
    }


def test_headings_are_those_that_begin_with_a_number() -> None:
    page = "# Rules\n\n## R1 One\n\nR2 is cited.\n\n## Rows S0\n\n### S0-1 In flight: yes\n"
    assert headings(page) == {"R1": "R1 One", "S0-1": "S0-1 In flight: yes"}
    assert anchor("S0-1 In flight: yes") == "s0-1-in-flight-yes"


def test_a_rule_that_is_defined_twice_is_an_error() -> None:
    with pytest.raises(AssertionError, match="R1"):
        headings("## R1 One\n\n## R1 Two\n")
