"""The files that nsq_to_file writes for one topic: names, rotation, gzip, sync.

    <work-dir>/<TOPIC>.<HOST><REV>.<DATETIME>.log     being written
    <output-dir>/...                                  the same name, once closed

    body \\n body \\n ...                gzip: consecutive members, one for each sync

Rule 1: ``sync`` returns when everything written is on disk; only then may messages be finished.
Rule 2: no file is ever overwritten: gzip and rotate-interval create, others append; a finished
        file is linked to its final path, which fails if that exists.
Rule 3: a line that a crash left torn is terminated before anything is appended.
Rule 4: when a write or a sync fails, the file is truncated to its last synced size: the messages
        after it were not finished and are delivered again.  A new file without a synced byte is
        removed, so that restarts on a full disk do not leave one each.
Rule 5: files are below their folders, and a topic cannot choose the folder: names such as ``..``
        are valid topics, and anyone may publish to them.

All methods block; no two may run concurrently.
"""

from __future__ import annotations

import logging
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("penstock.cli")

CONVERSIONS = frozenset("BbmAadHIMSYypZz%")
GZIP_WINDOW_BITS = 31  # zlib's code for gzip's header and trailer
REVISION_MAX = 999_999


@dataclass(frozen=True, slots=True)
class Layout:
    """How files are named and when they rotate."""

    output_dir: str
    work_dir: str
    name_format: str  # with <TOPIC>, <HOST> and <PID> already replaced
    datetime_format: str
    gzip_level: int  # 0: no gzip
    rotate_size: int
    rotate_interval_s: float

    @property
    def moves(self) -> bool:
        return self.work_dir != self.output_dir

    def name(self, now_s: float) -> str:
        """The name at ``now_s``, still with <REV>."""
        moment = format_time(self.datetime_format, now_s)
        return self.name_format.replace("<DATETIME>", moment)

    def path_in(self, folder: str, name: str) -> Path:
        """The path of the file ``name``; raises ValueError if it is not below ``folder``."""
        inner = name.lstrip("/")
        if os.path.normpath(inner).split("/")[0] in (".", ".."):
            raise ValueError(f"{folder}/{inner} is not in {folder}")
        return Path(folder, inner)


def fill_name(form: str, topic: str, host: str, pid: int) -> str:
    """The name of a topic's files, still with <DATETIME> and <REV>.

    Raises ValueError if the topic would choose the folder, as ``..`` would in ``<TOPIC>/<HOST>``.
    """

    def filled(topic: str) -> str:
        known = {"<TOPIC>": topic, "<HOST>": host, "<PID>": str(pid)}
        name = form
        for token, text in known.items():
            name = name.replace(token, text)
        return name

    def steps(name: str) -> list[bool]:
        return [part in ("", ".", "..") for part in name.split("/")]

    if steps(filled(topic)) != steps(filled("topic")):
        raise ValueError(f"its files would not be in a folder of their own: {filled(topic)}")
    return filled(topic)


def format_time(form: str, now_s: float) -> str:
    """Local time; conversions that NSQ's strftime does not know are kept as text."""
    local = time.localtime(now_s)

    def convert(match: re.Match[str]) -> str:
        return time.strftime(match[0], local) if match[1] in CONVERSIONS else match[0]

    return re.sub("%(.)", convert, form)


def with_revision(name: str, revision: int) -> str:
    return name.replace("<REV>", f"-{revision:06d}")


