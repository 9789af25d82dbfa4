"""Penstock for executors that do not have it: an archive that Spark unpacks on each of them.

    penstock.tar.gz
        penstock/  pyspark_nsq/       those of this installation, with the compiled modules
        httptools/ ...                what they import, except PySpark and pyarrow

    spark.archives                    .../penstock.tar.gz#penstock-env
    spark.executorEnv.PYTHONPATH      penstock-env

Python cannot load compiled modules from a zip, so --py-files does not work; and Spark does not
apply py-files to a data source that it discovered itself.  The archive is for machines like this
one: same Python (3.x), processor type and system.  They must have PySpark and pyarrow.
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
# What a task imports; their dependencies, except the packages in THERE, are included.
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
    """The settings that send the archive to every executor, added to the user's."""
    archives = [conf.get("spark.archives", ""), f"{archive}#{FOLDER}"]
    path = [FOLDER, conf.get("spark.executorEnv.PYTHONPATH", "")]
    return {
        "spark.archives": ",".join(filter(None, archives)),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def make_archive(target: Path | None = None) -> Path:
    """Write the archive, or find an existing one; return its path.

    In the cache its name has a digest of its files, so a change creates another file.
    """
    files = sorted(collect())
    if target is None:
        folder = cache_folder(os.environ)
        target = folder / f"penstock-{_digest(files)}.tar.gz"
        if target.exists():
            return target
        _remove_old(folder)
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


def _remove_old(folder: Path) -> None:
    """Remove archives of earlier versions; a session that serves one keeps its file open."""
    for path in folder.glob("penstock-*.tar.gz"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - KEPT_S:
                path.unlink()


def collect() -> Iterator[tuple[str, Path]]:
    """Yield (name in the archive, file) for all files of the archive."""
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
    """The distributions that MODULES import and that executors may not have."""
    for module in MODULES:
        importlib.import_module(module)
    known = metadata.packages_distributions()
    loaded = {name.partition(".")[0] for name in sys.modules} - {*THERE, *PACKAGES}
    ours = {_plain(requirement) for requirement in metadata.requires("penstock") or ()}
    found = {each for name in loaded for each in known.get(name, ())}
    return {name for name in found if name.lower().replace("_", "-") in ours}


def _plain(requirement: str) -> str:
    """The name in ``httptools>=0.6``; empty for a requirement of an extra."""
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
