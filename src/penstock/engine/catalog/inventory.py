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
from penstock.storage.topic_log import TopicLog, difference


class Inventory:
    """The journaled state of a log's files."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._journaled: dict[int, bytes] = {}  # the last record of each file, by base
        self._unknown = False  # whether files may be journaled that the log does not have
        self._open: tuple[Segment, ...] = ()  # whose state still changes: the active one
        self.seen: tuple[Segment, ...] = ()  # the log's files when they were last journaled

    def recover(self, journaled: Mapping[int, FileState]) -> None:
        self._journaled = {base: encode_file(base, state) for base, state in journaled.items()}
        self._unknown = True

    def changes(self) -> list[bytes]:
        """Records of the changes since the last call; the caller must journal them.

        Their cost follows what has changed, however many files there are.
        """
        files = self._log.files
        if files is self.seen:
            return [record for segment in self._open for record in self._change(segment)]
        gone, fresh = difference(self.seen, files)
        self.seen = files
        left = set(gone)
        changed = [*(segment for segment in self._open if segment not in left), *fresh]
        changes = [record for segment in changed for record in self._change(segment)]
        self._open = tuple(segment for segment in changed if not segment.sealed)
        bases = {segment.base for segment in gone} - {segment.base for segment in fresh}
        if self._unknown:
            self._unknown = False
            bases |= self._journaled.keys() - {segment.base for segment in files}
        for base in sorted(bases & self._journaled.keys()):
            del self._journaled[base]
            changes.append(encode_file(base, FileState(base, base, 0)))
        return changes

    def records(self) -> list[bytes]:
        """Records of all files, for a snapshot of the journal."""
        return list(self._journaled.values())

    def _change(self, segment: Segment) -> list[bytes]:
        held = segment.visible if segment.sealed else segment.synced
        unsynced = not held.count
        if unsynced:
            if segment.base in self._journaled:
                return []
            held = segment.visible
        state = FileState(segment.first, held.end, held.count, unsynced, segment.side)
        record = encode_file(segment.base, state)
        if self._journaled.get(segment.base) == record:
            return []
        self._journaled[segment.base] = record
        return [record]
