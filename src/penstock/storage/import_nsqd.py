# Import of the data path of a Go nsqd.
#
#     source   nsqd.dat, *.diskqueue.*.dat       read only; locked shared, so no nsqd runs on it
#     target   penstock/import/topics/...        written here,
#              penstock/imported/                renamed to this when complete and synced,
#              penstock/topics/...               and moved here (datapath.py, also at nsqd's start)
#
# Rule 1: nothing in the source is written, renamed or removed.
# Rule 2: all topics or none.  A crash leaves a folder that the next start or import removes.
# Rule 3: if the target already has one of the topics, the import is rejected before it reads.
# Rule 4: what cannot be imported is reported, by file and offset.

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.errors import CorruptError, LockedError, StorageError
from penstock.storage.datapath import DataPath
from penstock.storage.diskqueue import MSG_SIZE_MAX, Queue, QueueDamage, find_queues, plan_queue
from penstock.storage.files import Files
from penstock.storage.import_report import ImportReport
from penstock.storage.import_topic import (
    CountSink,
    LogSink,
    SourceQueue,
    SourceTopic,
    TopicImport,
)
from penstock.storage.metadata import load_metadata
from penstock.storage.node import load_node

_EPHEMERAL = "#ephemeral"
_NAME = re.compile(r"[.a-zA-Z0-9_-]{1,64}")

# (topic, step, done, total), see import_topic.py.
ImportProgress = Callable[[str, str, int, int], None]


