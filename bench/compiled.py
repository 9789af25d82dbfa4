"""Builds ``native.pyx`` when it is first wanted, into bench/build, and gives the module."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).parent / "native.pyx"
FOLDER = Path(__file__).parent / "build"


def native() -> ModuleType:
    """The compiled module, built again if its source is newer."""
    library = FOLDER / f"native{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        _build(library)
    spec = importlib.util.spec_from_file_location("native", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(library: Path) -> None:
    FOLDER.mkdir(exist_ok=True)
    source = FOLDER / "native.c"
    subprocess.run([sys.executable, "-m", "cython", str(SOURCE), "-o", str(source)], check=True)
    include = sysconfig.get_path("include")
    compiler = sysconfig.get_config_var("CC").split()
    flags = ["-O3", "-fPIC", "-shared", "-w", f"-I{include}"]
    subprocess.run([*compiler, *flags, str(source), "-o", str(library)], check=True)
