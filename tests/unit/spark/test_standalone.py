from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.errors import SparkSetupError
from penstock.spark import standalone


def test_without_a_cluster_there_is_nothing_to_stop(tmp_path: Path) -> None:
    assert standalone.status(tmp_path) is None
    assert standalone.stop(tmp_path) == 0


def test_a_process_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    """Numbers are given again: this one is now that of the tests."""
    record = {"master": "spark://x:1", "processes": [{"name": "master", "pid": os.getpid()}]}
    (tmp_path / standalone.NAME).write_text(json.dumps(record))
    assert standalone.status(tmp_path) is None
    assert standalone.stop(tmp_path) == 0
    assert not (tmp_path / standalone.NAME).exists()


def test_a_master_that_does_not_start_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "MASTER", "org.apache.spark.deploy.master.Nobody")
    monkeypatch.setitem(standalone.READY, standalone.MASTER, standalone.READY[standalone.WORKER])
    with pytest.raises(
        SparkSetupError, match=r"master of the cluster does not start; see .*master"
    ):
        standalone.start(standalone.ClusterPlan(tmp_path, port=0))
    assert standalone.status(tmp_path) is None
