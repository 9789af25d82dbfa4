"""File calls that fail by rules, for files in memory and for a real nsqd.

    faults = Faults()
    faults.add("*.slot", errno.EIO, "pread", "read")       # until heal()
    files = LossyFiles(); files.faults = faults            # in memory

    with FaultyNsqd(tmp_path) as nsqd:                     # a real daemon, real files
        nsqd.fault("*.log", errno.EIO, "pread")
        ...
        nsqd.heal()

``FaultyNsqd`` starts this module, which replaces ``Files`` by ``FaultyFiles`` and then runs nsqd as
its script does.  The rules are in a file that is checked before every call.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from penstock.storage.files import Files
from penstock.storage.native_threads import NativeThreads
from tests.support.daemon import Nsqd

RULES_VARIABLE = "PENSTOCK_TEST_FAULTS"

READS = ("pread", "read", "size", "list", "exists")
WRITES = (
    "append",
    "extend",
    "truncate",
    "write_new",
    "allocate",
    "sync",
    "sync_folder",
    "make_folder",
    "rename",
    "unlink",
)


class Faults:
    """The calls that fail: (pattern of the path, errno, actions, how often; -1: always)."""

    def __init__(self) -> None:
        self.rules: list[tuple[str, int, Sequence[str], int]] = []
        self.hit_count = 0

    def add(self, pattern: str, code: int, *actions: str, times: int = -1) -> None:
        self.rules.append((pattern, code, actions or READS + WRITES, times))

    def heal(self) -> None:
        self.rules = []

    def check(self, action: str, path: str) -> None:
        for place, (pattern, code, actions, times) in enumerate(self.rules):
            if times and action in actions and fnmatch.fnmatchcase(path, pattern):
                self.hit_count += 1
                self.rules[place] = (pattern, code, actions, times - 1 if times > 0 else -1)
                raise OSError(code, os.strerror(code), path)


class FaultyFiles(Files):
    """Real files whose calls fail by the rules in a file."""

    def __init__(self, open_max: int = 256, *, native_threads: NativeThreads | None = None) -> None:
        super().__init__(open_max, native_threads=native_threads)
        self._faults = Faults()
        self._rules_path = os.environ[RULES_VARIABLE]
        self._rules_ns = 0

    def check(self, action: str, path: str) -> None:
        changed_ns = os.stat(self._rules_path).st_mtime_ns  # noqa: PTH116
        if changed_ns != self._rules_ns:
            self._faults.rules = [tuple(rule) for rule in json.loads(_read(self._rules_path))]
            # Last: another thread that finds this time has to find these rules.
            self._rules_ns = changed_ns
        self._faults.check(action, path)

    def pread(self, path: str, offset: int, size: int, wait: bool = True) -> bytes | None:
        self.check("pread", path)
        return super().pread(path, offset, size, wait)

    def lend(self, path: str, offset: int, size: int) -> int | None:
        try:
            self.check("pread", path)
        except OSError:
            return None
        return super().lend(path, offset, size)

    def read(self, path: str) -> bytes:
        self.check("read", path)
        return super().read(path)

    def size(self, path: str) -> int:
        self.check("size", path)
        return super().size(path)

    def list(self, folder: str) -> list[str]:
        self.check("list", folder)
        return super().list(folder)

    def exists(self, path: str) -> bool:
        self.check("exists", path)
        return super().exists(path)

    def append(self, path: str, parts: Sequence[bytes], offset: int = -1) -> int:
        self.check("append", path)
        return super().append(path, parts, offset)

    def start_append(
        self, path: str, parts: list[bytes], offset: int, done: Callable[[Exception | None], object]
    ) -> bool:
        try:
            self.check("append", path)
        except OSError as error:
            asyncio.get_running_loop().call_soon(done, error)
            return True
        return super().start_append(path, parts, offset, done)

    def extend(self, path: str, start: int, end: int) -> None:
        self.check("extend", path)
        super().extend(path, start, end)

    def sync_size(self, path: str) -> None:
        self.check("sync", path)
        super().sync_size(path)

    def truncate(self, path: str, size: int) -> None:
        self.check("truncate", path)
        super().truncate(path, size)

    def write_new(self, path: str, data: bytes) -> None:
        self.check("write_new", path)
        super().write_new(path, data)

    def allocate(self, path: str, size: int) -> None:
        self.check("allocate", path)
        super().allocate(path, size)

    def sync(self, path: str) -> None:
        self.check("sync", path)
        super().sync(path)

    def sync_here(self, path: str) -> bool:
        return False  # start_sync() follows, which checks

    def start_sync(self, path: str, done: Callable[[OSError | None], object]) -> bool:
        try:
            self.check("sync", path)
        except OSError as error:
            asyncio.get_running_loop().call_soon(done, error)
            return True
        return super().start_sync(path, done)

    def sync_folder(self, folder: str) -> None:
        self.check("sync_folder", folder)
        super().sync_folder(folder)

    def make_folder(self, folder: str) -> None:
        self.check("make_folder", folder)
        super().make_folder(folder)

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self.check("unlink", path)
        super().unlink(path)


class FaultyNsqd(Nsqd):
    """A real nsqd whose file calls fail by rules, cached reads included."""

    def __init__(self, data_path: Path, *options: str) -> None:
        super().__init__(data_path, *options)
        self._rules_path = data_path.with_name(data_path.name + ".faults")
        self._faults = Faults()

    def start(self, *options: str) -> Self:
        self._rules_path.parent.mkdir(parents=True, exist_ok=True)
        self._write()
        os.environ[RULES_VARIABLE] = str(self._rules_path)
        return super().start(*options)

    def command(self) -> list[str]:
        _, *flags = super().command()
        return [sys.executable, "-m", "tests.support.faults", *flags]

    def fault(self, pattern: str, code: int, *actions: str, times: int = -1) -> None:
        """Let calls on paths that match ``pattern`` fail with ``code`` from now on."""
        self._faults.add(pattern, code, *actions, times=times)
        self._write()

    def heal(self) -> None:
        self._faults.heal()
        self._write()

    def _write(self) -> None:
        fresh = self._rules_path.with_suffix(".new")
        fresh.write_text(json.dumps(self._faults.rules))
        # Two changes within one tick of the file system's clock must have different times.
        now_ns = time.time_ns()
        os.utime(fresh, ns=(now_ns, now_ns))
        fresh.rename(self._rules_path)


def _read(path: str) -> Any:
    return Path(path).read_bytes()


def main() -> int:
    import penstock.nsqd.daemon as daemon
    from penstock.cli.nsqd import main as nsqd_main

    daemon.Files = FaultyFiles  # type: ignore[misc]
    return nsqd_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
