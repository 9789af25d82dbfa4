"""The hand-written .pyi files say what the compiled modules have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.meta.coverage_table import ROOT

ALLOWLIST = Path(__file__).with_name("stubtest_allowlist.txt")
# Only compiled code uses these, through their .pxd.
WITHOUT_STUB = {"penstock.core.entries"}


def compiled_modules() -> set[str]:
    folder = ROOT / "src"
    paths = (folder / "penstock").rglob("*.pyx")
    return {".".join(path.relative_to(folder).with_suffix("").parts) for path in paths}


def test_the_stubs_are_those_of_the_compiled_modules() -> None:
    modules = compiled_modules() - WITHOUT_STUB
    assert len(modules) > 20
    options = ["--concise", "--ignore-disjoint-bases", f"--allowlist={ALLOWLIST}"]
    command = [sys.executable, "-m", "mypy.stubtest", *options, *sorted(modules)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