@dataclass
class Source:
    """The contents of a Go nsqd's data path."""

    topics: dict[str, SourceTopic] = field(default_factory=dict)
    damage: list[QueueDamage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def import_nsqd(
    source: str,
    target: str,
    *,
    node_id: int,
    dry_run: bool = False,
    salvage: bool = True,
    msg_size_max: int = MSG_SIZE_MAX,
    progress: ImportProgress = lambda topic, step, done, total: None,
) -> ImportReport:
    """Import the topics of ``source`` into ``target``; blocking.

    After a StorageError or OSError the target is unchanged.
    """
    started_s = time.monotonic()
    _check_apart(source, target)
    report = ImportReport(source, target, dry_run)
    source_files = Files(read_only=True)
    try:
        _lock_source(source_files, source)
        found = survey_source(source_files, source, salvage=salvage)
        report.damage, report.notes = found.damage, found.notes
        staged = _dry_staging(target, found) if dry_run else _staging(target, found)
        with staged as staging:
            for topic in found.topics.values():
                taking = TopicImport(
                    source_files,
                    topic,
                    staging.files,
                    staging.work,
                    report.damage,
                    partial(progress, topic.name),
                    msg_size_max,
                )
                sink = CountSink() if dry_run else staging.sink(topic.name, node_id)
                report.topics.append(taking.take(sink, staging.base))
            staging.commit()
    finally:
        source_files.close()
    report.seconds = time.monotonic() - started_s
    return report


def _check_apart(source: str, target: str) -> None:
    """Reject a target inside the source, which must not be written to."""
    if Path(target).resolve().is_relative_to(Path(source).resolve()):
        raise StorageError(
            f"the target {target} must be outside the source {source}, which is never changed"
        )


def _lock_source(files: Files, source: str) -> None:
    try:
        files.lock(source, shared=True)
    except LockedError as error:
        raise LockedError(f"{source} is in use by a running nsqd: stop it first") from error


# ---- the source


def survey_source(files: Files, folder: str, *, salvage: bool = True) -> Source:
    """The topics, channels and queues of a Go nsqd's data path; blocking."""
    names = files.list(folder)
    queues = find_queues(folder, names)
    if not queues and "nsqd.dat" not in names:
        raise StorageError(f"{folder} is not a data path of nsqd: no nsqd.dat, no queue files")
    source = Source()
    if "nsqd.dat" in names:
        _add_listed(files, folder, source)
    else:
        source.notes.append(f"{folder}/nsqd.dat is missing: topics are those of the queue files")
    for queue in queues:
        _add_queue(files, queue, source, salvage)
    for topic in source.topics.values():
        # The topic's own queue first, so that its copy of a message is read first.
        topic.queues.sort(key=lambda queue: queue.channel)
    return source


def _add_listed(files: Files, folder: str, source: Source) -> None:
    path = f"{folder}/nsqd.dat"
    try:
        metadata = load_metadata(files, path)
    except CorruptError as error:
        raise CorruptError(
            f"{error}; nsqd would not start on it either.  Repair it, or move it away: then topics"
            " and channels are those of the queue files, and none is paused"
        ) from error
    for entry in metadata.topics:
        if not _taken(entry.name, f"topic {entry.name}", source):
            continue
        topic = source.topics.setdefault(entry.name, SourceTopic(entry.name))
        topic.paused = topic.paused or entry.paused
        for channel in entry.channels:
            if _taken(channel.name, f"channel {entry.name}:{channel.name}", source):
                paused = topic.channels.get(channel.name, False) or channel.paused
                topic.channels[channel.name] = paused


def _add_queue(files: Files, queue: Queue, source: Source, salvage: bool) -> None:
    topic_name, separator, channel = queue.name.partition(":")
    if not separator:
        topic_name, separator, channel = queue.name.partition(";")
    what = f"queue {queue.name}"
    if not _taken(topic_name, what, source) or (separator and not _taken(channel, what, source)):
        return
    plan = plan_queue(files, queue, salvage=salvage)
    source.damage += plan.damage
    source.notes += plan.notes
    known = source.topics.get(topic_name)
    if known is None or (separator and channel not in known.channels):
        if separator or plan.extents:
            source.notes.append(f"{what}: not in nsqd.dat; imported anyway")
        known = source.topics.setdefault(topic_name, SourceTopic(topic_name))
        if separator:
            known.channels.setdefault(channel, False)
    known.queues.append(SourceQueue(queue.name, channel, plan))


def _taken(name: str, what: str, source: Source) -> bool:
    if name.endswith(_EPHEMERAL):
        source.notes.append(f"{what}: ephemeral, skipped")
    elif _NAME.fullmatch(name) is None:
        source.notes.append(f"{what}: not a valid name, skipped")
    else:
        return True
    return False


# ---- the target


class Staging:
    """Where an import is written before its commit; ``base`` is every topic's first index."""

    def __init__(self, files: Files, work: str, data: DataPath | None = None) -> None:
        self.files = files
        self.work = work
        self.base = 0
        self._data = data
        self._now_ns = time.time_ns()
        if data is not None:
            # As at nsqd's start: above all indexes ever used in this data path (R1).
            floor = load_node(files, data.node, data.node_copy).index_floor
            self.base = max(floor, self._now_ns // 1_000_000 << 12)

    @property
    def _topics(self) -> str:
        assert self._data is not None
        return f"{self._data.importing}/topics"

    def sink(self, topic: str, node_id: int) -> LogSink:
        instance = int.from_bytes(os.urandom(8), "big") >> 1 or 1
        folder = f"{self._topics}/{topic}~{instance:016x}"
        return LogSink(self.files, folder, topic, instance, node_id, self.base, self._now_ns)

    def commit(self) -> None:
        if self._data is not None:
            self._data.commit_import(self._topics)


@contextmanager
def _staging(target: str, source: Source) -> Iterator[Staging]:
    """A folder in ``target``, removed unless committed."""
    files = Files()
    data = DataPath(files, target)
    made = _first_missing(files, data.own)
    try:
        files.make_folder(data.root)
        files.sync_folder(str(Path(data.root).parent))
        data.open()  # nothing may be removed before it is locked
        try:
            _refuse_known(data, source)
            files.make_folder(f"{data.importing}/topics")
            files.make_folder(f"{data.importing}/sort")
            yield Staging(files, f"{data.importing}/sort", data)
            made = ""
        finally:
            files.remove_tree(made or data.importing)
    finally:
        files.close()


def _first_missing(files: Files, path: str) -> str:
    """The topmost folder of ``path`` that does not exist, or ""."""
    missing = ""
    while not files.exists(path):
        missing, path = path, str(Path(path).parent)
    return missing


@contextmanager
def _dry_staging(target: str, source: Source) -> Iterator[Staging]:
    """A temporary folder for sorting, outside of the target, which may not exist."""
    files = Files()
    data = DataPath(files, target)
    data.refuse_queues()
    _refuse_known(data, source)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-import-") as work:
            yield Staging(files, work)
    finally:
        files.close()


def _refuse_known(data: DataPath, source: Source) -> None:
    known = {folder.topic for folder in data.topic_folders()} & set(source.topics)
    if known:
        names = ", ".join(sorted(known)[:10])
        more = f" and {len(known) - 10} more" if len(known) > 10 else ""
        raise StorageError(f"{data.root} has topics of these names already: {names}{more}")
