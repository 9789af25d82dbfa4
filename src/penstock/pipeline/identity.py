"""Who a pipeline is to the brokers (R45): an identity that outlives its runs.

It is made before anything is asked of a broker, because patterns are left under it before the
first topic is known.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import PipelineError
from penstock.pipeline.folders import Folder

NAME = "identity.json"


@dataclass(frozen=True, slots=True)
class PipelineIdentity:
    """32 hex digits, and whether they were made just now: then the pipeline never ran before."""

    text: str
    new: bool = False


def identity_of(folder: Folder, known: Iterable[str] = ()) -> PipelineIdentity:
    """The identity of the pipeline whose checkpoint is ``folder``.

    ``known`` are those that its tables or its checkpoint name, the most trusted first.
    """
    data = folder.read(NAME)
    stored = "" if data is None else _decode(data, folder)
    for each in (*known, stored):
        if each:
            if each != stored:
                _write(folder, each)
            return PipelineIdentity(each)
    made = uuid.uuid4().hex
    _write(folder, made)
    return PipelineIdentity(made, new=True)


def _write(folder: Folder, identity: str) -> None:
    folder.write(NAME, json.dumps({"identity": identity}).encode())


def _decode(data: bytes, folder: Folder) -> str:
    try:
        identity = json.loads(data)["identity"]
        if len(identity) == 32 and int(identity, 16) >= 0:
            return str(identity)
    except (ValueError, TypeError, KeyError):
        pass
    raise PipelineError(
        f"{folder.uri}/{NAME} does not hold an identity; restore it from a backup, or remove it"
        " to go on as a new reader: nsqd then refuses until it takes over from the old one"
    )
