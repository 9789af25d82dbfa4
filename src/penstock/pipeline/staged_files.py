"""Plans how the files of a stage move into the table."""

from __future__ import annotations

from penstock.errors import PipelineError
from penstock.pipeline.folders import Folder
from penstock.pipeline.ledger_records import DataFile

SUFFIX = ".parquet"

Moves = list[list[str]]  # pairs: current path, target path


def staged_files(
    folder: Folder, stage: str, prefix: str, identity: str, target_folder: str | None = None
) -> tuple[Moves, list[DataFile]]:
    """The moves out of a stage, and the files that the table has after them.

    Files go to ``target_folder``, or to the same folder as in the stage.
    """
    moves, files = [], []
    staged = (file for file in folder.files(stage) if is_data(file.path))
    for number, file in enumerate(sorted(staged, key=lambda file: file.path)):
        count = folder.row_count(file.path)
        if count == 0:
            continue  # Spark also writes a file for a batch without rows, for its columns
        name = f"{prefix}-{number:05d}-{identity[:8]}{SUFFIX}"
        inner = file.path.removeprefix(f"{stage}/").rpartition("/")[0]
        target = f"{inner if target_folder is None else target_folder}/{name}".lstrip("/")
        if folder.modified_ms(target) is not None:
            raise PipelineError(
                f"{folder.uri}/{target} already exists, and is not in the ledger: an older ledger "
                "was restored without its table.  Nothing was written; restore the ledger that "
                "belongs to the table"
            )
        moves.append([file.path, target])
        files.append(DataFile(target, file.size, count, folder.checksum(file.path)))
    return moves, files


def is_data(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(SUFFIX) and not name.startswith((".", "_"))
