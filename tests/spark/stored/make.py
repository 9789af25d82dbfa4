"""Make the stored tables beside this file, with an earlier version of Penstock.

    git worktree add --detach OLD 2d6aafd
    (cd OLD && ln -s .../.venv .venv && .venv/bin/python setup.py build_ext --inplace)
    PYTHONPATH=OLD/src:OLD .venv/bin/python tests/spark/stored/make.py

2d6aafd is the last commit whose tables have no ledger.  Each archive holds

    nsqd/           the data path of the node, killed
    table/ ...      what the sinks wrote
    checkpoint/     of the query, unless it lies in the table
    stored.json     {"bodies": {topic: [...]}}: what was published, in order

and the pipeline was killed in its last batch, at the step that ``CUTS`` names: the batch was
planned (it is in ``offsets``) and is not in ``commits``.  After that more was published.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RUN = "--run"
RUN_SECONDS_MAX = 300
BATCH = 30  # most messages of a batch
CHUNK = 40  # messages of each topic between two runs
# Not kept: the space that nsqd holds back.
LEFT_OUT = ("reserve",)

JSON = {"body": "json", "schema": "n bigint, topic string"}
PIPELINES: dict[str, dict[str, Any]] = {
    "archive": {
        "checkpoint": "table/_penstock/checkpoint",
        "sink": {
            "type": "parquet",
            "path": "table",
            "partition_by": ["topic", "date", "hour"],
            "compact_after": "1h",
        },
    },
    "columns": {  # without topic, node and index; what is invalid is a table too
        "source": JSON,
        "transform": [{"sql": "SELECT n, upper(topic) AS name FROM input"}],
        "sink": {"type": "parquet", "path": "table"},
        "invalid": {"path": "invalid"},
    },
    "delta": {"sink": {"type": "delta", "path": "table", "partition_by": ["topic"]}},
    "topic": {"sink": {"type": "topic", "topic": "out"}},
    "both": {
        "sink": [{"type": "parquet", "path": "table"}, {"type": "topic", "topic": "out"}],
    },
    "dedupe": {  # with state; its time is that of the bodies, so nothing of it expires
        "source": {
            **JSON,
            "schema": "n bigint, topic string, at timestamp",
            "event_time": "at",
            "watermark": "1 hour",
            "dedupe": ["n", "topic"],
        },
        "sink": {"type": "parquet", "path": "table"},
    },
}
# The function of Penstock before or after whose call the last run ends.
CUTS = {
    "archive": ("parquet.ParquetTable._finish", "before"),  # sealed, no file moved
    "columns": ("batches.Batches._take", "before"),  # planned only
    "delta": ("batches.Batches._take", "after"),  # in the table, not in commits
    "topic": ("batches.Batches._take", "after"),  # published, not in commits
    "both": ("batches.Batches._publish_rows", "before"),  # in the table, not published
    "dedupe": ("parquet.ParquetTable._seal", "before"),  # staged
}
TOPICS = ("orders", "clicks")
AT = "2026-11-16T10:00:00Z"


def bodies(topic: str, start: int) -> list[bytes]:
    rows = [{"n": n, "topic": topic, "at": AT} for n in range(start, start + CHUNK)]
    return [json.dumps(row).encode() for row in rows]


def declare(name: str, folder: Path, port: int, messages_max: int = BATCH) -> Any:
    """The pipeline; also what a later version opens the table with."""
    from penstock.pipeline.consistency import check
    from penstock.pipeline.spec_file import from_table

    tables = json.loads(json.dumps(PIPELINES[name]))
    source = {"topics": list(TOPICS), "nsqd_http_addresses": f"127.0.0.1:{port}"}
    table = {
        "name": name,
        "checkpoint": "checkpoint",
        "trigger": {"available_now": True},
        **tables,
        "source": {**source, "max_messages": messages_max, **tables.get("source", {})},
    }
    return check(from_table(table, (), folder))


def run(name: str, folder: Path, port: int, messages_max: int, *, cut: bool) -> None:
    """Run to the end of what there is, or to the cut; in a process of its own."""
    from penstock.pipeline.runner import Run, session_plan
    from penstock.pipeline.status import Status, StatusFile
    from penstock.spark.session import open_session
    from tests.spark.pipelines import Screen

    pipeline = declare(name, folder, port, messages_max)
    spark = open_session(session_plan(pipeline))
    if cut:
        cut_at(*CUTS[name])
    Run(pipeline, Screen(), StatusFile(Status(name), folder.parent / "status"), spark=spark).run()
    assert not cut, "the cut was not reached"
    spark.stop()


def cut_at(place: str, moment: str) -> None:
    import importlib

    module, kind, method = place.split(".")
    owner = getattr(importlib.import_module(f"penstock.pipeline.{module}"), kind)
    real: Callable[..., Any] = getattr(owner, method)

    def cut(*arguments: Any) -> None:
        if moment == "after":
            real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, method, cut)


def call(
    name: str, folder: Path, port: int, messages_max: int = BATCH, *, cut: bool = False
) -> None:
    words = [RUN, name, str(folder), str(port), str(messages_max), "cut" if cut else ""]
    status = subprocess.run(
        [sys.executable, "-m", "tests.spark.stored.make", *words],
        cwd=HERE.parents[2],
        timeout=RUN_SECONDS_MAX,
        check=False,
    ).returncode
    assert status == (-signal.SIGKILL if cut else 0), status


def make(name: str, folder: Path) -> Path:
    from tests.support.daemon import Nsqd

    published: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    with Nsqd(folder / "nsqd", "--max-bytes-per-file=4000") as nsqd:

        def publish() -> None:
            for topic, found in published.items():
                lines = bodies(topic, len(found))
                if name == "columns":
                    lines[3] = b"no JSON %d" % len(found)
                assert nsqd.post(f"/mpub?topic={topic}", b"\n".join(lines)).text == "OK"
                found += [line.decode() for line in lines]

        for _ in range(2):
            publish()
            call(name, folder, nsqd.http_port)
        publish()
        call(name, folder, nsqd.http_port, cut=True)
        publish()
        nsqd.kill()
    (folder / "stored.json").write_text(json.dumps({"bodies": published}))
    return pack(name, folder)


def pack(name: str, folder: Path) -> Path:
    target = HERE / f"{name}.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in LEFT_OUT:
                archive.add(path, str(path.relative_to(folder)))
    return target


def main() -> None:
    if sys.argv[1:2] == [RUN]:
        name, folder, port, messages_max, cut = sys.argv[2:7]
        run(name, Path(folder), int(port), int(messages_max), cut=bool(cut))
        return
    for name in sys.argv[1:] or PIPELINES:
        folder = Path(tempfile.mkdtemp())
        try:
            made = make(name, folder / name)
            print(f"{made.name}: {made.stat().st_size} bytes", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
