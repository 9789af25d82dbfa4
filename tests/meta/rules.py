"""The rules of docs/rules.md, and what a text cites of them.

A citation is R1 for a rule, S0-1, D-1 or A-1 for a row, and "R43 to R48" for all from one to the
other.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "rules.md"

TOKEN = re.compile(r"\b(S\d-\d+|[DA]-\d+|R\d+)\b")
RANGE = re.compile(r"\b(S\d-|[DA]-|R)(\d+) to (?:\1)?(\d+)\b")
HEADING = re.compile(rf"(?m)^#+ ({TOKEN.pattern} .*)$")


def cited(text: str) -> set[str]:
    """The rules and rows that ``text`` names."""
    found = set(TOKEN.findall(text))
    for prefix, start, end in RANGE.findall(text):
        found.update(f"{prefix}{n}" for n in range(int(start), int(end) + 1))
    return found


def headings(text: str | None = None) -> dict[str, str]:
    """The headings of rules and rows on a page, docs/rules.md if none is given, by number."""
    page = RULES.read_text(encoding="utf-8") if text is None else text
    found = [(row, heading) for heading, row in HEADING.findall(page)]
    twice = {row for row, _ in found if [r for r, _ in found].count(row) > 1}
    assert not twice, f"defined twice: {sorted(twice)}"
    return dict(found)


def anchor(heading: str) -> str:
    """What a link to a heading ends with, made as the common renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
