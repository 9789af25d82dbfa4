"""The files of a table, on this machine or on Hadoop's file systems: the few calls that sinks need.

Paths are texts relative to the folder, separated by "/".  Files appear only when complete: they are
written elsewhere and renamed.

Rule: an operation that did not happen is an error.  Hadoop's file systems return false where others
raise, and some return false for what they did; so only the result on disk counts.
"""

from __future__ import annotations

import os
import shutil
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    path: str
    size: int
    modified_ms: int


class Folder(Protocol):
    """A table's folder."""

    uri: str

    def read(self, path: str) -> bytes | None:
        """The contents of a small file; None if it does not exist."""

    def write(self, path: str, data: bytes) -> None:
        """Replace a small file: after a crash it is the old one or the new one."""

    def files(self, path: str = "") -> Iterator[File]:
        """Every file below a folder; none if it does not exist."""

    def move(self, path: str, target: str) -> None:
        """Rename a file, durably; do nothing if it was moved before.

        Raises PipelineError if neither exists.  An existing target is replaced: it is left over
        from an interrupted move.
        """

    def move_folder(self, path: str, target: str) -> None:
        """Rename a folder with its contents; the target must not exist."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents, if it exists."""

    def row_count(self, path: str) -> int:
        """The number of rows in a Parquet file."""

    def checksum(self, path: str) -> int:
        """The CRC-32 of a file."""

    def create(self, path: str, data: bytes) -> bool:
        """Create a small file; False if it exists.  Of several callers only one succeeds."""

    def touch(self, path: str) -> None:
        """Set the time of an empty file to now, by the clock of the file system."""

    def modified_ms(self, path: str) -> int | None:
        """When a file was written, by the clock of the file system; None if it does not exist."""


def open_folder(spark: SparkSession, uri: str) -> Folder:
    """Open a plain path or ``file:`` as a local folder, anything else through Hadoop."""
    return open_local(uri) if is_local(uri) else HadoopFolder(spark, uri)


def is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file:")


def open_local(uri: str) -> LocalFolder:
    return LocalFolder(uri.removeprefix("file://").removeprefix("file:"))


def spark_path(uri: str) -> str:
    """The path in a form for Spark, which resolves a plain path on its default file system."""
    return uri if "://" in uri else f"file://{uri}"


