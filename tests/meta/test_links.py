"""Links between the pages of the repository lead somewhere, and README leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

from tests.meta.rules import anchor

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]


def links(page: Path) -> list[tuple[str, str]]:
    """(file, fragment) of each link that stays in the repository; either may be empty."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
    return [(target, fragment) for target, fragment in found if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Those of a page's headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {anchor(heading) for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    assert PAGES
    broken = set()
    for page in PAGES:
        for target, fragment in links(page):
            file = page.parent / target if target else page
            wrong = not file.exists() or (fragment and fragment not in anchors(file))
            if wrong:
                broken.add(f"{page.relative_to(REPOSITORY)}: {target}#{fragment}")
    assert broken == set()


def test_readme_leads_to_every_page() -> None:
    linked = {target for target, _ in links(REPOSITORY / "README.md")}
    pages = {str(page.relative_to(REPOSITORY)) for page in PAGES} - {"README.md"}
    assert pages - linked == set()


def test_readme_has_one_line_for_each_page() -> None:
    table = README.partition("## Documentation\n")[2].partition("\nThe source ")[0]
    targets = [target for target, _ in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", table)]
    assert len(targets) > 20
    assert sorted(targets) == sorted(set(targets))
