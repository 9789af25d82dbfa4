"""Files in memory that lose what was not synced, and fail when told to.

A file is an inode: its bytes now, and its bytes at the last sync.  A folder is a map of names to
inodes now, and at the last sync_folder.  crash() goes back to the synced state and then keeps as
much of the rest as its mode says, because a real disk may have written any of it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence

from penstock.errors import LockedError, UncutError
from penstock.storage.files import Files, locked_text
from tests.support.faults import Faults

# What of the unsynced changes survives a power cut.
LOSE = "lose"  # nothing
KEEP = "keep"  # everything: the process was killed, the machine went on
KILL = "kill"  # the same, but what was not synced may still be lost by the next crash
PREFIX = "prefix"  # of each file a part of what was added, cut at any byte; of the names some
HOLES = "holes"  # sizes survive, but some of the blocks that were added are zeros

# The space of a disk that is never full: to add up its files takes long where there are many.
ENDLESS = 1 << 60


class Crashed(Exception):
    """The machine stops here."""


class _Inode:
    def __init__(self) -> None:
        self.now = bytearray()
        self.synced = b""


class _Folder:
    def __init__(self) -> None:
        self.now: dict[str, _Inode | _Folder] = {}
        self.synced: dict[str, _Inode | _Folder] = {}


class LossyFiles(Files):
    """Files in memory."""

    def __init__(self, space: int = ENDLESS) -> None:
        self._root = _Folder()
        self._locks: set[str] = set()
        self.space = space
        self.cold = False  # whether reads that must not wait find nothing
        self.step_count = 0  # changes to the disk so far
        self.crash_at = -1  # the step that does not happen any more
        self.failures: list[tuple[str, int, int]] = []
        self.faults = Faults()  # calls that fail until they are healed
        self.trace: list[str] = []
        self.barred: OSError | None = None

    # Telling it what to do

    def fail(self, action: str, code: int, after: int = 0) -> None:
        """Let the call of ``action`` after the next ``after`` ones raise OSError(code), once.

        "short" is a write of which only half gets to the disk; "uncut" one that cannot be cut
        back either.
        """
        self.failures.append((action, code, after))

    def crash(self, mode: str = LOSE, seed: int = 0) -> None:
        chance = random.Random(seed)
        if mode != KILL:
            self._settle(self._root, mode, chance, set())
        self._locks.clear()
        self.crash_at = -1
        self.failures.clear()

    # The interface

    def pread(self, path: str, offset: int, size: int, wait: bool = True) -> bytes | None:
        self._maybe_fail("pread", path)
        if not wait and self.cold:
            return None
        return bytes(self._inode(path).now[offset : offset + size])

    def lend(self, path: str, offset: int, size: int) -> int | None:
        return None

    def read(self, path: str) -> bytes:
        self._maybe_fail("read", path)
        return bytes(self._inode(path).now)

    def size(self, path: str) -> int:
        self._maybe_fail("size", path)
        return len(self._inode(path).now)

    def is_open(self, path: str) -> bool:
        return isinstance(self._find(path), _Inode)

    def exists(self, path: str) -> bool:
        self._maybe_fail("exists", path)
        folder, name = self._split(path)
        return folder is not None and name in folder.now

    def list(self, folder: str) -> list[str]:
        self._maybe_fail("list", folder)
        found = self._find(folder)
        return sorted(found.now) if isinstance(found, _Folder) else []

    def free_size(self, path: str) -> int:
        self._maybe_fail("free_size", path)
        return self._free()

    def total_size(self, path: str) -> int:
        return self.space

    def append(self, path: str, parts: Sequence[bytes], offset: int = -1) -> int:
        self._step("append", path)
        data = b"".join(parts)
        inode = self._make(path)
        try:
            for action in ("append", "short"):
                self._maybe_fail(action, path)
        except OSError:
            if offset >= 0:
                del inode.now[offset:]
            raise
        try:
            self._maybe_fail("uncut", path)
        except OSError as error:
            inode.now[offset if offset >= 0 else len(inode.now) :] = data[: len(data) // 2]
            raise UncutError(f"{path}: {error}; and cutting back: too") from error
        at = len(inode.now) if offset < 0 else offset
        assert not any(inode.now[at:]), "only zeros are overwritten"
        grown = at + len(data) - len(inode.now)
        if self.space < ENDLESS and grown > self._free():
            del inode.now[at:]
            raise OSError(errno.ENOSPC, "No space left on device", path)
        inode.now[at : at + len(data)] = data
        return at + len(data)

    def extend(self, path: str, start: int, end: int) -> None:
        self._step("extend", path)
        self._maybe_fail("extend", path)
        inode = self._inode(path)
        assert len(inode.now) == start < end
        if self.space < ENDLESS and end - start > self._free():
            raise OSError(errno.ENOSPC, "No space left on device", path)
        inode.now += bytes(end - start)

    def sync_size(self, path: str) -> None:
        self._step("sync_size", path)
        self._maybe_fail("sync_size", path)
        inode = self._inode(path)
        # Of the messages before it none is synced.
        inode.synced += bytes(max(0, len(inode.now) - len(inode.synced)))

    def truncate(self, path: str, size: int) -> None:
        self._step("truncate", path)
        self._maybe_fail("truncate", path)
        inode = self._inode(path)
        del inode.now[size:]
        inode.now += bytes(size - len(inode.now))

    def write_new(self, path: str, data: bytes) -> None:
        self.faults.check("write_new", path)
        temporary = f"{path}.{self.step_count:012x}.tmp"
        try:
            self.append(temporary, [data])
            self.sync(temporary)
            self.rename(temporary, path)
        except OSError:
            self._drop(temporary)
            raise
        self.sync_folder(path.rpartition("/")[0])

    def allocate(self, path: str, size: int) -> None:
        self._step("allocate", path)
        self._maybe_fail("allocate", path)
        inode = self._make(path)
        missing = size - len(inode.now)
        if missing > self._free():
            raise OSError(errno.ENOSPC, "No space left on device", path)
        inode.now += bytes(max(0, missing))
        inode.synced = bytes(inode.now)

    def sync(self, path: str) -> None:
        self._step("sync", path)
        inode = self._inode(path)
        self._maybe_fail("sync", path)
        inode.synced = bytes(inode.now)

    def sync_folder(self, folder: str) -> None:
        self._step("sync_folder", folder)
        self._maybe_fail("sync_folder", folder)
        found = self._find(folder)
        if not isinstance(found, _Folder):
            raise FileNotFoundError(errno.ENOENT, "No such folder", folder)
        found.synced = dict(found.now)

    def make_folder(self, folder: str) -> None:
        self._step("make_folder", folder)
        self._maybe_fail("make_folder", folder)
        self._maybe_fail("make_folder", folder)
        at = self._root
        for name in filter(None, folder.split("/")):
            below = at.now.setdefault(name, _Folder())
            if not isinstance(below, _Folder):
                raise FileExistsError(errno.EEXIST, "Not a folder", folder)
            at = below

    def rename(self, old: str, new: str) -> None:
        self._step("rename", old)
        self._maybe_fail("rename", old)
        source, name = self._split(old)
        target, new_name = self._split(new)
        if source is None or name not in source.now or target is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", old)
        target.now[new_name] = source.now.pop(name)

    def unlink(self, path: str) -> None:
        if self.exists(path):
            self._step("unlink", path)
            self._maybe_fail("unlink", path)
            self._drop(path)

    def remove_tree(self, folder: str) -> None:
        for name in self.list(folder):
            path = f"{folder}/{name}"
            if isinstance(self._find(path), _Folder):
                self.remove_tree(path)
            else:
                self.unlink(path)
        if self.exists(folder):
            self._step("rmdir", folder)
            self._drop(folder)

    def lock(self, folder: str, *, shared: bool = False) -> None:
        if not isinstance(self._find(folder), _Folder):
            raise FileNotFoundError(errno.ENOENT, "No such folder", folder)
        if folder in self._locks:  # by this one: locks of others are not played here
            raise LockedError(locked_text(folder))
        self._locks.add(folder)

    def place(self, path: str) -> tuple[int, int] | None:
        found = self._find(path)
        return None if found is None else (0, id(found))

    def bar(self, reason: OSError | None) -> None:
        self.barred = reason

    def unlock(self, folder: str) -> None:
        self._locks.remove(folder)

    def close(self) -> None:
        self._locks.clear()

    # For tests that damage files

    def edit(self, path: str, change: Callable[[bytearray], None]) -> None:
        """Change bytes on the disk, synced."""
        inode = self._inode(path)
        change(inode.now)
        inode.synced = bytes(inode.now)

    def is_folder(self, path: str) -> bool:
        return isinstance(self._find(path), _Folder)

    def contents(self) -> dict[str, bytes]:
        """Every file and its bytes."""
        return dict(self._walk(self._root, ""))

    def _walk(self, folder: _Folder, path: str) -> Iterator[tuple[str, bytes]]:
        for name, below in folder.now.items():
            if isinstance(below, _Folder):
                yield from self._walk(below, f"{path}/{name}")
            else:
                yield f"{path}/{name}", bytes(below.now)

    def put(self, path: str, data: bytes) -> None:
        """A file that was always there."""
        self.make_folder(path.rpartition("/")[0])
        inode = self._make(path)
        inode.now[:] = data
        self._sync_all(self._root)

    def _sync_all(self, folder: _Folder) -> None:
        folder.synced = dict(folder.now)
        for below in folder.now.values():
            if isinstance(below, _Folder):
                self._sync_all(below)
            else:
                below.synced = bytes(below.now)

    # Inside

    def _step(self, action: str, path: str) -> None:
        if self.barred is not None:
            raise self.barred
        if self.step_count == self.crash_at:
            raise Crashed(f"{action} {path}")
        self.step_count += 1
        self.trace.append(f"{action} {path.rpartition('/')[2]}")

    def _maybe_fail(self, action: str, path: str) -> None:
        self.faults.check(action, path)
        for place, (name, code, after) in enumerate(self.failures):
            if name == action:
                if after:
                    self.failures[place] = (name, code, after - 1)
                    return
                del self.failures[place]
                raise OSError(code, "told to fail", path)

    def _find(self, path: str) -> _Inode | _Folder | None:
        at: _Inode | _Folder | None = self._root
        for name in filter(None, path.split("/")):
            if not isinstance(at, _Folder):
                return None
            at = at.now.get(name)
        return at

    def _split(self, path: str) -> tuple[_Folder | None, str]:
        folder, _, name = path.rpartition("/")
        found = self._find(folder)
        return (found if isinstance(found, _Folder) else None), name

    def _inode(self, path: str) -> _Inode:
        found = self._find(path)
        if not isinstance(found, _Inode):
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return found

    def _make(self, path: str) -> _Inode:
        folder, name = self._split(path)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, "No such folder", path)
        found = folder.now.setdefault(name, _Inode())
        assert isinstance(found, _Inode)
        return found

    def _drop(self, path: str) -> None:
        folder, name = self._split(path)
        if folder is not None:
            folder.now.pop(name, None)

    def _free(self) -> int:
        return ENDLESS if self.space == ENDLESS else max(0, self.space - self._used(self._root))

    def _used(self, folder: _Folder) -> int:
        total = 0
        for below in folder.now.values():
            total += self._used(below) if isinstance(below, _Folder) else len(below.now)
        return total

    def _settle(self, folder: _Folder, mode: str, chance: random.Random, seen: set[int]) -> None:
        names = dict(folder.synced)
        if mode == KEEP:
            names = dict(folder.now)
        elif mode in (PREFIX, HOLES):
            # A rename is atomic: the new name and the loss of the old one come together only if
            # the file system says so, and a name that pointed elsewhere points at either.
            for name in {**folder.synced, **folder.now}:
                if chance.random() < 0.5:
                    if name in folder.now:
                        names[name] = folder.now[name]
                    else:
                        names.pop(name, None)
            _one_name_each(folder, names)
        folder.now, folder.synced = dict(names), dict(names)
        for below in names.values():
            if id(below) in seen:
                continue
            seen.add(id(below))
            if isinstance(below, _Folder):
                self._settle(below, mode, chance, seen)
            else:
                below.now = bytearray(_surviving(below, mode, chance))
                below.synced = bytes(below.now)


def _one_name_each(folder: _Folder, names: dict[str, _Inode | _Folder]) -> None:
    """A renamed folder has the old name or the new one; files may have both, folders cannot."""
    for old, below in folder.synced.items():
        if isinstance(below, _Folder):
            found = [name for name, other in names.items() if other is below]
            if len(found) > 1:
                del names[old]
            elif not found:
                for name in [name for name, other in folder.now.items() if other is below]:
                    names[name] = below


def _surviving(inode: _Inode, mode: str, chance: random.Random) -> bytes:
    now, synced = bytes(inode.now), inode.synced
    if mode == KEEP:
        return now
    if mode == LOSE or now == synced:
        return synced
    if len(now) < len(synced):  # it was cut: either size may be what is on the disk
        return now if chance.random() < 0.5 else synced
    same = _same_size(now, synced)
    if any(synced[same:]):  # cut, and appended to since
        return now if chance.random() < 0.5 else synced
    # Zeros that were written ahead and synced are there; what was written over them may not be.
    if mode == PREFIX:
        cut = chance.randint(same, len(now))
        return now[:cut] + synced[cut:]
    torn = bytearray(now)
    for block in range(same - same % 512, len(now), 512):
        if chance.random() < 0.3:
            start = max(block, same)
            end = min(block + 512, len(now))
            torn[start:end] = bytes(end - start)
    return bytes(torn)


def _same_size(now: bytes, synced: bytes) -> int:
    """How many bytes at the start of both are the same."""
    if now.startswith(synced):
        return len(synced)
    return next(at for at, (a, b) in enumerate(zip(now, synced, strict=False)) if a != b)
