"""docs/admin.md tells of every route and action of nsqadmin, and of none that is not there."""

from __future__ import annotations

import dataclasses
import re

from penstock.admin.app import Admin
from penstock.admin.daemon import router_of
from penstock.admin.options import AdminOptions
from penstock.admin.posted_actions import ACTIONS
from tests.meta.coverage_table import ROOT

PAGE = (ROOT / "docs" / "admin.md").read_text(encoding="utf-8")


def test_the_page_has_every_route_and_no_other() -> None:
    options = dataclasses.replace(
        AdminOptions(), graphite_url="http://g", proxy_graphite=True, nsqd_http_addresses=("h:1",)
    )
    known = set(router_of(Admin(options)).routes())
    told = set(re.findall(r"`([A-Z]+) (/[^`]*)`", PAGE))
    assert told - known == set(), "told of, but not there"
    assert known - told == {("GET", "/ping")}, "not told of"


def test_the_page_has_every_action() -> None:
    for action in ACTIONS:
        assert f"`{action}`" in PAGE
        assert action.capitalize() in PAGE
