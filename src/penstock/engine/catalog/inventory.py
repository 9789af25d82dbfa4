"""Which files a topic's log has, journaled so that a start notices a missing one.

Rule 1: an added file (a new segment, a side file) is journaled after it is on disk.
Rule 2: a removal is journaled and synced before the file is unlinked.
Rule 3: the active segment is journaled with what is synced of it; until something is, it is
        journaled as unsynced, as soon as it exists.

So the files that the journal lists existed when nsqd ended.  Only an unsynced segment may have been
lost in a power cut.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.storage.journal import FileState, encode_file
from penstock.storage.segment import Segment
from penstock.storage.topic_log import TopicLog


class Inventory:
    """The journaled state of a log's files."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._journaled: dict[int, FileState] = {}
        self.seen: tuple[Segment, ...] = ()  # the log's files when they were last journaled

    def recover(self, journaled: Mapping[int, FileState]) -> None:
        self._journaled = dict(journaled)

    def changes(self) -> list[bytes]:
        """Records of the changes since the last call; the caller must journal them."""
        files = self._log.files
        if files is self.seen:
            return self._change(files[-1]) if files else []
        self.seen = files
        changes = [record for segment in files for record in self._change(segment)]
        bases = {segment.base for segment in files}
        for base in [base for base in self._journaled if base not in bases]:
            del self._journaled[base]
            changes.append(encode_file(base, FileState(base, base, 0)))
        return changes

    def records(self) -> list[bytes]:
        """Records of all files, for a snapshot of the journal."""
        return [encode_file(base, state) for base, state in self._journaled.items()]

    def _change(self, segment: Segment) -> list[bytes]:
        held = segment.visible if segment.sealed else segment.synced
        unsynced = not held.count
        if unsynced:
            if segment.base in self._journaled:
                return []
            held = segment.visible
        state = FileState(segment.first, held.end, held.count, unsynced, segment.side)
        if self._journaled.get(segment.base) == state:
            return []
        self._journaled[segment.base] = state
        return [encode_file(segment.base, state)]
