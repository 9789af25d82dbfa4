"""Penstock for executors that do not have it: an archive that Spark unpacks beside each of them.

    penstock.tar.gz
        penstock/  pyspark_nsq/       this installation's, the compiled part included
        httptools/ ...                what they import beside PySpark and pyarrow

    spark.archives                    .../penstock.tar.gz#penstock-env
    spark.executorEnv.PYTHONPATH      penstock-env

Python cannot load compiled modules out of a zip, so --py-files will not do; and Spark does not
apply py-files to a data source that it has found by itself.  The archive is for machines like this
one: same Python (3.x), same kind of processor and system.  PySpark and pyarrow must be there.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from penstock.spark.java import cache_folder

FOLDER = "penstock-env"
PACKAGES = ("penstock", "pyspark_nsq")
# What a task imports; what these import beside the packages below goes with them.
MODULES = (
    "penstock.spark.source",
    "penstock.spark.batch",
    "penstock.spark.stream",
    "penstock.spark.writer",
    "penstock.spark.go_source",
    "penstock.pipeline.records",
)
THERE = {"pyspark", "py4j", "pyarrow", "numpy", "pandas"}
KEPT_S = 7 * 86_400
LEFT_OUT = (".pyc", ".pyx", ".pxd", ".c", ".pyi")


def archive_settings(conf: Mapping[str, str], archive: Path) -> dict[str, str]:
    """The settings that bring the archive to every executor, beside what the user has."""
    archives = [conf.get("spark.archives", ""), f"{archive}#{FOLDER}"]
    path = [FOLDER, conf.get("spark.executorEnv.PYTHONPATH", "")]
    return {
        "spark.archives": ",".join(filter(None, archives)),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def make_archive(target: Path | None = None) -> Path:
    """Write the archive, or find the one that was written before; return where it is.

    In the cache its name says what is in it, so another version, or a change, makes another file.
    """
    files = sorted(collect())
    if target is None:
        folder = cache_folder(os.environ)
        target = folder / f"penstock-{_digest(files)}.tar.gz"
        if target.exists():
            return target
        _forget_old(folder)
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    fd, new = tempfile.mkstemp(dir=target.parent, suffix=".new")
    with (
        os.fdopen(fd, "wb") as file,
        tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive,
    ):
        for name, path in files:
            archive.add(path, name, recursive=False)
        about = (
            f"python {sys.version_info.major}.{sys.version_info.minor} {sys.platform}\n".encode()
        )
        entry = tarfile.TarInfo("penstock-env.txt")
        entry.size = len(about)
        archive.addfile(entry, io.BytesIO(about))
    Path(new).chmod(0o644)
    Path(new).replace(target)
    return target


def _forget_old(folder: Path) -> None:
    """Those of earlier versions; one that a session still serves was opened long ago."""
    for path in folder.glob("penstock-*.tar.gz"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - KEPT_S:
                path.unlink()


def collect() -> Iterator[tuple[str, Path]]:
    """(name in the archive, file) of all that belongs in it."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        assert module.__file__ is not None
        yield from _tree(Path(module.__file__).parent)
    for name in sorted(needed()):
        for file in metadata.files(name) or ():
            path = Path(str(file.locate()))
            if path.is_file() and path.suffix not in LEFT_OUT and ".." not in file.parts:
                yield str(file), path


def _tree(root: Path) -> Iterator[tuple[str, Path]]:
    for path in root.rglob("*"):
        if path.is_file() and path.suffix not in LEFT_OUT:
            yield f"{root.name}/{path.relative_to(root)}", path


def needed() -> set[str]:
    """The distributions that the modules import and that executors may lack."""
    for module in MODULES:
        importlib.import_module(module)
    known = metadata.packages_distributions()
    loaded = {name.partition(".")[0] for name in sys.modules} - {*THERE, *PACKAGES}
    ours = {_plain(requirement) for requirement in metadata.requires("penstock") or ()}
    found = {each for name in loaded for each in known.get(name, ())}
    return {name for name in found if name.lower().replace("_", "-") in ours}


def _plain(requirement: str) -> str:
    """The name in ``httptools>=0.6``; of an extra's requirements, nothing."""
    if "extra ==" in requirement:
        return ""
    name = requirement.split(";")[0]
    for mark in "<>=!~[ ":
        name = name.split(mark)[0]
    return name.strip().lower().replace("_", "-")


def _digest(files: list[tuple[str, Path]]) -> str:
    state = hashlib.sha256()
    for name, path in files:
        found = path.stat()
        state.update(f"{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return state.hexdigest()[:16]
