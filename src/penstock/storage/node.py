# node.json: the identity of a data path (R7), and an index above all ever used (R1).
#
#     {"format": 1, "uuid": "7c9e6679-...", "index_floor": 7301234567890, "checksum": "1a2b3c4d"}
#
# The floor outlives the logs: indexes are not reused even if all files of a topic were removed, or
# the clock was set back.
#
# Rule 1: there are two copies, in different folders.  If one fails its checksum the other is used;
#         if that is bad too, a single flipped bit is corrected.
# Rule 2: the copy is written first when a node is created, so node.json is never alone unless
#         somebody removed the copy.
# Rule 3: files of the first version have no checksum and no copy: that is not damage.
# Rule 4: a later format is rejected without changes, unless correcting one bit makes it valid.

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.crc32c import crc32c
from penstock.errors import CorruptError, StorageError
from penstock.storage.files import Files

FORMAT = 1

# The floor itself must be an index that fits a message's id.
INDEX_FLOOR_MAX = (1 << 54) - 1

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass
class Node:
    """The identity of a data path."""

    path: str
    uuid: str
    index_floor: int = 0
    copy: str = ""
    # What was wrong with the files, for the damage report.
    problems: list[str] = field(default_factory=list, compare=False)
    # There was no file: the UUID is new.
    made: bool = field(default=False, compare=False)
    # The files have to be written: they differ from this.
    stale: bool = field(default=False, compare=False)

    @property
    def used(self) -> bool:
        """Whether nsqd has run with it; an import creates one without running."""
        return self.index_floor > 0

    def raise_floor(self, files: Files, index: int) -> None:
        """Raise the floor to ``index``, at least; blocking.  It never decreases."""
        index = min(index, INDEX_FLOOR_MAX)
        if index > self.index_floor or self.stale:
            self.write(files, max(self.index_floor, index))

    def write(self, files: Files, index_floor: int) -> None:
        """Write both files; blocking.  The floor is valid once they are durable."""
        data = encode_node(self.uuid, index_floor)
        for path in filter(None, (self.copy, self.path)):
            files.write_new(path, data)
        self.index_floor = index_floor
        self.stale = False


class _Read(NamedTuple):
    """The contents of a file: a node, or an error.  ``checked``: it has a valid checksum."""

    node: Node | None = None
    checked: bool = False
    bad: str = ""
    later: int = 0
    data: bytes = b""

    @property
    def missing(self) -> bool:
        return self.node is None and not self.bad and not self.later


def load_node(files: Files, path: str, copy: str = "") -> Node:
    """The node at ``path`` or, if that is damaged, at ``copy``; created if missing; blocking."""
    main = _read(files, path)
    other = _read(files, copy) if copy else _Read()
    for name, found in ((path, main), (copy, other)):
        if found.later:
            raise StorageError(f"{name}: written by a later version (format {found.later})")
    if main.missing and other.missing:
        return _make(files, path, copy)
    node = _choose(main, other, path, copy)
    if node is None:
        reasons = "; ".join(found.bad for found in (main, other) if found.bad)
        raise CorruptError(f"{reasons}; {_advice(path, copy)}")
    node.path, node.copy = path, copy
    for name, found in ((path, main), (copy, other)):
        if found.bad and found.data:
            files.write_new(f"{name}.bad", found.data)
    node.stale = (
        bool(node.problems)
        or not main.checked
        or (bool(copy) and not other.checked)
        or any(f.node is not None and f.node.index_floor != node.index_floor for f in (main, other))
    )
    return node


def _choose(main: _Read, other: _Read, path: str, copy: str) -> Node | None:
    """The node to use, with its problems; None if neither file is usable."""
    one, two = main.node, other.node
    if one is None and two is None:
        return None
    if one is None:
        assert two is not None
        node = Node(path, two.uuid, two.index_floor)
        if main.bad:
            node.problems.append(f"{main.bad}; kept as {path}.bad, its copy {copy} is used")
        elif two.used:  # otherwise the process ended right after it had written the copy
            node.problems.append(f"{path} is missing; its copy {copy} is used")
        return node
    node = Node(path, one.uuid, one.index_floor, problems=list(one.problems))
    if two is None:
        if main.bad:  # a bit was corrected
            node.problems.append(main.bad)
        if other.bad:
            node.problems.append(f"{other.bad}; kept as {copy}.bad and rewritten")
        elif copy and main.checked:
            node.problems.append(f"{copy} is missing; rewritten")
    elif one.uuid == two.uuid:
        node.index_floor = max(one.index_floor, two.index_floor)
        node.problems += [found.bad for found in (main, other) if found.bad]
    else:
        # The one with a checksum is used; if both are valid, somebody has replaced node.json.
        if other.checked and not main.checked:
            node.uuid = two.uuid
        node.index_floor = max(one.index_floor, two.index_floor)
        node.problems.append(
            f"{path} says the node is {one.uuid}, {copy} says {two.uuid}: {node.uuid} is used"
        )
    return node


