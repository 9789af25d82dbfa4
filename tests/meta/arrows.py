"""Which package may import which, and the drawing of it in docs/ARCHITECTURE.md.

`python -m tests.meta.arrows` writes the drawing again after a change of the table.
"""

from __future__ import annotations

import re
from pathlib import Path

ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "wire": {"core"},
    "settings": set(),
    "storage": {"core", "wire"},
    "engine": {"core", "wire", "settings", "storage"},
    "net": {"core", "wire", "settings"},
    "nsqd": {"core", "wire", "settings", "net", "storage", "engine"},
    "lookupd": {"core", "wire", "settings", "net"},
    "admin": {"core", "wire", "settings", "net"},
    "client": {"core", "wire", "settings", "net"},
    "spark": {"core", "wire", "settings", "net", "client"},
    "pipeline": {"core", "wire", "settings", "net", "client", "spark"},
    "cli": {
        *("core", "wire", "settings", "net", "storage", "engine"),
        *("nsqd", "lookupd", "admin", "client", "spark", "pipeline"),
    },
}

PAGE = Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md"
_BLOCK = re.compile(r"(?<=<!-- arrows -->\n\n).*?(?=\n\n<!-- end of arrows -->)", re.S)


def drawing(allowed: dict[str, set[str]]) -> str:
    """One line a package: what it imports, without what that imports anyway."""
    lines = []
    for package, needs in allowed.items():
        implied = {below for need in needs for below in allowed[need]}
        direct = [name for name in allowed if name in needs - implied]
        lines.append(f"    {package:<9} -> {', '.join(direct)}" if direct else f"    {package}")
    return "\n".join(lines)


def shown() -> str:
    """The drawing as the page has it."""
    found = _BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert found, "the page has no place for the arrows"
    return found[0]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_BLOCK.sub(lambda _: drawing(ALLOWED), text), encoding="utf-8")
