"""One writer: the lock of a folder that a pipeline writes to, with an owner and a heartbeat.

    <table>/_penstock/ledger/<pipeline>/lock.json    one for each table
    <checkpoint>.ledger/lock.json                    one for the checkpoint
        {"version": 1, "nonce", "pipeline", "host", "machine", "boot_id", "pid_namespace", "pid",
         "start_time", "since_ms"}
    lock.json.<nonce>.beat                           written every BEAT_S by the owner
    lock.json.<nonce>.next                           whoever creates it succeeds a dead owner

A lock is created without overwriting, so of two starts one wins.  Whoever creates ``<nonce>.next``
first succeeds a dead owner; the winner replaces ``lock.json`` and then removes ``.next``.  A slow
third process that creates it again finds another nonce in ``lock.json`` and has lost.

Rule 1: an owner on this machine is dead as soon as its process is.  While the process exists it
        owns the lock, even if it is suspended: two writers are worse than none.
Rule 2: an owner elsewhere is dead if its heartbeat is older than LEASE_S.  Ages are differences
        between two times of the same file system, so the clocks of machines do not matter.
Rule 3: an owner that was suspended for longer than the lease may have lost the lock.  It reads the
        lock before each batch, and ends if it is not its own (``check``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import AlreadyRunningError, PipelineError
from penstock.pipeline.folders import Folder, is_local, open_folder, open_local
from penstock.pipeline.spec import DeltaSink, ParquetSink, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.pipeline")

NAME = "lock.json"
VERSION = 1
LEASE_S = 30.0
BEAT_S = 5.0
TRY_COUNT_MAX = 20
TRY_PAUSE_S = 0.05
TEXT_SIZE_MAX = 255


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock.  Unknown fields are empty or 0."""

    pipeline: str = ""
    host: str = ""
    machine: str = ""  # /etc/machine-id
    boot_id: str = ""
    pid_namespace: str = ""  # a pid means nothing in another container
    pid: int = 0
    start_time: int = 0  # ticks after boot: a pid is reused, this pair is not
    since_ms: int = 0
    nonce: str = ""

    @classmethod
    def of_this_process(cls, pipeline: str) -> Owner:
        pid = os.getpid()
        return cls(
            pipeline=pipeline,
            host=socket.gethostname()[:TEXT_SIZE_MAX],
            machine=_line("/etc/machine-id"),
            boot_id=_line("/proc/sys/kernel/random/boot_id"),
            pid_namespace=_pid_namespace(),
            pid=pid,
            start_time=start_time_of(pid) or 0,
            since_ms=int(time.time() * 1000),
            nonce=uuid.uuid4().hex,
        )

    @classmethod
    def read(cls, data: bytes) -> Owner:
        """Read it from a file; invalid fields count as unknown."""
        try:
            found = json.loads(data)
        except ValueError:
            return cls()
        if not isinstance(found, dict):
            return cls()
        known: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = found.get(field.name)
            if type(value) is type(field.default):
                known[field.name] = value[:TEXT_SIZE_MAX] if isinstance(value, str) else value
        return cls(**known)

    def to_json(self) -> bytes:
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1).encode()

    @property
    def label(self) -> str:
        """Formatted for people: which process, where, and since when."""
        if not self.pid:
            return "an unknown process (the lock is unreadable)"
        return f"process {self.pid} on {self.host}, since {_moment(self.since_ms)}"

    def runs(self, here: Owner) -> bool | None:
        """Whether its process exists, as seen from ``here``; None: only its heartbeat can tell."""
        if not self.pid or (self.host, self.machine) != (here.host, here.machine):
            return None
        if self.boot_id != here.boot_id:
            return False  # the machine was rebooted since
        if self.pid_namespace != here.pid_namespace:
            return None
        found = start_time_of(self.pid)
        return None if found == 0 else found == self.start_time


