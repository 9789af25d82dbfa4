"""Files of a table, on this machine or wherever Hadoop reaches: the few calls that sinks need.

Paths are texts relative to the folder, with "/" between.  A name is visible to readers only when
it is whole: files are written elsewhere and renamed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LISTED_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class File:
    path: str
    size: int
    modified_ms: int


class Folder(Protocol):
    """A table's folder."""

    uri: str

    def read(self, path: str) -> bytes | None:
        """The bytes of a small file, None if it is not there."""

    def write(self, path: str, data: bytes) -> None:
        """Replace a small file: after a crash it is the old one or the new one."""

    def files(self, path: str = "") -> Iterator[File]:
        """Every file below a folder; none if it is not there."""

    def move(self, path: str, target: str) -> None:
        """Rename a file; nothing if it was moved before.  The target is durable then."""

    def remove(self, path: str) -> None:
        """A file or a folder with all it holds, if it is there."""


def open_folder(spark: SparkSession, uri: str) -> Folder:
    """A plain path or ``file:`` is this machine's, anything else is Hadoop's."""
    if "://" not in uri or uri.startswith("file:"):
        return LocalFolder(uri.removeprefix("file://").removeprefix("file:"))
    return HadoopFolder(spark, uri)


class LocalFolder:
    """Synced as it goes: what a sink has finished, nsqd may forget."""

    def __init__(self, path: str) -> None:
        self.root = Path(path).absolute()
        self.uri = str(self.root)
        self.root.mkdir(parents=True, exist_ok=True)

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{target.name}.new")
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(target)
        sync(target.parent)

    def files(self, path: str = "") -> Iterator[File]:
        for folder, _, names in os.walk(self.root / path):
            for name in names:
                file = Path(folder) / name
                found = file.stat()
                relative = str(file.relative_to(self.root))
                yield File(relative, found.st_size, found.st_mtime_ns // 1_000_000)

    def move(self, path: str, target: str) -> None:
        source, goal = self.root / path, self.root / target
        if not source.exists():
            return
        goal.parent.mkdir(parents=True, exist_ok=True)
        sync(source)
        source.replace(goal)
        # A checksum that Hadoop wrote beside it would not fit the new name.
        source.with_name(f".{source.name}.crc").unlink(missing_ok=True)
        sync(goal.parent)
        for folder in goal.parent.relative_to(self.root).parents:
            sync(self.root / folder)

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Also a folder's own entry: after that a power cut cannot take the name back."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class HadoopFolder:
    """HDFS and object stores.  What a rename or a close promises there is theirs to keep."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri.rstrip("/")
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._utils = jvm.org.apache.commons.io.IOUtils
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._root = self._path(self.uri)
        self._files = self._root.getFileSystem(configuration)
        self._prefix = str(self._files.makeQualified(self._root).toString()).rstrip("/") + "/"

    def _at(self, path: str) -> Any:
        return self._path(f"{self.uri}/{path}")

    def _is(self, at: Any) -> bool:
        return bool(self._files.exists(at))

    def read(self, path: str) -> bytes | None:
        # A write that was cut short left only the new one.
        at = next((at for at in (self._at(path), self._at(f"{path}.new")) if self._is(at)), None)
        if at is None:
            return None
        stream = self._files.open(at)
        try:
            return bytes(self._utils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        new = self._at(f"{path}.new")
        stream = self._files.create(new, True)
        try:
            stream.write(bytearray(data))
            stream.hsync()
        finally:
            stream.close()
        self._files.delete(self._at(path), False)
        self._files.rename(new, self._at(path))

    def files(self, path: str = "") -> Iterator[File]:
        if not self._files.exists(self._at(path)):
            return
        found = self._files.listFiles(self._at(path), True)
        for _ in range(LISTED_MAX):
            if not found.hasNext():
                return
            status = found.next()
            relative = str(status.getPath().toString()).removeprefix(self._prefix)
            yield File(relative, int(status.getLen()), int(status.getModificationTime()))

    def move(self, path: str, target: str) -> None:
        if not self._files.exists(self._at(path)):
            return
        goal = self._at(target)
        self._files.mkdirs(goal.getParent())
        self._files.rename(self._at(path), goal)

    def remove(self, path: str) -> None:
        self._files.delete(self._at(path), True)
