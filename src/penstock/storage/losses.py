# Finds files and messages that are missing from a topic's folder.
#
# There are three sources, checked in this order:
#   the FILE records of the journal      every file, with its messages
#   the header of the next segment       where the one before it ended
#   the SYNCED record                    a segment, and its size
#
# Earlier versions wrote no FILE records: then only the other two are checked.
#
# ``whole_from`` is raised past missing messages: readers by index must not consider that range
# complete (R18), and the next start does not report it again.

from __future__ import annotations

from typing import NamedTuple

from penstock.storage.damage import DamageKind
from penstock.storage.journal import FileState, TopicState
from penstock.storage.segment import Segment
from penstock.storage.segment_format import segment_path, side_path
from penstock.storage.topic_log import TopicLog


class Loss(NamedTuple):
    """Synced data that is damaged or missing; at most ``messages`` messages, None: unknown."""

    kind: DamageKind
    path: str
    text: str
    messages: int | None = None


def find_missing(
    folder: str, state: TopicState, segments: list[Segment], log: TopicLog, known: list[Loss]
) -> list[Loss]:
    """All losses: ``known`` ones, which were found in the bytes, and missing files."""
    search = _Search(folder, segments, log, known)
    search.by_files(state.files)
    if not state.corrupt_count and not state.torn_size and state.index_max:
        # Otherwise the record of what was removed may have been lost.
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
        for base, expected in files.items():
            # By index, not by file: after a failed sync messages are in another file.
            count = expected.count - self.log.count_between(expected.first, expected.end)
            if count <= 0:
                continue
            segment = self.by_base.get(base)
            path = self.path(base, expected)
            if segment is not None and expected.unsynced:
                continue  # torn
            self.ranges.append((expected.first, expected.end))
            if segment is not None:
                path = segment.path
                text = (
                    f"{path} was cut: it holds {expected.count - count} of {expected.count}"
                    " messages"
                )
            else:
                text = f"{path} is missing, and {expected.count} messages with it"
                if expected.unsynced:
                    text += "; a power cut may have taken what was not synced"
            if path in self.known:
                self.recount(path, count)
            else:
                self.add(expected.side, path, text, count)

    def recount(self, path: str, count: int) -> None:
        """Correct the count of a loss that was found in the bytes of ``path``."""
        places = [place for place, loss in enumerate(self.losses) if loss.path == path]
        count -= sum(self.losses[place].messages or 0 for place in places)
        if count > 0:
            loss = self.losses[places[-1]]
            self.losses[places[-1]] = loss._replace(messages=(loss.messages or 0) + count)

    def path(self, base: int, expected: FileState) -> str:
        return side_path(self.folder, base, 0) if expected.side else segment_path(self.folder, base)

    def by_headers(self, whole_from: int, *, first: bool) -> None:
        """Check that each segment ends where the header of the next one says.

        The ``first`` header is checked only if there are no FILE records: without a segment before
        it, it has its own base there, which may be far above what was removed.
        """
        end = whole_from
        for segment in self.segments:
            # Whether there was a segment before the first one is unknown, unless some were removed
            # or the header declares a gap.
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
        """Whether messages of [start, end) were already found to be missing."""
        return any(a < end and start < b for a, b in self.ranges)

    def add(self, side: bool, path: str, text: str, messages: int | None = None) -> None:
        kind = DamageKind.SIDE if side else DamageKind.LOG
        self.losses.append(Loss(kind, path, text, messages))