class Lock:
    """The lock of one folder.  ``take``, ``check`` before each batch, ``release``."""

    def __init__(self, folder: Folder, path: str, owner: Owner) -> None:
        self.folder = folder  # replaced if its session has died
        self.path = path
        self.owner = dataclasses.replace(owner, nonce=uuid.uuid4().hex)
        self.held = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def place(self) -> str:
        return f"{self.folder.uri}/{self.path}"

    def take(self) -> None:
        """Acquire the lock, or raise AlreadyRunningError at once."""
        for _ in range(TRY_COUNT_MAX):
            self._beat()
            if self.folder.create(self.path, self.owner.to_json()) and self._is_ours():
                break
            holder = self._judge()
            if holder is not None and self._succeed(holder):
                log.warning("lock=%s: was held by %s, which has died", self.place, holder.label)
                break
            time.sleep(TRY_PAUSE_S)
        else:
            self._forget()
            raise AlreadyRunningError(f"{self.place}: others try to take it too; start again")
        self.held = True
        self._thread = threading.Thread(target=self._heartbeat, name="lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if the lock is no longer ours; then nothing may be written."""
        data = self.folder.read(self.path)
        if data is None:
            raise PipelineError(
                f"{self.place} is missing: somebody removed the folder while the pipeline ran.  "
                "Nothing more is written; restart, which reports what is missing"
            )
        holder = Owner.read(data)
        if holder.nonce != self.owner.nonce:
            self.held = False
            raise AlreadyRunningError(
                f"{self.place} was taken over by {holder.label}: this process sent no heartbeat "
                f"for longer than {LEASE_S:g} s.  It exits, and nothing more is written"
            )

    def release(self) -> None:
        """Release it if it is ours; never raises."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(BEAT_S)
        with contextlib.suppress(Exception):
            if self.held and self._is_ours():
                self.folder.remove(self.path)
        with contextlib.suppress(Exception):
            self._forget()
        self.held = False

    # The owner

    def _is_ours(self) -> bool:
        data = self.folder.read(self.path)
        return data is not None and Owner.read(data).nonce == self.owner.nonce

    def _judge(self) -> Owner | None:
        """The dead owner; None if there is no lock; AlreadyRunningError if the owner is alive."""
        data = self.folder.read(self.path)
        if data is None:
            return None
        holder = Owner.read(data)
        runs = holder.runs(self.owner)
        if runs is False:
            return holder
        age_s = self._age_s(holder)
        if runs or age_s < LEASE_S:
            self._forget()
            raise AlreadyRunningError(self._refusal(holder, runs=bool(runs), age_s=age_s))
        return holder

    def _age_s(self, holder: Owner) -> float:
        """The age of the newest heartbeat, by the clock of the file system."""
        now_ms = self.folder.modified_ms(self._beat_path(self.owner))
        signs = (self.path, self._beat_path(holder)) if holder.nonce else (self.path,)
        times = [self.folder.modified_ms(path) for path in signs]
        known = [time_ms for time_ms in times if time_ms is not None]
        if now_ms is None or not known:
            return 0.0
        return (now_ms - max(known)) / 1000

    def _refusal(self, holder: Owner, *, runs: bool, age_s: float) -> str:
        name = self.owner.pipeline
        text = f"pipeline {name} is already running: {holder.label} ({self.place})"
        if runs and age_s >= LEASE_S:
            return f"{text}.  It sent no heartbeat for {age_s:.0f} s; if it hangs, kill it"
        if not runs and age_s > BEAT_S * 2:
            left_s = max(1.0, LEASE_S - age_s)
            return (
                f"{text}.  Its last heartbeat was {age_s:.0f} s ago; if it has died, "
                f"start again in {left_s:.0f} s"
            )
        return text

    # Replacing a dead owner

    def _succeed(self, holder: Owner) -> bool:
        """Replace a dead owner; False if another process does."""
        claim = f"{self.path}.{holder.nonce or 'unknown'}.next"
        if not self.folder.create(claim, self.owner.to_json()):
            self._drop_dead_claim(claim)
            return False
        try:
            data = self.folder.read(self.path)
            if data is None or Owner.read(data) != holder:
                return False
            self.folder.write(self.path, self.owner.to_json())
            if holder.nonce:
                self.folder.remove(self._beat_path(holder))
            return self._is_ours()
        finally:
            self.folder.remove(claim)

    def _drop_dead_claim(self, claim: str) -> None:
        """Remove the claim of a process that died before it replaced the lock."""
        data = self.folder.read(claim)
        if data is None:
            return
        claimer = Owner.read(data)
        if claimer.runs(self.owner) is False:
            self.folder.remove(claim)
            return
        made_ms, now_ms = map(self.folder.modified_ms, (claim, self._beat_path(self.owner)))
        if made_ms is not None and now_ms is not None and now_ms - made_ms > LEASE_S * 1000:
            self.folder.remove(claim)

    # The heartbeat

    def _beat_path(self, owner: Owner) -> str:
        return f"{self.path}.{owner.nonce}.beat"

    def _beat(self) -> None:
        self.folder.touch(self._beat_path(self.owner))

    def _forget(self) -> None:
        self.folder.remove(self._beat_path(self.owner))

    def _heartbeat(self) -> None:
        warned = False
        while not self._stop.wait(BEAT_S):
            try:
                self._beat()
                warned = False
            except Exception as error:
                # Py4J raises many kinds if the JVM died.  ``check`` decides, before a batch.
                if not warned:
                    log.warning("lock=%s: no heartbeat: %s", self.place, error)
                warned = True


class Locks:
    """All locks of a run, taken in a fixed order, so that two runs never wait for each other."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._places = places_of(pipeline)
        self._owner = Owner.of_this_process(pipeline.name)
        self._locks: dict[str, Lock] = {}  # by folder

    def take_local(self) -> None:
        """Take those of local folders, which need no session: a second start fails at once."""
        for uri, path in self._places:
            if is_local(uri):
                self._take(uri, open_local(uri), path)

    def take_others(self, spark: SparkSession) -> None:
        """Take those of Hadoop's folders.  A new session, after one that died, keeps them."""
        for uri, path in self._places:
            if is_local(uri):
                continue
            folder = open_folder(spark, uri)
            if uri in self._locks:
                self._locks[uri].folder = folder
            else:
                self._take(uri, folder, path)
        self.check()

    def check(self) -> None:
        """Raise if one is no longer ours; then nothing may be written."""
        for lock in self._locks.values():
            lock.check()

    def release(self) -> None:
        while self._locks:
            self._locks.popitem()[1].release()

    def _take(self, uri: str, folder: Folder, path: str) -> None:
        lock = Lock(folder, path, self._owner)
        try:
            lock.take()
        except BaseException:
            self.release()
            raise
        self._locks[uri] = lock


def places_of(pipeline: Pipeline) -> list[tuple[str, str]]:
    """(folder, path) of each lock, local ones first.  A job writes nothing."""
    if pipeline.job:
        return []
    tables = [sink.path for sink in pipeline.sinks if isinstance(sink, ParquetSink | DeltaSink)]
    folders = {pipeline.resolve(path) for path in (*tables, pipeline.invalid.path) if path}
    places = {(uri, f"_penstock/ledger/{pipeline.name}/{NAME}") for uri in folders}
    places.add((ledger_folder(pipeline), NAME))
    return sorted(places, key=lambda place: (not is_local(place[0]), place))


def ledgers_of(pipeline: Pipeline) -> list[str]:
    """The folders of locks and ledgers."""
    return [f"{uri}/{path}".removesuffix(f"/{NAME}") for uri, path in places_of(pipeline)]


def ledger_folder(pipeline: Pipeline) -> str:
    """Beside the checkpoint, so that it stays when the checkpoint is moved aside."""
    return f"{pipeline.checkpoint_path.rstrip('/')}.ledger"


def start_time_of(pid: int) -> int | None:
    """When a process was started, in ticks after boot; None if it has ended, 0 if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        pass
    # There is no /proc, or it hides the processes of other users.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return 0
    return 0


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()[:TEXT_SIZE_MAX]
    except OSError:
        return ""


def _moment(time_ms: int) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