def _make(files: Files, path: str, copy: str) -> Node:
    import uuid  # takes 2 ms to load, and a data path is created once

    node = Node(path, str(uuid.uuid4()), copy=copy, made=True)
    files.make_folder(path.rpartition("/")[0])
    node.write(files, 0)
    return node


def _read(files: Files, path: str) -> _Read:
    if not files.exists(path):
        return _Read()
    try:
        data = files.read(path)
    except OSError as error:
        return _Read(bad=f"{path} cannot be read: {error}")
    try:
        whole = json.loads(data)
        version = int(whole["format"])
        node, checked = _decode(whole, path)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason, version = f"{path} cannot be read: {error!r}", _later_version(data)
    else:
        if version == FORMAT and node is not None:
            return _Read(node, checked)
        reason = f"{path} fails its checksum"
    mended = _correct_bit(data, path)
    if mended is not None:
        return _Read(mended, True, f"{path}: a flipped bit was corrected")
    if version > FORMAT:
        return _Read(later=version)
    return _Read(bad=reason, data=data)


def decode_node(data: bytes, path: str) -> Node:
    """Decode one file; CorruptError if damaged, StorageError if from a later version."""
    version = _later_version(data)
    if version > FORMAT:
        raise StorageError(f"{path}: written by a later version (format {version})")
    try:
        node, _ = _decode(json.loads(data), path)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{path} cannot be read: {error!r}") from error
    if node is None:
        raise CorruptError(f"{path} fails its checksum")
    return node


def _decode(whole: dict[str, object], path: str) -> tuple[Node | None, bool]:
    """(node, whether it has a checksum); no node if the checksum is wrong."""
    uuid = str(whole["uuid"]).lower()
    if _UUID.fullmatch(uuid) is None:
        raise ValueError(f"{uuid!r} is not a UUID")
    node = Node(path, uuid, int(str(whole["index_floor"])))
    checksum = whole.get("checksum")
    checked = checksum is not None
    if checked and checksum != _checksum(node.uuid, node.index_floor):
        return None, True
    if node.index_floor < 0:
        raise ValueError(f"index_floor {node.index_floor} is out of range")
    if node.index_floor > INDEX_FLOOR_MAX:
        # Written by an early version with a clock past 2109.  Logs and clock give another floor.
        node.problems.append(f"{path}: index_floor {node.index_floor} is out of range, ignored")
        node.index_floor = 1
    return node, checked


def _later_version(data: bytes) -> int:
    """The format number in a JSON object; 0 if there is none."""
    try:
        whole = json.loads(data)
        return int(whole["format"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return 0


def _correct_bit(data: bytes, path: str) -> Node | None:
    """The node, if flipping one bit makes the checksum valid."""
    if len(data) > 1000:
        return None
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        try:
            node, _ = _decode(json.loads(bytes(changed)), path)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        if node is not None and encode_node(node.uuid, node.index_floor) == changed:
            return node
    return None


def _advice(path: str, copy: str) -> str:
    both = f"{path} and {copy}" if copy else path
    return (
        f"restore it from a backup, or remove {both} to continue with a new identity: the messages"
        " in this data path stay, but to Spark queries, which know this node by its UUID, it is"
        " another node, and they read its messages from their starting position"
    )


def encode_node(node_uuid: str, index_floor: int) -> bytes:
    whole = _fields(node_uuid, index_floor) | {"checksum": _checksum(node_uuid, index_floor)}
    return json.dumps(whole).encode()


def _fields(node_uuid: str, index_floor: int) -> dict[str, object]:
    return {"format": FORMAT, "uuid": node_uuid, "index_floor": index_floor}


def _checksum(node_uuid: str, index_floor: int) -> str:
    return f"{crc32c(json.dumps(_fields(node_uuid, index_floor)).encode()):08x}"
