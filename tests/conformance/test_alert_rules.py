"""Alert rules in examples/prometheus: whole, and about metrics that a real nsqd has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.wire import commands
from tests.meta.coverage_table import ROOT
from tests.support.daemon import Nsqd
from tests.support.waits import eventually

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


def test_the_first_burial_on_a_channel_without_a_policy_is_an_alert(tmp_path: Path) -> None:
    """Its metric begins with that number, of which increase() sees nothing."""
    with Nsqd(tmp_path) as nsqd, nsqd.connect() as raw:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        sample = 'penstock_channel_burials_total{topic="t",channel="c",reason="bury"} '
        assert sample not in nsqd.get("/metrics").text
        raw.command(commands.identify({"feature_negotiation": True, "bury": True}))
        raw.subscribe("t")
        nsqd.post("/pub?topic=t", b"bad")
        raw.send(b"BURY " + raw.receive().id + b"\n")
        assert eventually(lambda: f"{sample}1\n" in nsqd.get("/metrics").text)
    rules = rules_of(ROOT / "examples" / "prometheus" / "penstock.rules.yml")
    first = "(penstock_channel_burials_total > 0 unless penstock_channel_burials_total offset 15m)"
    assert first in rules["PenstockDeadLetters"]
