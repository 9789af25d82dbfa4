"""Patterns of names with ``*`` and ``?``, and which of many match a name.

A file may have 10,000 patterns, and each new topic or channel is compared with them.  So a pattern
without wildcards is found by one lookup, and one that contains some text by lookups of the parts of
the name, which has up to 64 bytes.  Only those that this finds are tried one by one.

A match never backtracks: between stars the first place of each part is the best one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from fnmatch import translate

PATTERN_SIZE_MAX = 64
_VALID = re.compile(rf"[.a-zA-Z0-9_*?#-]{{1,{PATTERN_SIZE_MAX}}}")
_WILD = re.compile(r"[*?]")
_RUN = re.compile(r"[*?]*\*[*?]*")


def is_pattern(text: str) -> bool:
    """Whether ``text`` can match a name: its characters, ``*`` and ``?``."""
    return _VALID.fullmatch(text) is not None


def plain(pattern: str) -> str:
    """The shortest pattern that matches the same: ``**`` is ``*``, and ``*?`` is ``?*``."""
    return _RUN.sub(lambda found: "?" * found[0].count("?") + "*", pattern)


class Glob:
    """One pattern."""

    __slots__ = ("_head", "_match", "_middles", "_size_min", "_tail", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = plain(pattern)
        parts = self.pattern.split("*")
        self._head, self._tail = parts[0], parts[-1]
        self._middles = parts[1:-1]
        self._size_min = sum(map(len, parts))
        self._match = re.compile(translate(self.pattern)).match if "?" in self.pattern else None

    def matches(self, name: str) -> bool:
        if self._match is not None:
            return self._match(name) is not None
        if "*" not in self.pattern:
            return name == self.pattern
        if len(name) < self._size_min or not name.startswith(self._head):
            return False
        at, end = len(self._head), len(name) - len(self._tail)
        for part in self._middles:
            at = name.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return at <= end and name.endswith(self._tail)


class GlobIndex:
    """Which of many patterns match a name, by their place in ``patterns``."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._exact: dict[str, list[int]] = {}
        places: dict[str, list[int]] = {}
        for place, pattern in enumerate(patterns):
            kind = places if _WILD.search(pattern) else self._exact
            kind.setdefault(pattern, []).append(place)
        # By the longest text that a name must contain; "" if there is none.
        self._parts: dict[str, list[tuple[Glob, list[int]]]] = {}
        for pattern, found in places.items():
            part = max(_WILD.split(pattern), key=len)
            self._parts.setdefault(part, []).append((Glob(pattern), found))
        self._sizes = sorted({len(part) for part in self._parts})

    def find(self, name: str) -> list[int]:
        """The places of all patterns that match, ascending."""
        found = list(self._exact.get(name, ()))
        for size in self._sizes[: bisect_right(self._sizes, len(name))]:
            for part in {name[at : at + size] for at in range(len(name) - size + 1)}:
                for glob, places in self._parts.get(part, ()):
                    if glob.matches(name):
                        found += places
        found.sort()
        return found
