"""Links between the pages of the repository lead somewhere, and README leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]


def links(page: Path) -> list[tuple[str, str]]:
    """(file, anchor) of each link that stays in the repository; either may be empty."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
    return [(target, anchor) for target, anchor in found if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Those of a page's headings, made as the common renderers make them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def test_links_lead_to_files_and_headings() -> None:
    assert PAGES
    broken = set()
    for page in PAGES:
        for target, anchor in links(page):
            file = page.parent / target if target else page
            wrong = not file.exists() or (anchor and anchor not in anchors(file))
            if wrong:
                broken.add(f"{page.relative_to(REPOSITORY)}: {target}#{anchor}")
    assert broken == set()


def test_readme_leads_to_every_page() -> None:
    linked = {target for target, _ in links(REPOSITORY / "README.md")}
    pages = {str(page.relative_to(REPOSITORY)) for page in PAGES} - {"README.md"}
    assert pages - linked == set()