class TopicFile:
    """The current file of a topic, and the rotation to the next."""

    def __init__(self, topic: str, layout: Layout) -> None:
        self.topic = topic
        self._layout = layout
        self._fd = -1
        self._path = Path()
        self._dated = (0, "")  # the second of the clock, and the name for it
        self._name = ""
        self._revision = 0
        self._opened_s = 0.0
        self._size = 0  # uncompressed, as rotate-size counts
        self._synced_size = 0  # of the file
        self._fresh = False  # created by us, and nothing is synced
        self._dirty = False
        self._member: zlib._Compress | None = None

    @property
    def open(self) -> bool:
        return self._fd >= 0

    def must_rotate(self) -> bool:
        layout = self._layout
        if not self.open or self._name_now() != self._name:
            return True
        elapsed_s = time.monotonic() - self._opened_s
        if 0 < layout.rotate_interval_s < elapsed_s:
            log.info("topic=%s: %s is %.0f s old, rotating", self.topic, self._path, elapsed_s)
            return True
        if 0 < layout.rotate_size < self._size:
            log.info("topic=%s: %s has %d bytes, rotating", self.topic, self._path, self._size)
            return True
        return False

    def _name_now(self) -> str:
        second = int(time.time())
        if second != self._dated[0]:
            self._dated = (second, self._layout.name(second))
        return self._dated[1]

    def append(self, bodies: Iterable[bytes]) -> bool:
        """Write bodies, rotating when due; return True if a file was closed."""
        with self._truncating():
            return self._append(bodies)

    def _append(self, bodies: Iterable[bytes]) -> bool:
        rotated = False
        lines: list[bytes] = []
        for body in bodies:
            if self.must_rotate():
                self._write(lines)
                lines = []
                rotated = rotated or self.open
                self.rotate()
            lines += (body, b"\n")
            self._size += len(body) + 1
        self._write(lines)
        return rotated

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        text = b"".join(lines)
        if self._layout.gzip_level:
            if self._member is None:
                self._member = zlib.compressobj(
                    self._layout.gzip_level, zlib.DEFLATED, GZIP_WINDOW_BITS
                )
            text = self._member.compress(text)
        self._dirty = True
        self._put(text)

    def _put(self, text: bytes) -> None:
        view = memoryview(text)
        while view:
            view = view[os.write(self._fd, view) :]

    @contextmanager
    def _truncating(self) -> Iterator[None]:
        """If the disk fails, remove everything that is not synced."""
        try:
            yield
        except OSError:
            if self.open:
                with suppress(OSError):
                    if self._fresh:
                        self._path.unlink()
                    else:
                        os.ftruncate(self._fd, self._synced_size)
            raise

    def sync(self) -> None:
        """Flush everything written so far to disk."""
        with self._truncating():
            self._sync()

    def _sync(self) -> None:
        if not self.open or not self._dirty:
            return
        if self._member is not None:
            self._put(self._member.flush(zlib.Z_FINISH))
            self._member = None
        os.fsync(self._fd)
        self._synced_size = os.fstat(self._fd).st_size
        self._dirty, self._fresh = False, False

    def rotate(self) -> None:
        """Close the file and open the next."""
        with self._truncating():
            self._close()
            self._open_next()

    def _open_next(self) -> None:
        name = self._name_now()
        self._revision = self._revision + 1 if name == self._name else 0
        self._name = name
        self._opened_s = time.monotonic()
        for revision in range(self._revision, REVISION_MAX + 1):
            self._revision = revision
            if self._open_revision():
                return
        raise OSError(f"{name}: all revisions up to {REVISION_MAX} exist")

    def _open_revision(self) -> bool:
        """Open the file of the current name and revision; False if it cannot be used."""
        layout = self._layout
        name = with_revision(self._name, self._revision)
        try:
            path = layout.path_in(layout.work_dir, name)
        except ValueError as error:
            raise OSError(str(error)) from None
        path.parent.mkdir(0o770, parents=True, exist_ok=True)
        if layout.moves:
            output = layout.path_in(layout.output_dir, name)
            output.parent.mkdir(0o770, parents=True, exist_ok=True)
            if os.path.lexists(output):
                log.warning("topic=%s: output file already exists: %s", self.topic, output)
                return False
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        exclusive = bool(layout.gzip_level or layout.rotate_interval_s)
        try:
            fd = os.open(path, flags | (os.O_EXCL if exclusive else os.O_APPEND), 0o666)
        except FileExistsError:
            log.warning("topic=%s: working file already exists: %s", self.topic, path)
            return False
        size = os.fstat(fd).st_size
        if 0 < layout.rotate_size < size:
            log.info("topic=%s: %s has %d bytes already, rotating", self.topic, path, size)
            os.close(fd)
            return False
        log.info("topic=%s: opening %s", self.topic, path)
        self._fd, self._path, self._size, self._synced_size = fd, path, size, size
        self._member, self._dirty, self._fresh = None, False, exclusive
        if size and os.pread(fd, 1, size - 1) != b"\n":
            self._size += 1
            self._write([b"\n"])
        sync_folder(path)
        return True

    def close(self) -> None:
        """Sync, close, and move the file to its final path."""
        with self._truncating():
            self._close()

    def _close(self) -> None:
        if not self.open:
            return
        if self._layout.gzip_level and not self._dirty and not self._synced_size:
            # An empty file is not valid gzip: zcat would report it as damaged.
            self._put(zlib.compress(b"", wbits=GZIP_WINDOW_BITS))
            self._dirty = True
        self._sync()
        fd, self._fd = self._fd, -1
        os.close(fd)
        if self._layout.moves:
            self._move()

    def _move(self) -> None:
        output_dir = self._layout.output_dir
        for revision in range(self._revision, REVISION_MAX + 1):
            output = self._layout.path_in(output_dir, with_revision(self._name, revision))
            try:
                os.link(self._path, output)
            except FileExistsError:
                log.warning("topic=%s: destination file already exists: %s", self.topic, output)
                continue
            log.info("topic=%s: moved finished file %s to %s", self.topic, self._path, output)
            sync_folder(output)
            self._path.unlink()
            return
        raise OSError(f"{self._path}: all revisions up to {REVISION_MAX} exist in {output_dir}")


def sync_folder(path: Path) -> None:
    """Sync the folder: without it a new name may not survive a power failure."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
