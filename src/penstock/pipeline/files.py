"""Lists the files that hold a table's rows now, each row once: for readers of a Parquet folder.

    table_files(path) -> paths, from the ledgers of all pipelines that write to the folder

During a merge a folder has rows twice for a minute.  A ledger changes in one step, so the list is
the table at one point in time.  Replaced files stay for a minute after a merge, so there is time to
open them; a reader that finds one missing lists the files again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from penstock.errors import PipelineError
from penstock.pipeline.folders import Folder, is_local, open_folder, open_local
from penstock.pipeline.ledger import HEAD, Ledger
from penstock.pipeline.ledger_records import DataFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGERS = "_penstock/ledger"
DELTA_LOG = "_delta_log"
TRIES_MAX = 100


def table_files(path: str, spark: SparkSession | None = None) -> list[str]:
    """The data files of a table, in order; a folder on another machine needs ``spark``."""
    folder = _open(path, spark)
    return [f"{folder.uri}/{file.path}" for file in live_files(folder)]


def read_files(path: str) -> list[DataFile]:
    """The same with sizes and rows, for a local folder."""
    return live_files(_open(path, None))


def live_files(folder: Folder) -> list[DataFile]:
    names = {
        name
        for file in folder.files(LEDGERS)
        if (name := file.path.removesuffix(f"/{HEAD}")).count("/") == LEDGERS.count("/") + 1
        and file.path.endswith(f"/{HEAD}")
    }
    if is_delta(folder):
        found = delta_files(folder)
    elif names:
        found = [file for name in names for file in _ledger_files(folder, name)]
    else:
        raise PipelineError(
            f"{folder.uri} has no ledger: no pipeline has written to it, or only an earlier "
            "version; the next run of its pipeline creates one"
        )
    return sorted(found, key=lambda file: file.path)


def _open(path: str, spark: SparkSession | None) -> Folder:
    if is_local(path):
        from pathlib import Path

        local = path.removeprefix("file://").removeprefix("file:")
        if not Path(local).is_dir():
            raise PipelineError(f"{path} is not a folder")
        return open_local(path)
    if spark is None:
        raise PipelineError(f"{path} is not a local path: table_files needs a Spark session")
    return open_folder(spark, path)


def _ledger_files(folder: Folder, path: str) -> list[DataFile]:
    """Retry if records were rolled up meanwhile: only then the head changes."""
    for _ in range(TRIES_MAX):
        before = folder.read(f"{path}/{HEAD}")
        try:
            live = list(Ledger(folder, path, "", "").load().live_files().values())
        except PipelineError:
            if folder.read(f"{path}/{HEAD}") == before:
                raise
            continue
        if folder.read(f"{path}/{HEAD}") == before:
            return live
    raise PipelineError(f"{folder.uri}/{path} changed during each of {TRIES_MAX} reads")


def is_delta(folder: Folder) -> bool:
    return any(True for _ in folder.files(DELTA_LOG))


def delta_files(folder: Folder) -> list[DataFile]:
    """The files in a Delta table's own log."""
    import pyarrow as pa
    from deltalake import DeltaTable

    actions = pa.table(DeltaTable(folder.uri).get_add_actions())
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    return [DataFile(unquote(path), size, rows) for path, size, rows in zip(*columns, strict=True)]
