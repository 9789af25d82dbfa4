"""The identity of a pipeline towards the brokers (R45), which outlives its runs.

It is created before the first request to a broker, because patterns are registered under it before
any topic is known.
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
    """32 hex digits; ``new`` if they were just created: then the pipeline never ran before."""

    text: str
    new: bool = False


def identity_of(folder: Folder, known: Iterable[str] = ()) -> PipelineIdentity:
    """The identity of the pipeline whose checkpoint is ``folder``.

    ``known`` are the identities in its tables or its checkpoint, most trusted first.
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
        f"{folder.uri}/{NAME} does not contain an identity; restore it from a backup, or remove it"
        " to continue as a new reader: nsqd then refuses it until it takes over from the old one"
    )
