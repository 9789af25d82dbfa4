# What should be in a topic's folder and is not.
#
# Three things tell, and each is asked for what the ones before it did not:
#   the FILE records of the journal      every file, with its messages
#   the header of the next segment       where the one before it ended
#   the SYNCED record                    a segment, and how large it was
#
# Versions before wrote no FILE records: then the other two tell what they can.
#
# ``whole_from`` is raised past what is missing: readers by index must not take that for whole
# (R18), and the next start does not miss it again.

from __future__ import annotations

from typing import NamedTuple

from penstock.storage.damage import DamageKind
from penstock.storage.journal import FileState, TopicState
from penstock.storage.segment import Segment, segment_path, side_path
from penstock.storage.topic_log import TopicLog


class Loss(NamedTuple):
    """Something that was synced and is damaged or gone; ``messages`` at most, None: unknown."""

    kind: DamageKind
    path: str
    text: str
    messages: int | None = None


def find_missing(
    folder: str, state: TopicState, segments: list[Segment], log: TopicLog, known: list[Loss]
) -> list[Loss]:
    """All losses: ``known``, what is wrong with the bytes, and what is gone without a trace."""
    search = _Search(folder, segments, log, known)
    search.by_files(state.files)
    if not state.corrupt_count and not state.torn_size and state.index_max:
        # Otherwise the journal may have lost the record that says what was removed.
        search.by_headers(state.whole_from, first=not state.files)
        search.by_synced(state)
    state.whole_from = max([state.whole_from, *(end for _, end in search.ranges)])
    return search.losses


class _Search:
    def __init__(
        self, folder: str, segments: list[Segment], log: TopicLog, known: list[Loss]
    ) -> None:
        self.folder = folder
        self.segments = segments
        self.by_base = {segment.base: segment for segment in segments}
        self.log = log
        self.known = {loss.path for loss in known}
        self.losses = list(known)
        self.ranges: list[tuple[int, int]] = []

    def by_files(self, files: dict[int, FileState]) -> None:
        for base, told in files.items():
            # By index, not by file: a failed sync moves messages to another one.
            count = told.count - self.log.count_between(told.first, told.end)
            if count <= 0:
                continue
            segment = self.by_base.get(base)
            path = self.path(base, told)
            if segment is not None and told.unsynced:
                continue  # torn
            self.ranges.append((told.first, told.end))
            if segment is not None:
                path = segment.path
                text = f"{path} was cut: it holds {told.count - count} of {told.count} messages"
            else:
                text = f"{path} is missing, and {told.count} messages with it"
                if told.unsynced:
                    text += "; a power cut may have taken what was not synced"
            if path in self.known:
                self.recount(path, count)
            else:
                self.add(told.side, path, text, count)

    def recount(self, path: str, count: int) -> None:
        """The bytes of ``path`` are damaged, and this many messages are not there."""
        places = [place for place, loss in enumerate(self.losses) if loss.path == path]
        count -= sum(self.losses[place].messages or 0 for place in places)
        if count > 0:
            loss = self.losses[places[-1]]
            self.losses[places[-1]] = loss._replace(messages=(loss.messages or 0) + count)

    def path(self, base: int, told: FileState) -> str:
        return side_path(self.folder, base, 0) if told.side else segment_path(self.folder, base)

    def by_headers(self, whole_from: int, *, first: bool) -> None:
        """Every header says where the segment before it ended.

        That of the ``first`` one is asked only where FILE records do not say better: without a
        segment before it, it names itself, which may be far behind what was removed.
        """
        end = whole_from
        for segment in self.segments:
            # Of the first one it is not known whether there was one before it, unless some were
            # removed or the header declares a gap.
            started = end or segment.previous_end < segment.base
            if segment is self.segments[0] and not first:
                started = False
            start, stop = max(end, whole_from), segment.previous_end
            if started and not segment.side and start < stop and not self.covered(start, stop):
                path = self.before(segment)
                text = f"{path}: messages {start} to {stop - 1} are missing before {segment.path}"
                self.ranges.append((start, stop))
                if path not in self.known:
                    self.add(False, path, text, stop - start if end else None)
            end = max(end, segment.visible.end)

    def before(self, segment: Segment) -> str:
        place = self.segments.index(segment)
        return self.segments[place - 1].path if place else self.folder

    def by_synced(self, state: TopicState) -> None:
        if state.synced is None:
            return
        base, offset = state.synced
        segment = self.by_base.get(base)
        path = segment_path(self.folder, base)
        if path in self.known or base < state.whole_from or self.covered(base, base + 1):
            return
        if segment is None and not any(s.first <= base < s.visible.end for s in self.segments):
            self.ranges.append((base, base + 1))
            self.add(False, path, f"{path} is missing, with {offset} bytes that were synced")
        elif segment is not None and not segment.side and segment.file_size < offset:
            text = f"{path} was cut to {segment.file_size} bytes; {offset} were synced"
            self.ranges.append((base, segment.visible.end + 1))
            self.add(False, path, text)

    def covered(self, start: int, end: int) -> bool:
        """Whether messages of [start, end) were found missing already."""
        return any(a < end and start < b for a, b in self.ranges)

    def add(self, side: bool, path: str, text: str, messages: int | None = None) -> None:
        kind = DamageKind.SIDE if side else DamageKind.LOG
        self.losses.append(Loss(kind, path, text, messages))
