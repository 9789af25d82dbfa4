"""Which test or benchmark covers which rule: writes docs/coverage.md.

    python -m tests.meta.coverage_table

The rows are the headings of docs/rules.md.  A test covers a row when its docstring, or its
module's, names the row.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.meta.rules import anchor, cited, headings

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "coverage.md"

HEADER = """# What covers what

The tests and benchmarks that name each rule and row of [rules.md](rules.md). This page is
generated: `python -m tests.meta.coverage_table`.

"""


def places(path: Path) -> Iterator[tuple[str, str]]:
    """(row, place) for each row that a docstring in ``path`` names."""
    relative = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        where = relative if isinstance(node, ast.Module) else f"{relative} `{node.name}`"
        for row in cited(ast.get_docstring(node) or ""):
            yield row, where


def covered() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {row: [] for row in headings()}
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("bench/*.py")]
    for path in sorted(files):
        for row, where in places(path):
            if row in found and where not in found[row]:
                found[row].append(where)
    return found


def table() -> str:
    lines = [HEADER, "| Row | Covered by |\n|---|---|\n"]
    titles = headings()
    for row, where in covered().items():
        link = f"[{row}](rules.md#{anchor(titles[row])})"
        lines.append(f"| {link} | {'<br>'.join(sorted(where))} |\n")
    return "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(table())
