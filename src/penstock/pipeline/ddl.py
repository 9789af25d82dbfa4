"""Checks columns declared in Spark's SQL, without Spark: its own parser needs the JVM.

    column = name [":"] type ["NOT" "NULL"] ["COMMENT" text ...]
    type   = "array" "<" type ">" | "map" "<" type "," type ">" | "struct" "<" [column, ...] ">"
           | name [ "(" number, ... ")" ] ...

Rule 1: what Spark accepts is accepted here.  Where that depends on a setting or on a list that only
        Spark has (collations, spatial reference systems), it is left to Spark.
Rule 2: an error names the column, and the type that was probably meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from penstock.errors import PipelineError

DEPTH_MAX = 100
LENGTH_MAX = (1 << 31) - 1
PRECISION_MAX = 38

SIMPLE = (
    *("boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"),
    *("float", "real", "double", "date", "binary", "void", "variant"),
)
DECIMALS = ("decimal", "dec", "numeric")
LENGTHS = ("char", "character", "varchar")
TIMES = ("timestamp", "timestamp_ntz", "timestamp_ltz", "time")
SPATIAL = ("geometry", "geography")
COMPLEX = ("array", "map", "struct")
NAMES = (*SIMPLE, *DECIMALS, *TIMES, *LENGTHS, *SPATIAL, *COMPLEX, "string", "interval")
# Names of types in other systems.
OTHERS = {
    **dict.fromkeys(("text", "str", "uuid", "object", "enum"), "string"),
    **dict.fromkeys(("json", "any"), "variant"),
    **dict.fromkeys(("int64", "int8", "uint32", "serial", "bigserial"), "bigint"),
    **dict.fromkeys(("int32", "int4", "uint16"), "int"),
    **dict.fromkeys(("float64", "float8", "number"), "double"),
    **dict.fromkeys(("float32", "float4"), "float"),
    **dict.fromkeys(("datetime", "timestamptz"), "timestamp"),
    **dict.fromkeys(("bytes", "bytea", "blob", "varbinary"), "binary"),
    **dict.fromkeys(("list", "set"), "array<...>"),
    **dict.fromkeys(("dict", "record", "row"), "struct<...>"),
    "bool": "boolean",
    "int16": "smallint",
    "null": "void",
}
# INTERVAL field TO field: the fields that may follow TO, by the first field.
INTERVALS = {
    "year": ("month",),
    "month": (),
    "day": ("hour", "minute", "second"),
    "hour": ("minute", "second"),
    "minute": ("second",),
    "second": (),
}

TOKEN = re.compile(
    r"""
    (?P<space> [\s\0\ufeff]+ | --[^\n]* | /\*(?!\+).*?\*/ )
  | (?P<quoted> `(?:[^`]|``)*` )
  | (?P<text> [rR]?'(?:[^'\\]|\\.|'')*' | [rR]?"(?:[^"\\]|\\.|"")*" )
  | (?P<number> \d+(?!\w) )
  | (?P<word> \w+ )
  | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def column_names(text: str, *, colons: bool = True) -> list[str]:
    """The names of declared columns; raises PipelineError.

    ``colons`` allows ``a: int``, which Spark's Python functions accept and its readers do not.
    """
    return _Parser(text, colons).schema()


class _Parser:
    def __init__(self, text: str, colons: bool) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0
        self._colons = colons
        self._column = ""

    # Tokens

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        place = self._place + ahead
        return self._tokens[place] if place < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._place += 1
        return token

    def _takes(self, *expected: str) -> bool:
        """Consume these words or signs if they come next; whether they did."""
        found = [self._peek(n) for n in range(len(expected))]
        if any(kind in ("quoted", "text") for kind, _ in found):
            return False
        if [value.lower() for _, value in found] != list(expected):
            return False
        self._place += len(expected)
        return True

    def _need(self, expected: str, where: str) -> None:
        if not self._takes(expected):
            raise self._error(f"{expected!r} must follow {where}, not {self._shown()}")

    def _shown(self) -> str:
        kind, value = self._peek()
        return "the end" if kind == "end" else repr(value)

    def _error(self, text: str) -> PipelineError:
        return PipelineError(f"column {self._column}: {text}" if self._column else text)

    # Columns

    def schema(self) -> list[str]:
        if self._colons and self._takes("struct", "<"):
            names = self._columns(0, ">")
            self._need(">", "the last column")
        else:
            names = self._columns(0, "")
        if self._peek()[0] != "end":
            raise self._error(f"nothing may follow its type, not {self._shown()}")
        if not names:
            raise PipelineError("no columns; write name type, such as id bigint")
        return names

    def _columns(self, depth: int, end: str) -> list[str]:
        if self._peek()[1] == end:
            return []
        names = [self._one_column(depth)]
        while self._takes(","):
            names.append(self._one_column(depth))
        return names

    def _one_column(self, depth: int) -> str:
        outer = self._column
        name = self._name()
        self._column = f"{outer}.{name}" if outer else name
        if self._takes(":") and not (depth or self._colons):
            raise self._error("':' is not allowed between name and type")
        self._type(depth)
        if self._takes("not"):
            self._need("null", "NOT")
        if self._takes("comment"):
            if self._peek()[0] != "text":
                raise self._error(f"a text in quotes must follow COMMENT, not {self._shown()}")
            while self._peek()[0] == "text":
                self._place += 1
        if self._peek()[1] not in ("", ",", ">"):
            raise self._error(f"only NOT NULL and COMMENT may follow its type, not {self._shown()}")
        self._column = outer
        return name

    def _name(self) -> str:
        kind, value = self._next()
        if kind == "quoted":
            return value[1:-1].replace("``", "`")
        if kind == "end":
            raise self._error("a column must follow the comma")
        if kind != "word":
            raise self._error(f"expected a column name, not {value!r}")
        if not value.isascii() or self._peek()[1] in (".", "-"):
            raise self._error(
                f"the name that starts with {value} must be in backquotes: it has characters other "
                "than letters, digits and _"
            )
        return value

    # Types

    def _type(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._error(f"types are nested more than {DEPTH_MAX} deep")
        kind, value = self._next()
        name = value.lower()
        if kind != "word" or name not in NAMES:
            raise self._unknown(kind, value)
        match name:
            case "array" | "map" | "struct":
                self._complex(name, depth + 1)
            case "interval":
                self._interval()
            case "string":
                self._collation()
            case "timestamp" | "timestamp_ntz" | "timestamp_ltz" | "time":
                self._time(name)
            case "char" | "character" | "varchar":
                self._length(name)
            case "decimal" | "dec" | "numeric":
                self._decimal(name)
            case "geometry" | "geography":
                self._spatial(name)
            case _:
                if self._numbers(name):
                    raise self._error(f"{name} takes no length")

    def _unknown(self, kind: str, value: str) -> PipelineError:
        if kind == "end" or (kind == "sign" and value in ",>"):
            return self._error("its type is missing; write name type, such as id bigint")
        name = value.strip("`").lower()
        meant = OTHERS.get(name) or next(iter(get_close_matches(name, NAMES, n=1)), "")
        hint = f" (did you mean {meant}?)" if meant else ""
        known = ", ".join(sorted(NAMES))
        return self._error(f"Spark has no type {value!r}{hint}; its types: {known}")

    def _complex(self, name: str, depth: int) -> None:
        self._need("<", name)
        if name == "struct":
            self._columns(depth, ">")
        else:
            self._type(depth)
        if name == "map":
            self._need(",", "the type of a map's keys")
            self._type(depth)
        self._need(">", f"what {name} holds")

    def _interval(self) -> None:
        unit = self._peek()[1].lower()
        if self._peek()[0] != "word" or unit not in INTERVALS:
            return
        self._place += 1
        if not self._takes("to"):
            return
        last = self._next()[1].lower()
        if last not in INTERVALS[unit]:
            ends = ", ".join(INTERVALS[unit]) or "nothing"
            raise self._error(f"interval {unit} can end with {ends}, not with {last}")

    def _time(self, name: str) -> None:
        numbers = self._numbers(name)
        # Above 6 it depends on spark.sql.timestampNanosTypes.enabled.
        allowed = range(10) if name == "time" else range(6, 10)
        if len(numbers) > 1 or any(number not in allowed for number in numbers):
            raise self._error(f"{name} takes {allowed[0]} to {allowed[-1]} fractional digits")
        if name in ("timestamp", "time") and self._takes("without", "time", "zone"):
            return
        if name == "timestamp":
            self._takes("with", "local", "time", "zone")

    def _length(self, name: str) -> None:
        numbers = self._numbers(name)
        if len(numbers) != 1 or numbers[0] > LENGTH_MAX:
            raise self._error(f"{name} needs a length, such as {name}(10)")
        self._collation()

    def _decimal(self, name: str) -> None:
        numbers = self._numbers(name)
        if len(numbers) > 2:
            raise self._error(f"{name} takes precision and scale, such as (10, 2)")
        precision, scale = (*numbers, 0, 0)[:2]
        if precision > PRECISION_MAX:
            raise self._error(f"{name} has at most {PRECISION_MAX} digits, not {precision}")
        if scale > precision:
            raise self._error(f"{name}({precision},{scale}): the scale exceeds the precision")

    def _spatial(self, name: str) -> None:
        if not self._takes("(", "any", ")") and len(self._numbers(name)) != 1:
            raise self._error(f"{name} needs a reference system, such as {name}(4326)")

    def _collation(self) -> None:
        if not self._takes("collate"):
            return
        self._name_of_collation()
        while self._takes("."):
            self._name_of_collation()

    def _name_of_collation(self) -> None:
        if self._next()[0] not in ("word", "quoted"):
            raise self._error("the name of a collation must follow COLLATE")

    def _numbers(self, name: str) -> list[int]:
        """The numbers in parentheses after a type; none without parentheses."""
        if not self._takes("("):
            return []
        numbers: list[int] = []
        while not numbers or self._takes(","):
            kind, value = self._next()
            if kind != "number":
                raise self._error(f"the parentheses after {name} must contain a number")
            numbers.append(int(value[:20]))
        self._need(")", "the numbers")
        return numbers


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in TOKEN.finditer(text):
        if match.lastgroup != "space":
            yield str(match.lastgroup), match[0]
