"""The process that decodes large JSON for nsqadmin; see ``decoders.py``.

    stdin     size: 8 bytes | JSON
    stdout    size: 4 bytes | a piece, marshalled      ...      0: 4 bytes

It is a script that imports nothing from Penstock, so that it starts in 20 ms.

    (VALUE, None, value)      the whole value
    (OPEN, key, [] or {})     starts a large container inside the open one
    (MORE, None, part)        more items of the open container
    (CLOSE, None, None)
    (ERROR, None, text)

Rule 1: a piece has about VALUES values at most, so that adding it blocks the loop for less than a
        millisecond.
Rule 2: the system limits the memory, and exceeding it is reported; no state is kept between
        bodies.
"""

from __future__ import annotations

import contextlib
import gc
import json
import marshal
import resource
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

Piece = tuple[int, Any, Any]

VALUE, OPEN, MORE, CLOSE, ERROR = range(5)
VALUES = 2000
DEPTH_MAX = 64
MEMORY_SIZE_MAX = 2 << 30


def pieces(value: Any) -> Iterator[Piece]:
    """Split a value into pieces.  Raises ValueError if it is nested too deeply."""
    if weight(value, DEPTH_MAX) <= VALUES:
        yield (VALUE, None, value)
    else:
        yield from _container(None, value, DEPTH_MAX)


def _container(key: Any, value: Any, depth: int) -> Iterator[Piece]:
    """The pieces of a large container: small items together, large ones each on their own."""
    if not isinstance(value, list | dict):
        # A string, which has no items.
        yield (OPEN, key, value)
        yield (CLOSE, None, None)
        return
    named = isinstance(value, dict)
    yield (OPEN, key, {} if named else [])
    part: Any = {} if named else []
    room = VALUES
    for name, inner in value.items() if isinstance(value, dict) else _numbered(value):
        size = weight(inner, depth - 1)
        if size > VALUES or size > room:
            if part:
                yield (MORE, None, part)
            part, room = {} if named else [], VALUES
        if size > VALUES:
            yield from _container(name, inner, depth - 1)
            continue
        if named:
            part[name] = inner
        else:
            part.append(inner)
        room -= size
    if part:
        yield (MORE, None, part)
    yield (CLOSE, None, None)


def _numbered(value: list[Any]) -> Iterator[tuple[None, Any]]:
    for inner in value:
        yield None, inner


def weight(value: Any, depth: int) -> int:
    """The number of values, itself included; counting stops above VALUES."""
    if not isinstance(value, list | dict):
        return 1 + len(value) // 256 if isinstance(value, str) else 1
    if depth <= 0:
        raise ValueError("the response is not JSON: nested too deeply")
    total = 1
    for inner in value.values() if isinstance(value, dict) else value:
        total += weight(inner, depth - 1)
        if total > VALUES:
            break
    return total


def decode(body: bytes) -> Iterator[Piece]:
    """The pieces of a JSON text; the last one may be an error."""
    try:
        yield from pieces(json.loads(body, parse_constant=_refuse))
    except MemoryError:
        yield (ERROR, None, "the response needs too much memory")
    except RecursionError:
        yield (ERROR, None, "the response is not JSON: nested too deeply")
    except ValueError as error:
        text = str(error) if "nested" in str(error) else "the response is not JSON"
        yield (ERROR, None, text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Decode until the end of the input."""
    while len(head := source.read(8)) == 8:
        size = int.from_bytes(head, "big")
        body = source.read(size)
        if len(body) < size:
            return
        for piece in decode(body):
            raw = marshal.dumps(piece)
            target.write(len(raw).to_bytes(4, "big") + raw)
        target.write(bytes(4))
        target.flush()


def main() -> None:
    # Decoded JSON has no reference cycles.
    gc.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_SIZE_MAX, MEMORY_SIZE_MAX))
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
