from __future__ import annotations

import os

import pytest

from penstock.errors import SparkSetupError
from penstock.spark import session
from penstock.spark.session import JvmLog, SessionPlan, check_pyspark, reason_of, settings_of

RAW = "spark.hadoop.fs.file.impl"
STORE = "spark.sql.streaming.stateStore.providerClass"
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def test_a_stateless_query_on_local_files_gets_the_fast_ones() -> None:
    settings = settings_of(SessionPlan())
    assert settings[RAW].endswith("RawLocalFileSystem")
    assert settings[CHECKPOINTS].endswith("FileSystemBasedCheckpointFileManager")
    assert STORE not in settings


def test_state_is_kept_in_rocksdb_which_needs_checksummed_files() -> None:
    settings = settings_of(SessionPlan(stateful=True))
    assert RAW not in settings
    assert settings[STORE].endswith("RocksDBStateStoreProvider")


def test_files_elsewhere_keep_what_spark_does_for_them() -> None:
    assert {RAW, CHECKPOINTS} & set(settings_of(SessionPlan(local_files=False))) == set()


def test_a_cluster_is_not_told_addresses_of_this_machine() -> None:
    settings = settings_of(SessionPlan(master="spark://10.0.0.1:7077"))
    assert "spark.driver.host" not in settings
    assert "spark.sql.shuffle.partitions" not in settings
    assert RAW not in settings


def test_what_the_user_sets_wins() -> None:
    mine = {"spark.ui.enabled": "true", RAW: "x", JAVA_OPTIONS: "-Dpenstock.log=info"}
    settings = settings_of(SessionPlan(conf=mine))
    assert settings["spark.ui.enabled"] == "true"
    assert settings[RAW] == "x"
    assert settings[JAVA_OPTIONS].startswith("-Dlog4j2")
    assert settings[JAVA_OPTIONS].endswith("-Dpenstock.log=info")


@pytest.mark.parametrize(
    ("master", "local", "count"),
    [
        ("local", True, 1),
        ("local[3]", True, 3),
        ("local[*]", True, os.cpu_count()),
        ("local[2,4]", True, 2),
        ("local-cluster[2,1,1024]", False, 1),
        ("yarn", False, 1),
        ("k8s://https://localhost:6443", False, 1),
    ],
)
def test_masters_are_told_apart(master: str, local: bool, count: int) -> None:
    plan = SessionPlan(master=master)
    assert (plan.local, plan.core_count) == (local, count)


def test_a_missing_or_old_pyspark_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(SparkSetupError, match=r"not installed.*pip install 'penstock\[spark\]'"):
        check_pyspark()
    monkeypatch.setattr(metadata, "version", lambda name: "3.5.1")
    with pytest.raises(SparkSetupError, match=r"3\.5\.1 is too old, 4\.2 is needed"):
        check_pyspark()


def test_the_jvm_s_log_comes_line_by_line_without_its_noise() -> None:
    shown: list[str] = []
    log = JvmLog(shown.append)
    os.write(log.write_fd, b"WARNING: Using incubator modules: x\nbad \xff heap\nno")
    os.write(log.write_fd, b" end\n")
    log.close()
    assert log.last_lines() == "bad \\xff heap no end"
    assert shown == ["bad \\xff heap", "no end"]


ENDED = b"""Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""


def test_a_worker_s_end_is_noise_and_other_tracebacks_are_not() -> None:
    shown: list[str] = []
    log = JvmLog(shown.append)
    os.write(log.write_fd, ENDED + b"between\n" + ENDED.replace(b"pyspark", b"mine") + b"Traceback")
    log.close()
    log.last_lines()
    assert shown[0] == "between"
    assert len(shown) == 6
    assert shown[-2:] == ["BrokenPipeError: [Errno 32] Broken pipe", "Traceback"]


def test_of_a_stack_trace_the_first_line_is_the_reason() -> None:
    assert reason_of(ValueError("\n  first\n\tat second")) == "first"
    assert reason_of(ValueError()) == "ValueError()"


def test_the_log_s_file_is_there() -> None:
    assert session.LOG4J_FILE.exists()