class LocalFolder:
    """A local folder; every change is synced, because nsqd removes messages a sink has."""

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
            if not goal.exists():
                raise PipelineError(lost(f"{self.root}/{path}", f"{self.root}/{target}"))
            return
        goal.parent.mkdir(parents=True, exist_ok=True)
        sync(source)
        source.replace(goal)
        # A checksum file that Hadoop wrote would not match the new name.
        source.with_name(f".{source.name}.crc").unlink(missing_ok=True)
        sync(goal.parent)
        for folder in goal.parent.relative_to(self.root).parents:
            sync(self.root / folder)

    def move_folder(self, path: str, target: str) -> None:
        (self.root / path).rename(self.root / target)
        sync(self.root)

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def row_count(self, path: str) -> int:
        import pyarrow.parquet as pq

        return int(pq.read_metadata(self.root / path).num_rows)

    def checksum(self, path: str) -> int:
        found = 0
        with (self.root / path).open("rb") as file:
            while data := file.read(READ_SIZE):
                found = zlib.crc32(data, found)
        return found

    def create(self, path: str, data: bytes) -> bool:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        whole.write_bytes(data)
        try:
            # Unlike a file opened with O_EXCL, a link is never visible without its contents.
            os.link(whole, target)
        except FileExistsError:
            return False
        except OSError:
            return _create_exclusively(target, data)  # the file system has no links
        finally:
            whole.unlink()
        return True

    def touch(self, path: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # One byte: some file systems do not update the time for an empty write.
        target.write_bytes(b"\n")

    def modified_ms(self, path: str) -> int | None:
        try:
            return (self.root / path).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None


def lost(path: str, target: str) -> str:
    return (
        f"{path} was written and is missing, and so is {target}, its final name: rows are "
        "missing.  Restore the folder from a backup that is not older than its checkpoint"
    )


def _create_exclusively(target: Path, data: bytes) -> bool:
    try:
        with target.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


def sync(path: Path) -> None:
    """Sync a file, or a folder's entries: after that a power failure cannot undo a rename."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class HadoopFolder:
    """HDFS and object stores.  How durable a rename or a close is depends on them.

    A small file is replaced in steps, because not all of them can rename onto an existing file:

        write NAME.tmp, rename it to NAME.new, delete NAME, rename NAME.new to NAME

    NAME.tmp may be incomplete and is never read.  NAME.new is complete, and read without a NAME.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri.rstrip("/")
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._utils = jvm.org.apache.commons.io.IOUtils
        self._configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._root = self._path(self.uri)
        self._files = self._root.getFileSystem(self._configuration)
        self._prefix = str(self._files.makeQualified(self._root).toString()).rstrip("/") + "/"

    def _at(self, path: str) -> Any:
        return self._path(f"{self.uri}/{path}" if path else self.uri)

    def _is(self, at: Any) -> bool:
        return bool(self._files.exists(at))

    def read(self, path: str) -> bytes | None:
        at = next((at for at in (self._at(path), self._at(f"{path}.new")) if self._is(at)), None)
        if at is None:
            return None
        stream = self._files.open(at)
        try:
            return bytes(self._utils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        target, new, cut = self._at(path), self._at(f"{path}.new"), self._at(f"{path}.tmp")
        stream = self._files.create(cut, True)
        try:
            stream.write(bytearray(data))
            stream.hsync()
        finally:
            stream.close()
        if self._is(new):
            # An earlier write was interrupted.  If the file is missing, this is the only copy.
            if self._is(target):
                self._delete(new, False)
            else:
                self._rename(new, target)
        self._rename(cut, new)
        self._delete(target, False)
        self._rename(new, target)

    def files(self, path: str = "") -> Iterator[File]:
        if not self._is(self._at(path)):
            return
        found = self._files.listFiles(self._at(path), True)
        while found.hasNext():
            status = found.next()
            full = str(status.getPath().toString())
            if not full.startswith(self._prefix):
                raise PipelineError(f"{self.uri}: {full} is listed but is outside the folder")
            relative = full.removeprefix(self._prefix)
            yield File(relative, int(status.getLen()), int(status.getModificationTime()))

    def move(self, path: str, target: str) -> None:
        source, goal = self._at(path), self._at(target)
        if not self._is(source):
            if not self._is(goal):
                raise PipelineError(lost(f"{self.uri}/{path}", f"{self.uri}/{target}"))
            return
        self._make(goal.getParent())
        if self._is(goal):
            self._delete(goal, False)
        self._rename(source, goal)

    def move_folder(self, path: str, target: str) -> None:
        source, goal = self._at(path), self._at(target)
        answer = bool(self._files.rename(source, goal))
        if self._is(source) or not self._is(goal):
            raise PipelineError(
                f"{source.toString()} could not be renamed to {goal.toString()}: the file system "
                f"returned {str(answer).lower()}"
            )

    def remove(self, path: str) -> None:
        self._delete(self._at(path), True)

    def row_count(self, path: str) -> int:
        parquet = self._jvm.org.apache.parquet.hadoop
        file = parquet.util.HadoopInputFile.fromPath(self._at(path), self._configuration)
        reader = parquet.ParquetFileReader.open(file)
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    def checksum(self, path: str) -> int:
        # Read inside the JVM: through its socket it would take ten times as long.
        found = self._jvm.java.util.zip.CRC32()
        stream = self._files.open(self._at(path))
        try:
            nowhere = self._jvm.java.io.OutputStream.nullOutputStream()
            checked = self._jvm.java.util.zip.CheckedOutputStream(nowhere, found)
            self._utils.copyLarge(stream, checked)
        finally:
            stream.close()
        return int(found.getValue())

    def create(self, path: str, data: bytes) -> bool:
        from py4j.protocol import Py4JJavaError

        try:
            stream = self._files.create(self._at(path), False)
        except Py4JJavaError as error:
            if "AlreadyExists" in str(error.java_exception.getClass().getName()):
                return False
            if self._is(self._at(path)):
                return False
            raise
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        return True

    def touch(self, path: str) -> None:
        stream = self._files.create(self._at(path), True)
        stream.close()

    def modified_ms(self, path: str) -> int | None:
        at = self._at(path)
        if not self._is(at):
            return None
        return int(self._files.getFileStatus(at).getModificationTime())

    # Each operation is verified by its result

    def _size(self, at: Any) -> int | None:
        """The size of a file; None if it does not exist."""
        if not self._is(at):
            return None
        status = self._files.getFileStatus(at)
        return int(status.getLen()) if status.isFile() else None

    def _rename(self, source: Any, goal: Any) -> None:
        size = self._size(source)
        answer = bool(self._files.rename(source, goal))
        if size is not None and self._size(goal) == size and not self._is(source):
            return
        raise PipelineError(
            f"{source.toString()} could not be renamed to {goal.toString()}: the file system "
            f"returned {str(answer).lower()}, and there is no file of {size} bytes.  Nothing "
            "was removed; restart when the file system works"
        )

    def _make(self, folder: Any) -> None:
        answer = bool(self._files.mkdirs(folder))
        if not answer and not (
            self._is(folder) and self._files.getFileStatus(folder).isDirectory()
        ):
            raise PipelineError(f"the folder {folder.toString()} could not be created")

    def _delete(self, at: Any, recursive: bool) -> None:
        answer = bool(self._files.delete(at, recursive))
        if not answer and self._is(at):
            raise PipelineError(f"{at.toString()} could not be removed")
