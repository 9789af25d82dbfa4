# The interface to the file system: the only code that opens, writes or removes files of a data
# path. (Configuration, certificates, logs, and the output of tools and pipelines are elsewhere.)
#
# Rule 1: files are named by path (str, absolute or as the data path was given).  This module owns
#         the descriptors: at most `open_max` stay open, the least recently used are closed first,
#         and one in use by another thread is never closed.
# Rule 2: an append is all or nothing (storage/handle.pyx).
# Rule 3: nothing is durable before `sync` of the file and, for its name, `sync_folder`.
# Rule 4: all methods may be called from any thread, start_append(), start_sync() and sync_here() only
#         from the loop; appends to one file are serialised.
#
# A subclass can stand in its place, or between it and its callers, and sees every write and sync, and
# can delay each.  A write is a call of `append` or `extend` or, with `native_threads`, of
# `start_append`; a sync one of `sync` or, with them, of `start_sync` or `sync_here`.
# tests/crash/lossy.py is in memory, with power cuts and failing disks; both pass
# tests/crash/test_files.py.

# Paths are str because a pathlib call costs more than the system call it wraps.

import errno
import fcntl
import os
import threading
from contextlib import suppress
from functools import partial

from libc.stdint cimport int64_t

from penstock.storage.handle cimport Handle, write_all
from penstock.storage.native_threads cimport NativeThreads

from penstock.errors import LockedError
from penstock.page_cache import is_cached

MODE_FILE = 0o600
MODE_FOLDER = 0o700

# The largest read on the loop, a tenth of a millisecond; larger batches are read by a thread.
BUFFER_SIZE = 512 * 1024

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


