"""--policy-file: rules as TOML.

    [[policy]]
    topic = "orders.*"       # * and ?; all topics if absent
    channel = "email"        # the same for channels; without it the rule is for topic and channels
    max_attempts = 5

An error names the file, the line and the key.  TOML's parser does not tell where a key is, so a
second, smaller reader finds the lines; it relies on the first one for the grammar.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from typing import Any

from penstock.engine.policy.globs import PATTERN_SIZE_MAX, is_pattern
from penstock.engine.policy.rules import Given, Rule, Rules
from penstock.engine.policy.values import convert, setting_of, short
from penstock.errors import OptionError, PolicyError
from penstock.settings.policy import TOPIC

FILE_SIZE_MAX = 4 << 20
RULE_COUNT_MAX = 10_000
# No valid line has any outside of quotes.  TOML's parser takes the square of a key's parts.
DOT_COUNT_MAX = 16

_TABLE = re.compile(r"""\s*\[\[\s*(policy|"policy"|'policy')\s*\]\]""")
_KEY = re.compile(r"""\s*([A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')\s*[=.]""")


def read_rules(path: str) -> Rules:
    """The rules of the file at ``path``; raises OptionError.  Blocking."""
    place = f"--policy-file {path}"
    try:
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OptionError(f"{place}: not a regular file")
            data = file.read(FILE_SIZE_MAX + 1)
    except (OSError, ValueError) as error:
        raise OptionError(f"{place}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > FILE_SIZE_MAX:
        raise OptionError(f"{place}: more than {FILE_SIZE_MAX >> 20} MiB")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise OptionError(f"{place}: line {line}: not UTF-8") from None
    return parse_rules(text, path)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for a writer


def parse_rules(text: str, path: str) -> Rules:
    """The rules in ``text``; ``path`` is for errors and origins."""
    import tomllib  # a start without a policy file does not need it

    place = f"--policy-file {path}"
    if number := _dotted_line(text):
        raise OptionError(f"{place}: line {number}: more than {DOT_COUNT_MAX} dots")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise OptionError(f"{place}: nested too deeply") from None
    except ValueError as error:  # most are TOMLDecodeError; a number may have too many digits
        twice: list[tuple[int, str]] = []
        key_lines(text, twice)
        if twice and "overwrite" in str(error):  # the parser tells where it stopped, not the key
            line, key = twice[0]
            raise OptionError(f"{place}: line {line}: {short(key)} is there twice") from None
        where = "" if isinstance(error, tomllib.TOMLDecodeError) else _long_number(text)
        raise OptionError(f"{place}: {where}{error}") from None
    tables = document.pop("policy", [])
    lines = key_lines(text)
    for key in document:
        line = top_line(text, key)
        raise OptionError(f"{place}: line {line}: {short(key)} is not in a [[policy]] table")
    if not isinstance(tables, list) or len(tables) != len(lines):
        raise OptionError(f"{place}: write each rule as a table [[policy]]")
    if len(tables) > RULE_COUNT_MAX:
        raise OptionError(f"{place}: {len(tables)} rules, over {RULE_COUNT_MAX}")
    rules = []
    for table, (line, keys) in zip(tables, lines, strict=True):
        reader = _TableReader(place, path, line, keys)
        rules.append(reader.rule(table))
    return Rules(rules)


class _TableReader:
    """One [[policy]] table: ``line`` is that of its head, ``keys`` are those of its keys."""

    def __init__(self, place: str, path: str, line: int, keys: Mapping[str, int]) -> None:
        self._place = place
        self._path = path
        self._line = line
        self._keys = keys

    def rule(self, table: Mapping[str, Any]) -> Rule:
        topic = self._pattern(table, "topic")
        channel = self._pattern(table, "channel") if "channel" in table else None
        values = {}
        for key, value in table.items():
            if key in ("topic", "channel"):
                continue
            try:
                setting = setting_of(key)
                found = convert(setting, value)
            except PolicyError as error:
                raise self._error(key, str(error)) from None
            if channel is not None and setting.group == TOPIC:
                text = f"{key} is a key of topics; this rule has a channel"
                raise self._error(key, text)
            if key == "dead_topic" and found and found == topic:
                raise self._error(key, "dead_topic must not be the topic itself")
            values[key] = Given(found, f"file: {self._path}:{self._line_of(key)}")
        if not values:
            raise self._error("", "the rule sets no key")
        return Rule(topic, channel, values)

    def _pattern(self, table: Mapping[str, Any], key: str) -> str:
        pattern = table.get(key, "*")
        if not isinstance(pattern, str) or not is_pattern(pattern):
            text = (
                f"{key} must be a name of up to {PATTERN_SIZE_MAX} letters, digits, ., _, - and"
                f" #, with * and ?; it is {short(pattern)}"
            )
            raise self._error(key, text)
        return pattern

    def _line_of(self, key: str) -> int:
        return self._keys.get(key, self._line)

    def _error(self, key: str, text: str) -> OptionError:
        return OptionError(f"{self._place}: line {self._line_of(key)}: {text}")


def key_lines(
    text: str, twice: list[tuple[int, str]] | None = None
) -> list[tuple[int, dict[str, int]]]:
    """For each [[policy]] table its line, and the lines of its keys.  ``text`` is valid TOML.

    ``twice`` gets the line and name of keys that their table has already.
    """
    tables: list[tuple[int, dict[str, int]]] = []
    keys: dict[str, int] = {}
    open_quote = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not open_quote:
            if _TABLE.match(line):
                keys = {}
                tables.append((number, keys))
                continue
            if line.lstrip().startswith("["):
                keys = {}  # another table
            elif found := _KEY.match(line):
                key = found[1].strip("\"'")
                if key in keys and twice is not None:
                    twice.append((number, key))
                keys.setdefault(key, number)
        open_quote = _open_quote(line, open_quote)
    return tables


def top_line(text: str, key: str) -> int:
    """The line of a key, or of a table, outside of the [[policy]] tables."""
    named = re.compile(rf"""\s*\[{{0,2}}\s*["']?{re.escape(key)}["']?\s*[].=]""")
    lines = text.split("\n")
    return next((number for number, line in enumerate(lines, 1) if named.match(line)), 1)


# What is not closed goes on to the end of the line: to search for its end again and again would
# take the square of the line.
_QUOTED = re.compile(r"""\#.*|"(?:[^"\\]|\\.)*(?:"|$)|'[^']*(?:'|$)""")
_NUMBER = re.compile(rf"[0-9_]{{{sys.int_info.default_max_str_digits + 1},}}")


def _dotted_line(text: str) -> int:
    """The first line with too many dots outside of texts and comments; 0 if there is none."""
    for number, line in enumerate(text.split("\n"), 1):
        many = line.count(".") > DOT_COUNT_MAX
        if many and _QUOTED.sub("", line).count(".") > DOT_COUNT_MAX:
            return number
    return 0


def _long_number(text: str) -> str:
    """The line of the first number that Python does not read, for an error."""
    found = _NUMBER.search(text)
    return f"line {text.count(chr(10), 0, found.start()) + 1}: " if found is not None else ""


_QUOTES = re.compile(r'''"""|\'\'\'|"(?:[^"\\]|\\.)*(?:"|$)|'[^']*(?:'|$)|\#''')


def _open_quote(line: str, quote: str) -> str:
    """The quotes of a text of several lines that is open at the end of ``line``, or "".

    ``quote`` is what is open at its start.
    """
    at = 0
    while True:
        if quote:
            end = _closing(line, at, quote)
            if end < 0:
                return quote
            at, quote = end, ""
            continue
        found = _QUOTES.search(line, at)
        if found is None or found[0] == "#":
            return ""
        at = found.end()
        if found[0] in ('"""', "'''"):
            quote = found[0]


def _closing(line: str, at: int, quote: str) -> int:
    """The end of a text of several lines that is open at ``at``; -1 if it is not in this line."""
    while (end := line.find(quote, at)) >= 0:
        before = line[at:end]
        escapes = len(before) - len(before.rstrip("\\")) if quote == '"""' else 0
        if escapes % 2 == 0:
            # Up to two quotes may stand directly before the closing ones.
            end += len(quote)
            while line[end : end + 1] == quote[0]:
                end += 1
            return end
        at = end + 1
    return -1
