# node.json: who this data path is (R7), and an index above all that were ever given (R1).
#
#     {"format": 1, "uuid": "7c9e6679-...", "index_floor": 7301234567890}
#
# The floor outlives the logs: a topic whose files were all removed, or a clock that was set back,
# still does not bring an index back.

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from penstock.errors import CorruptError, StorageError
from penstock.storage.files import Files

FORMAT = 1

ADVICE = (
    "restore it, or remove it to go on under a new identity:"
    " no message is lost, but readers that know this node by its UUID take it for another one"
)


@dataclass
class Node:
    """The identity of a data path."""

    path: str
    uuid: str
    index_floor: int = 0

    def raise_floor(self, files: Files, index: int) -> None:
        """Let no start give an index below ``index`` again; blocking.  It never goes down."""
        if index > self.index_floor:
            files.write_new(self.path, _encode(self.uuid, index))
            self.index_floor = index


def load_node(files: Files, path: str) -> Node:
    """The node at ``path``, made with a random UUID if there is none; blocking."""
    if files.exists(path):
        return decode_node(files.read(path), path)
    node = Node(path, str(uuid.uuid4()))
    files.make_folder(path.rpartition("/")[0])
    files.write_new(path, _encode(node.uuid, node.index_floor))
    return node


def decode_node(data: bytes, path: str) -> Node:
    try:
        whole = json.loads(data)
        node = Node(path, str(uuid.UUID(whole["uuid"])), int(whole["index_floor"]))
        version = int(whole["format"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(f"{path} cannot be read: {error!r}; {ADVICE}") from error
    if version > FORMAT:
        raise StorageError(f"{path}: written by a later version (format {version})")
    if not 0 <= node.index_floor < 1 << 54:
        raise CorruptError(f"{path}: index_floor {node.index_floor} is out of range; {ADVICE}")
    return node


def _encode(node_uuid: str, index_floor: int) -> bytes:
    return json.dumps({"format": FORMAT, "uuid": node_uuid, "index_floor": index_floor}).encode()
