"""The examples, and the code in the documentation, are right."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.consistency import check
from penstock.pipeline.example import example
from penstock.pipeline.spec_file import from_table, read_pipeline
from penstock.pipeline.validation import validate
from tests.spark.pipelines import bodies, publish, run, topics
from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples" / "pipelines"
FILES = sorted([*EXAMPLES.glob("*.toml"), EXAMPLES / "sessions.py"])
GUIDE = (REPOSITORY / "docs" / "spark.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_can_be_run(spark: SparkSession, path: Path) -> None:
    assert "rows of" in validate(spark, read_pipeline(str(path)))


def test_the_guide_s_pipelines_can_be_run(spark: SparkSession, tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", GUIDE, re.S)
    pipeline = check(from_table(tomllib.loads(text), (), tmp_path))
    assert validate(spark, pipeline).startswith("rows of id bigint, customer string")
    [module] = [
        code for code in re.findall(r"```python\n(.*?)```", GUIDE, re.S) if "Pipeline(" in code
    ]
    (tmp_path / "sizes.py").write_text(module)
    assert "size int" in validate(spark, read_pipeline(str(tmp_path / "sizes.py")))


def test_the_commented_example_can_be_run_and_names_every_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    text = example("orders", "orders.toml")
    path = tmp_path / "orders.toml"
    path.write_text(text)
    assert "customer string" in validate(spark, read_pipeline(str(path)))
    # Each line taken out of its comment is a key that is known.
    for line in re.findall(r"(?m)^# (\w+ = .*)$", text):
        tomllib.loads(line)


def test_an_example_with_a_function_that_fails(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "pipelines")
    address = f"source.nsqd_http_addresses=127.0.0.1:{nsqd.http_port}"
    pipeline = read_pipeline(
        str(tmp_path / "pipelines" / "enrich.toml"),
        [
            *(address, "source.lookupd_http_addresses="),
            *("trigger.available_now=true", "retry.max_attempts=1"),
        ],
    )
    orders = [{"id": n, "customer": "anna", "total": 10.0} for n in range(50)]
    publish(nsqd, "orders", [*orders, {"id": 50, "customer": "emil", "total": 1.0}])
    run(spark, pipeline, tmp_path)
    priced = [json.loads(body) for body in bodies(spark, nsqd, "priced")]
    assert {each["price"] for each in priced} == {9.0}
    assert len(priced) + topics(nsqd)["enrich.dead"] == 51


@pytest.mark.slow
def test_the_declarative_project_runs_twice(nsqd: Nsqd, tmp_path: Path) -> None:
    project = tmp_path / "declarative"
    shutil.copytree(REPOSITORY / "examples" / "declarative", project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/penstock-shop", str(tmp_path)))
    environment = {
        **os.environ,
        "NSQD_HTTP_ADDRESS": f"127.0.0.1:{nsqd.http_port}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
    }
    orders = [{"id": n + 1, "customer": "anna", "total": n} for n in range(100)]
    for big_count in (49, 98):
        publish(nsqd, "orders", [*orders, b"no order"])
        done = subprocess.run(
            ["spark-pipelines", "--conf", "spark.sql.catalogImplementation=hive", "run"],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert topics(nsqd)["big-orders"] == big_count
