"""Which test or benchmark covers which rule: writes docs/coverage.md.

    python -m tests.meta.coverage_table

A test covers a row when its docstring, or its module's, names the row.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "coverage.md"

ROWS = {
    "S0": ("At least once", 8),
    "S1": ("Sampling scan", 7),
    "S2": ("Deferred messages on disk", 6),
    "S3": ("Push to consumers", 8),
    "S4": ("Publish and consume", 10),
}
DEFERRED_COUNT = 18
MEASURED_COUNT = 8
RULE_COUNT = 19

TOKEN = re.compile(r"\b(S[0-4]-\d+|[DA]-\d+|R\d+)\b")
RANGE = re.compile(r"\b(S[0-4]-|[DA]-|R)(\d+) to (?:S[0-4]-|[DA]-|R)?(\d+)\b")

HEADER = """# What covers what

Every rule of the design (R1 to R19) and every row that the notes on NSQ ask for (S: mechanisms,
D: weaknesses of an earlier deferred queue, A: measured acceptance) has a test or a benchmark that
names it. This page is generated: `python -m tests.meta.coverage_table`.

"""


def all_rows() -> list[str]:
    rows = [f"R{n}" for n in range(1, RULE_COUNT + 1)]
    for prefix, (_, count) in ROWS.items():
        rows += [f"{prefix}-{n}" for n in range(1, count + 1)]
    rows += [f"D-{n}" for n in range(1, DEFERRED_COUNT + 1)]
    return rows + [f"A-{n}" for n in range(1, MEASURED_COUNT + 1)]


def named(text: str) -> set[str]:
    found = set(TOKEN.findall(text))
    for prefix, start, end in RANGE.findall(text):
        found.update(f"{prefix}{n}" for n in range(int(start), int(end) + 1))
    return found


def places(path: Path) -> Iterator[tuple[str, str]]:
    """(row, place) for each row that a docstring in ``path`` names."""
    relative = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        where = relative if isinstance(node, ast.Module) else f"{relative} `{node.name}`"
        for row in named(ast.get_docstring(node) or ""):
            yield row, where


def covered() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {row: [] for row in all_rows()}
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("bench/*.py")]
    for path in sorted(files):
        for row, where in places(path):
            if row in found and where not in found[row]:
                found[row].append(where)
    return found


def table() -> str:
    lines = [HEADER, "| Row | Covered by |\n|---|---|\n"]
    for row, where in covered().items():
        lines.append(f"| {row} | {'<br>'.join(sorted(where))} |\n")
    return "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(table())