cdef class Files:
    """The files of a data path, on the real disk."""

    def __init__(self, int open_max=256, *, bint read_only=False,
                 NativeThreads native_threads=None):
        self._open_max = open_max
        self._access = os.O_RDONLY if read_only else os.O_RDWR
        self._native_threads = native_threads
        self._handles = {}
        self._lock = threading.Lock()
        self._folder_locks = {}
        self._nowait = bool(_NOWAIT)
        self._buffer = bytearray(BUFFER_SIZE)

    # Reading

    def pread(self, path, offset, size, bint wait=True):
        """Up to ``size`` bytes at ``offset``; fewer only at the end of the file.

        With ``wait`` false the call never touches the disk: it returns None if the bytes are not in
        the page cache, are too many, or the file is not open, and fewer bytes if only some of them
        are cached.
        """
        cdef Handle handle, handle_open
        if wait:
            handle = self.pin(path, False)
            try:
                return _pread_all(handle.fd, offset, size)
            except OSError as error:
                _name(error, path)
                raise
            finally:
                self.unpin(handle)
        handle_open = self.pin_open(path) if self._nowait and size <= BUFFER_SIZE else None
        if handle_open is None:
            return None
        # Only the loop reads without waiting: one buffer is enough, and is not zeroed each time.
        view = memoryview(self._buffer)[:size]
        try:
            count = os.preadv(handle_open.fd, [view], offset, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            self._nowait = False  # not supported by this file system; every read goes to a thread
            return None
        finally:
            self.unpin(handle_open)
        return bytes(view[:count])

    def lend(self, path, offset, size):
        """A new descriptor, if these bytes are in the page cache, otherwise None."""
        cdef Handle handle = self.pin_open(path)
        if handle is None:
            return None
        try:
            return os.dup(handle.fd) if is_cached(handle.fd, offset, size) else None
        except OSError:
            return None  # no descriptor is left
        finally:
            self.unpin(handle)

    def read(self, path):
        """The whole file."""
        cdef Handle handle = self.pin(path, False)
        try:
            return _pread_all(handle.fd, 0, os.fstat(handle.fd).st_size)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            self.unpin(handle)

    def size(self, path):
        cdef Handle handle = self.pin(path, False)
        try:
            return os.fstat(handle.fd).st_size
        except OSError as error:
            _name(error, path)
            raise
        finally:
            self.unpin(handle)

    def exists(self, path):
        """Whether the path exists; raises OSError if that cannot be determined."""
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, folder):
        """The names in ``folder``, sorted; empty if there is no such folder."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def free_size(self, path):
        """The free bytes on the file system of ``path``."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_size(self, path):
        """The size of the file system of ``path``, in bytes."""
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    # Writing

    cpdef int64_t append(self, str path, parts, int64_t offset=-1) except -1:
        """Append ``parts`` to the file, which is created if it is missing; return its new size.

        After extend(), which writes zeros ahead, ``offset`` says where they begin.

        If not everything can be written, the file is truncated to its old size before the error is
        raised.  UncutError means that this failed as well: there may be bytes of a partial batch
        after the old end, and nothing more should be appended.
        """
        cdef Handle handle = self.pin(path, True)
        try:
            return handle.append(parts, offset)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            self.unpin(handle)

    cpdef bint start_append(self, str path, list parts, int64_t offset, done) except -1:
        """Have a thread append; ``done(error)`` is called on the loop, later.  See append().

        False if this needs a thread that runs Python: without ``native_threads``, or if the file is
        not open.
        """
        cdef Handle handle
        cdef int64_t start
        if self._native_threads is None:
            return False
        handle = self.pin_open(path)
        if handle is None:
            return False
        try:
            start = handle.begin(offset)
            try:
                size = start + sum([len(part) for part in parts])
                self._native_threads.write(
                    handle.fd, parts, start, partial(self._appended, handle, start, size, done))
            except BaseException:
                handle.ended(start)
                raise
        except BaseException:
            self.unpin(handle)
            raise
        return True

    def _appended(self, Handle handle, start, size, done, error):
        handle.ended(size if error is None else start)
        self.unpin(handle)
        if isinstance(error, OSError):
            _name(error, handle.path)
        done(error)

    def extend(self, path, start, end):
        """Write zeros from ``start``, the end of the file, to ``end``; all of them or none."""
        cdef Handle handle = self.pin(path, False)
        try:
            handle.extend(start, end)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            self.unpin(handle)

    def sync_size(self, path):
        """Make the size of the file durable, and what extend() wrote.

        The kernel reports a failed write once to each open file.  This opens one of its own, so that
        a sync of the messages fails if theirs is the write that failed.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            os.close(fd)

    def truncate(self, path, size):
        cdef Handle handle = self.pin(path, False)
        try:
            handle.cut(size)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            self.unpin(handle)

    def write_new(self, path, data):
        """Replace the file by ``data`` atomically and durably."""
        self._check_place()
        temporary = f"{path}.{os.urandom(6).hex()}.tmp"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE_FILE)
            try:
                write_all(fd, [data], 0)
                os.fsync(fd)
            finally:
                os.close(fd)
            self.rename(temporary, path)
        except OSError:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            raise
        self.sync_folder(os.path.dirname(path))

    def allocate(self, path, size):
        """Allocate disk space for the file, up to ``size`` bytes."""
        cdef Handle handle = self.pin(path, True)
        try:
            handle.allocate(size)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            self.unpin(handle)

    cpdef sync(self, str path):
        """Make the bytes of the file durable."""
        cdef Handle handle = self.pin(path, False)
        try:
            os.fdatasync(handle.fd)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            self.unpin(handle)

    cpdef bint sync_here(self, str path) except -1:
        """Make the bytes of the file durable on the loop, if that has been quick of late.

        False if a thread has to do it.
        """
        cdef Handle handle
        if self._native_threads is None:
            return False
        handle = self.pin_open(path)
        if handle is None:
            return False
        try:
            return self._native_threads.sync_here(handle.fd)
        except OSError as error:
            _name(error, path)
            raise
        finally:
            self.unpin(handle)

    cpdef bint start_sync(self, str path, done) except -1:
        """Have a thread sync the file; ``done(error)`` is called on the loop, later.

        False if this needs a thread that runs Python: without ``native_threads``, or if the file is
        not open.
        """
        cdef Handle handle
        if self._native_threads is None:
            return False
        handle = self.pin_open(path)
        if handle is None:
            return False
        try:
            self._native_threads.sync(handle.fd, partial(self._synced, handle, done))
        except BaseException:
            self.unpin(handle)
            raise
        return True

    def _synced(self, Handle handle, done, error):
        self.unpin(handle)
        if error is not None:
            _name(error, handle.path)
        done(error)

    # Names

    def sync_folder(self, folder):
        fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_folder(self, folder):
        """Create ``folder`` and its missing parents."""
        self._check_place()
        above = os.path.dirname(folder)
        if above and not os.path.isdir(above):
            self.make_folder(above)  # os.makedirs gives the mode to the last one only
        with suppress(FileExistsError):
            os.mkdir(folder, MODE_FOLDER)
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)

    def rename(self, old, new):
        self._check_place()
        try:
            os.rename(old, new)
        finally:
            self._forget(old)
            self._forget(new)

    def unlink(self, path):
        """Remove a file, if it exists."""
        self._check_place()
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        finally:
            self._forget(path)

    def remove_tree(self, folder):
        """Remove ``folder`` and the files in it."""
        for name in self.list(folder):
            path = f"{folder}/{name}"
            if os.path.isdir(path) and not os.path.islink(path):
                self.remove_tree(path)
            else:
                self.unlink(path)
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return

    def lock(self, folder, *, bint shared=False):
        """Lock ``folder`` until unlock(), or raise LockedError with nsqd's text.

        A shared lock excludes exclusive ones, and needs no write permission.
        """
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise LockedError(locked_text(folder)) from error
        if _place(os.fstat(fd)) != self.place(folder):
            os.close(fd)
            raise LockedError(f"{folder} was removed or replaced while it was locked")
        self._folder_locks[folder] = fd

    def unlock(self, folder):
        os.close(self._folder_locks.pop(folder))

    def place(self, path):
        """(device, inode) of a path; None if it does not exist."""
        try:
            return _place(os.stat(path))
        except FileNotFoundError:
            return None

    def bar(self, reason):
        """Fail every open, create, rename and remove with ``reason``, until ``bar(None)``."""
        self._barred = reason

    def _check_place(self):
        """Raise if the locked folder was replaced by another one of the same name."""
        if self._barred is not None:
            raise self._barred
        for folder, fd in self._folder_locks.items():
            if _place(os.fstat(fd)) != self.place(folder):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), folder)

    def close(self):
        """Close all descriptors and release all locks."""
        with self._lock:
            handles = list(self._handles.values())
            self._handles.clear()
        _close_all([handle for handle in handles if handle.drop()])
        for folder in list(self._folder_locks):
            self.unlock(folder)

    # Descriptors

    def is_open(self, path):
        """Whether the file is open: then an append needs no path lookup, which may block."""
        return path in self._handles

    @property
    def open_count(self):
        return len(self._handles)

    cdef Handle pin(self, str path, bint create):
        # The open file, in use until unpin(); opened if it is not.
        cdef Handle handle = self.pin_open(path)
        return handle if handle is not None else self.pin_new(path, create)

    cdef Handle pin_open(self, str path):
        cdef Handle handle = self._handles.get(path)
        return handle if handle is not None and handle.take() else None

    cdef Handle pin_new(self, str path, bint create):
        # open() may wait for the disk, so it is called without the lock.  If a name changed
        # meanwhile, the descriptor may be that of a removed or renamed file: open again.
        cdef Handle handle, fresh
        cdef int64_t changes
        if self._barred is not None:
            raise self._barred
        flags = self._access | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        while True:
            changes = self._name_changes
            fresh = Handle(path, os.open(path, flags, MODE_FILE))
            surplus = [fresh]  # if another thread was faster
            with self._lock:
                handle = self.pin_open(path)
                if handle is None and changes == self._name_changes:
                    handle = self._handles[path] = fresh
                    surplus = self._take_surplus()
            _close_all(surplus)
            if handle is not None:
                return handle

    cdef int unpin(self, Handle handle) except -1:
        if handle.give():
            os.close(handle.fd)
        return 0

    def _take_surplus(self):
        count = len(self._handles) - self._open_max
        if count <= 0:
            return []
        count += self._open_max // 8  # several at once, since all are sorted each time
        idle = [handle for handle in self._handles.values() if not handle.users]
        idle.sort(key=lambda handle: handle.recent)
        # Keep one that is taken just now: two handles of a file would disagree on its size.
        surplus = [handle for handle in idle[:count] if handle.drop_unused()]
        for handle in surplus:
            del self._handles[handle.path]
        for handle in idle:
            handle.recent = False
        return surplus

    def _forget(self, path):
        # A renamed or removed file, or all files of a renamed folder: an open descriptor would keep
        # a deleted topic's bytes on the disk.  Reads in progress finish on the old descriptor.
        with self._lock:
            self._name_changes += 1
            gone = [name for name in self._handles if name == path or name.startswith(path + "/")]
            handles = [self._handles.pop(name) for name in gone]
        _close_all([handle for handle in handles if handle.drop()])


def _place(status):
    return status.st_dev, status.st_ino


def _name(error, path):
    """Add the file name, which errors of calls on descriptors lack."""
    if error.filename is None:
        error.filename = path


def _close_all(handles):
    # Never with the lock held: closing a removed segment frees its pages, 12 ms for 100 MB, and the
    # loop would wait for the lock.
    for handle in handles:
        os.close(handle.fd)


def locked_text(folder):
    # nsqd's text, with Go's spelling of EAGAIN.
    return (
        f"failed to lock data-path: cannot flock directory {folder} - resource temporarily"
        " unavailable (possibly in use by another instance of nsqd)"
    )


def _pread_all(fd, offset, size):
    piece = os.pread(fd, size, offset)
    if len(piece) in (0, size):
        return piece
    pieces = [piece]
    missing = size - len(piece)
    while piece and missing:
        piece = os.pread(fd, missing, offset + size - missing)
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
