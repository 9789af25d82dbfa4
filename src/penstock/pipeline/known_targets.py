"""What a later start needs to know if a table or the checkpoint is lost: known.json (R44).

<checkpoint>.ledger/known.json    a pipeline's targets, and what each covered at the last start
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.errors import PipelineError
from penstock.pipeline.coverage import Coverage, Span
from penstock.pipeline.folders import Folder
from penstock.pipeline.ledger_records import packed, unpacked
from penstock.pipeline.targets import Target

NAME = "known.json"


@dataclass(frozen=True, slots=True)
class Known:
    """``targets``: what each covered, by name."""

    identity: str = ""
    targets: dict[str, Coverage] = field(default_factory=dict)

    def of(self, name: str) -> Coverage:
        return self.targets.get(name, Coverage())


def write_known(folder: Folder, identity: str, targets: Iterable[Target]) -> None:
    """Store which targets there are and what each covers."""
    covered = {target.name: target.ledger.coverage.rows() for target in targets}
    data = packed({"version": 1, "identity": identity, "targets": covered})
    if folder.read(NAME) != data:
        folder.write(NAME, data)


def read_known(folder: Folder) -> Known:
    """What was stored; empty if the pipeline never ran."""
    data = folder.read(NAME)
    if data is None:
        return Known()
    try:
        value = unpacked(data)
        rows = {str(name): value["targets"][name] for name in value["targets"]}
        targets = {name: Coverage(map(Span.of_row, rows[name])) for name in rows}
        return Known(str(value["identity"]), targets)
    except (ValueError, KeyError, TypeError):
        raise PipelineError(
            f"{folder.uri}/{NAME} is damaged; restore it from a backup, or remove it"
        ) from None
