"""The policy files shown in docs/log.md are ones that nsqd reads."""

from __future__ import annotations

import re

import pytest

from penstock.engine.policy.file import parse_rules
from tests.meta.coverage_table import ROOT

PAGE = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
LINE = r"    (?:\[\[policy\]\]|[a-z_]+ = .*)\n"
BLOCKS = re.findall(rf"(?m)(?:^{LINE}|^\n(?=    \[\[policy))+", PAGE)


def test_there_are_policy_files_on_the_page() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_policy_file_on_the_page_is_valid(block: str) -> None:
    text = re.sub(r"(?m)^    ", "", block)
    assert parse_rules(text, "p.toml").count == text.count("[[policy]]")
