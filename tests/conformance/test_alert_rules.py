"""Alert rules in examples/prometheus: whole, and about metrics that a real nsqd has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.meta.coverage_table import ROOT
from tests.support.daemon import Nsqd

RULES = sorted((ROOT / "examples" / "prometheus").glob("*.yml"))
LINE = re.compile(
    r"(?:groups:|  - name: [\w-]+|    rules:|      - alert: (?P<alert>Penstock\w+)"
    r"|        expr: (?P<expr>\S.*)|        for: (?P<wait>\d+[smhd])|\s*#.*|)"
)


def rules_of(path: Path) -> dict[str, str]:
    """The expression of each alert; every line is one that Prometheus knows."""
    found: dict[str, str] = {}
    alert = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, f"{path.name}: {line!r}"
        if match["alert"]:
            assert match["alert"] not in found, "no alert twice"
            alert = match["alert"]
            found[alert] = ""
        elif match["expr"]:
            assert not found[alert], f"{alert} has two expressions"
            found[alert] = match["expr"]
    return found


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_every_alert_is_about_metrics_that_nsqd_has(path: Path, tmp_path: Path) -> None:
    rules = rules_of(path)
    assert rules and all(rules.values())
    for expr in rules.values():
        assert expr.count("(") == expr.count(")") and expr.count("[") == expr.count("]"), expr
    with Nsqd(tmp_path) as nsqd:
        page = nsqd.get("/metrics").text
    known = set(re.findall(r"(?m)^# TYPE (penstock_\w+) ", page))
    asked = set(re.findall(r"\bpenstock_\w+", str(rules)))
    assert asked <= known, f"nsqd has no {asked - known}"
