"""nsqadmin's page Pipelines with real pipelines: nothing on it is posted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from penstock.errors import PipelineError
from penstock.pipeline.spec import Pipeline
from tests.admin.browser import Browser, Tab, launched
from tests.admin.cluster import Nsqadmin
from tests.spark.pipelines import Running, declared, publish, run
from tests.support.daemon import Nsqd
from tests.support.waits import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

TOPICS = [f"orders-{number:02d}" for number in range(12)]
SECONDS_MAX = 100.0


@pytest.fixture(scope="module")
def nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    path = tmp_path_factory.mktemp("nsqds")
    options = ("--broadcast-address=127.0.0.1",)
    with Nsqd(path / "one", *options) as one, Nsqd(path / "two", *options) as two:
        yield [one, two]


@pytest.fixture(scope="module")
def admin(nsqds: list[Nsqd]) -> Iterator[Nsqadmin]:
    with Nsqadmin(*(f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}" for nsqd in nsqds)) as one:
        yield one


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as running:
        yield running


def pipeline_of(folder: Path, nsqds: list[Nsqd], name: str, **tables: Any) -> Pipeline:
    addresses = ",".join(f"127.0.0.1:{nsqd.http_port}" for nsqd in nsqds)
    source = {"nsqd_http_addresses": addresses, "topics": "orders-*", **tables.pop("source", {})}
    sink = {"type": "parquet", "path": f"table-{name}"}
    return declared(folder, nsqds[0], name=name, source=source, sink=sink, **tables)


def row_of(admin: Nsqadmin, name: str) -> dict[str, Any] | None:
    rows = [row for row in admin.view("/pipelines")["pipelines"] if row["name"] == name]
    assert len(rows) <= 1, "a query is one entry"
    return rows[0] if rows else None


def tiles(tab: Tab, name: str) -> dict[str, str]:
    section = tab.page.locator(".pipeline").filter(has=tab.page.get_by_role("heading", name=name))
    names = section.locator(".tiles dt").all_inner_texts()
    return dict(zip(names, section.locator(".tiles dd").all_inner_texts(), strict=True))


def test_a_running_pipeline_over_many_topics_is_one_entry_with_its_figures(
    spark: SparkSession, browser: Browser, admin: Nsqadmin, nsqds: list[Nsqd], tmp_path: Path
) -> None:
    for topic in TOPICS:
        for nsqd in nsqds:
            publish(nsqd, topic, [f"{topic} {n}".encode() for n in range(10)])
    count = len(TOPICS) * len(nsqds) * 10
    pipeline = pipeline_of(tmp_path, nsqds, "lake", trigger={"interval": "500ms"})
    with Running(spark, pipeline, tmp_path) as running, browser.tab(admin.url) as tab:
        running.until(lambda: running.status.status.message_count == count)
        row = wait_for(
            lambda: row_of(admin, "lake"),
            lambda row: row and row["batch"] is not None and row["depth"] == 0,
            SECONDS_MAX,
        )
        assert row["query"] and row["channels"] == ["lake"] and row["error"] is None
        assert [topic["topic"] for topic in row["topics"]] == TOPICS
        assert (row["batch"], row["rows"]) == (0, count), "of the whole batch, once"
        assert row["state"] in ("running", "waiting")
        assert row["processed_rate"] > 0 and row["batch_ms"] > 0
        assert "parquet" in row["sink"] and "table-lake" in row["sink"]
        assert {node["depth"] for node in row["nodes"]} == {0} and len(row["nodes"]) == 2
        tab.open("/pipelines")
        expect(tab.page.locator(".pipeline")).to_have_count(1)
        shown = tiles(tab, "lake")
        assert (shown["Waiting"], shown["Batch"], shown["Rows"]) == ("0", "0", str(count))
        for name in ("Processed", "Batch time", "Lag"):
            assert shown[name] != "\N{EN DASH}", name
        expect(tab.page.locator(".pipeline .section-head")).to_contain_text("12 topics as lake")
        tab.screenshot("pipelines-real-light")
        # Without messages it waits, and says so by itself.
        expect(tab.page.locator(".pipeline .badge").first).to_have_text(
            "waiting for messages", timeout=SECONDS_MAX * 1000
        )
    wait_for(lambda: row_of(admin, "lake"), lambda row: row["state"] == "ended", SECONDS_MAX)
    row = row_of(admin, "lake")
    assert row is not None and row["rows"] == count, "what it did stays"


def test_a_pipeline_that_fails_in_its_first_batch_is_shown_as_failed_with_its_reason(
    spark: SparkSession, browser: Browser, admin: Nsqadmin, nsqds: list[Nsqd], tmp_path: Path
) -> None:
    publish(nsqds[0], TOPICS[0], [b"one more"])
    broken = pipeline_of(
        *(tmp_path, nsqds, "broken"),
        transform={"sql": "SELECT raise_error('boom in the very first batch') AS x FROM input"},
    )
    with pytest.raises(PipelineError, match="boom in the very first batch"):
        run(spark, broken, tmp_path)
    row = wait_for(
        lambda: row_of(admin, "broken"), lambda row: row and row["state"] == "failed", SECONDS_MAX
    )
    assert "boom in the very first batch" in row["error"]
    with browser.tab(admin.url) as tab:
        tab.open("/pipelines")
        section = tab.page.locator(".pipeline[data-state=failed]")
        expect(section.locator(".badge.bad")).to_have_text("failed")
        expect(section.locator(".banner.bad")).to_contain_text("boom in the very first batch")
        tab.screenshot("pipelines-failed-light")
    # Mended and started again it is the same entry, and well.
    mended = pipeline_of(tmp_path, nsqds, "broken", source={"fail_on_data_loss": False})
    run(spark, mended, tmp_path)
    row = wait_for(
        lambda: row_of(admin, "broken"), lambda row: row["state"] == "ended", SECONDS_MAX
    )
    assert row["error"] is None and row["depth"] == 0
