from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from penstock.spark.archive import FOLDER, archive_settings, collect, make_archive, needed


def test_the_archive_has_all_that_a_worker_imports(tmp_path: Path) -> None:
    """In a Python that has nothing of ours but what was unpacked."""
    archive = make_archive(tmp_path / "penstock.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / FOLDER, filter="data")
    site = Path(sys.modules["pyarrow"].__file__ or "").parents[1]
    code = (
        "import sys; sys.path += [sys.argv[1]]; "
        "import penstock.spark.writer, penstock.spark.stream, penstock.pipeline.records; "
        "from penstock.core import columns; print(columns.__file__); "
        "import pyspark_nsq; print(pyspark_nsq.DefaultSource)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(site)],
        env={"PYTHONPATH": FOLDER},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    loaded, source = done.stdout.splitlines()
    assert Path(loaded).is_relative_to(tmp_path / FOLDER)
    assert "NsqDataSource" in source


def test_sources_of_the_core_and_big_libraries_stay_here() -> None:
    names = {name for name, _ in collect()}
    assert "penstock/pipeline/shipped/archive.toml" in names
    assert any(name.startswith("penstock/core/columns.") for name in names)
    assert not {name for name in names if name.endswith((".pyx", ".c", ".pyc"))}
    assert {"httptools", "cramjam"} <= needed()
    assert not {"pyspark", "pyarrow", "numpy", "pandas"} & needed()


def test_an_archive_is_made_once_for_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module.py"
    module.write_text("1")
    monkeypatch.setattr("penstock.spark.archive.collect", lambda: [("penstock/m.py", module)])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = make_archive()
    assert first.parent == tmp_path / "penstock"
    made_ns = first.stat().st_mtime_ns
    assert make_archive() == first
    assert first.stat().st_mtime_ns == made_ns
    module.write_text("changed")
    assert make_archive() != first


def test_what_the_user_ships_goes_too() -> None:
    conf = {"spark.archives": "mine.zip#mine", "spark.executorEnv.PYTHONPATH": "mine"}
    assert archive_settings(conf, Path("/p.tar.gz")) == {
        "spark.archives": f"mine.zip#mine,/p.tar.gz#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": f"{FOLDER}:mine",
    }
    assert archive_settings({}, Path("/p.tar.gz"))["spark.executorEnv.PYTHONPATH"] == FOLDER
