"""Creates new topics on disk, many at a time.

    loop     a publish or subscription names a topic: it exists at once, its messages wait
    thread   creates folders and journals of up to BATCH_COUNT topics, with one sync of the parent
    loop     opens them, a few per turn, and writes their waiting messages
    lane     syncs each journal and writes nsqd.dat; then ``created`` is settled (R6)

Rule 1: only a few topics are created at once, in a lane of the disk threads, so that the writes and
        syncs of other topics have the other threads (R9).
Rule 2: if the folder cannot be created, the topic does not exist.  If the journal cannot be
        written, it is written later; clients that wait get the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.core.ticket import Ticket
from penstock.engine.context import Context
from penstock.engine.disk import Disk
from penstock.engine.health import Health
from penstock.engine.topic import Topic
from penstock.errors import UncutError
from penstock.storage.files import Files
from penstock.storage.journal import Journal

# Topics created by one task on a disk thread.
BATCH_COUNT = 64
# With more than this many topics created and not durable yet, the next batch waits.
UNDURABLE_COUNT_MAX = 64
# Topics opened in one turn of the loop: about a millisecond.
OPEN_COUNT = 8


@dataclass(slots=True)
class _NewTopic:
    """A topic that is being created, and the errors of that."""

    topic: Topic
    journal: Journal
    records: bytes
    folder_error: Exception | None = None
    journal_error: Exception | None = None

    def make(self, files: Files) -> None:
        """Blocking."""
        try:
            files.make_folder(self.topic.log.folder)
        except OSError as error:
            self.folder_error = error
            return
        try:
            self.journal.begin(self.records)
        except (OSError, UncutError) as error:
            self.journal_error = error


class Creation:
    """Creates folders and journals of new topics; ``drop`` removes a topic if that fails."""

    def __init__(
        self, context: Context, health: Health, disk: Disk, drop: Callable[[Topic], None]
    ) -> None:
        self._context = context
        self._health = health
        self._disk = disk
        self._drop = drop
        self._waiting: deque[Topic] = deque()
        self._made: deque[_NewTopic] = deque()
        self._making = False
        self._undurable_count = 0

    def add(self, topic: Topic) -> None:
        """Create ``topic`` on disk; its ticket ``created`` is settled when that is durable."""
        self._waiting.append(topic)
        self._make_soon()

    def _make_soon(self) -> None:
        if self._making or not self._waiting or self._undurable_count > UNDURABLE_COUNT_MAX:
            return
        self._making = True
        self._context.turns.soon(self._make)

    def _make(self) -> None:
        new_topics: list[_NewTopic] = []
        while self._waiting and len(new_topics) < BATCH_COUNT:
            topic = self._waiting.popleft()
            new_topics.append(_NewTopic(topic, *topic.begin()))
        self._undurable_count += len(new_topics)
        work = partial(_make_all, self._context.files, self._context.data.topics, new_topics)
        self._disk.submit(work, partial(self._have_made, new_topics))

    def _have_made(self, new_topics: list[_NewTopic], _: None, error: Exception | None) -> None:
        for new in new_topics:
            new.folder_error = new.folder_error or error
        self._made.extend(new_topics)
        self._open()

    def _open(self) -> None:
        for _ in range(min(len(self._made), OPEN_COUNT)):
            new = self._made.popleft()
            self._context.supervisor.guard(new.topic.name, self._finish, new)
        if self._made:
            self._context.turns.soon(self._open)
        else:
            self._making = False
            self._make_soon()

    def _finish(self, new: _NewTopic) -> None:
        topic = new.topic
        failure = new.folder_error
        if failure is not None:
            self._health.failed(failure)
            self._drop(topic)
            topic.fail(failure)
            self._settle(topic.created, failure)
            return
        created = topic.created
        topic.begun(new.journal_error).add(lambda saved: self._settle(created, saved.error))

    def _settle(self, created: Ticket, error: Exception | None) -> None:
        self._undurable_count -= 1
        created.settle(error)
        self._make_soon()


def _make_all(files: Files, topics_folder: str, new_topics: list[_NewTopic]) -> None:
    for new in new_topics:
        new.make(files)
    files.sync_folder(topics_folder)
