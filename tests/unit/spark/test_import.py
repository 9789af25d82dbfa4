"""pyspark_nsq must never spoil other people's data sources: light, and it cannot fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

PRELUDE = """
import sys

class Missing:
    def __init__(self, *names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"no module named {name}", name=name)
        return None

sys.meta_path.insert(0, Missing(*{missing!r}))
"""


def run(code: str, missing: Sequence[str] = ()) -> str:
    program = PRELUDE.replace("{missing!r}", repr(tuple(missing))) + code
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_takes_milliseconds_and_loads_nothing() -> None:
    code = """
import time
before = set(sys.modules)
start = time.perf_counter()
import pyspark_nsq
took_ms = (time.perf_counter() - start) * 1000
print(sorted(set(sys.modules) - before))
assert took_ms < 50, took_ms
"""
    assert run(code).strip() == "['pyspark_nsq']"


def test_the_source_is_there_without_pyarrow() -> None:
    code = """
import pyspark_nsq
print(pyspark_nsq.DefaultSource.name(), "pyarrow" in sys.modules)
"""
    assert run(code, ["pyarrow"]).split() == ["nsq", "False"]


def test_without_pyspark_there_is_no_source_and_no_error() -> None:
    code = """
import pyspark_nsq
print(hasattr(pyspark_nsq, "DefaultSource"), hasattr(pyspark_nsq, "other"))
"""
    assert run(code, ["pyspark"]).split() == ["False", "False"]


def test_asking_for_the_source_loads_neither_a_client_nor_a_broker() -> None:
    code = """
from pyspark_nsq import DefaultSource
print([name for name in sys.modules if name.startswith("penstock.")])
"""
    loaded = run(code)
    for package in ("client", "engine", "server", "storage"):
        assert f"penstock.{package}" not in loaded
    for module in ("stream", "write", "go_source", "listener"):
        assert f"penstock.spark.{module}" not in loaded
