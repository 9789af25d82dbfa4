"""A Spark cluster on this machine, for tests: a standalone master and workers.

    <folder>/cluster.json     {"master": "spark://127.0.0.1:7077", "processes": [{"name", "pid"}]}
    <folder>/master.log  worker-1.log  worker-1/ ...

PySpark's wheel has no scripts for them but has the classes.  They listen on the loopback interface
only and keep running after the process that started them, until they are stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import SparkSetupError
from penstock.spark.java import set_up_java
from penstock.spark.session import LOG4J_FILE, check_pyspark

NAME = "cluster.json"
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 20.0
POLL_S = 0.1
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
# What the master and the workers log when they are ready.
READY = {
    MASTER: re.compile(r"I have been elected leader"),
    WORKER: re.compile(r"Successfully registered"),
}


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to start."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 7077  # 0: any free port
    worker_count: int = 2
    cores: int = 1  # of a worker
    memory: str = "1g"
    environment: dict[str, str] = field(default_factory=dict)  # of workers, and so of executors


def start(plan: ClusterPlan) -> str:
    """Start master and workers; return the master's address once they are ready."""
    check_pyspark()
    set_up_java()
    if running := status(plan.folder):
        raise SparkSetupError(
            f"a cluster already runs in {plan.folder}: {running['master']}; stop it first, or use "
            "another folder"
        )
    plan.folder.mkdir(parents=True, exist_ok=True)
    port = plan.port or _free_port(plan.host)
    address = f"spark://{plan.host}:{port}"
    record: dict[str, Any] = {"master": address, "processes": []}
    try:
        arguments = ["--host", plan.host, "--port", str(port), "--webui-port", "0"]
        _launch(plan, record, "master", MASTER, arguments)
        for number in range(1, plan.worker_count + 1):
            folder = plan.folder / f"worker-{number}"
            arguments = ["--host", plan.host, "--cores", str(plan.cores), "--memory", plan.memory]
            arguments += ["--webui-port", "0", "--work-dir", str(folder), address]
            _launch(plan, record, f"worker-{number}", WORKER, arguments)
    except BaseException:
        stop(plan.folder)
        raise
    return address


def _launch(
    plan: ClusterPlan, record: dict[str, Any], name: str, program: str, arguments: list[str]
) -> None:
    """Start and record one process, then wait until it is ready."""
    import pyspark

    home = Path(pyspark.__file__).parent
    log = plan.folder / f"{name}.log"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": plan.host,
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={LOG4J_FILE} -Dpenstock.log=info",
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        **plan.environment,
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), program, *arguments],
            cwd=plan.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    record["processes"].append({"name": name, "pid": process.pid})
    (plan.folder / NAME).write_text(json.dumps(record), encoding="utf-8")
    give_up_s = time.monotonic() + START_SECONDS_MAX
    while not READY[program].search(log.read_text(encoding="utf-8", errors="replace")):
        if process.poll() is not None:
            raise SparkSetupError(f"{name} of the cluster does not start; see {log}")
        if time.monotonic() > give_up_s:
            raise SparkSetupError(f"{name} of the cluster is not ready in time; see {log}")
        time.sleep(POLL_S)


def stop(folder: Path) -> int:
    """Stop all processes of a cluster, the last started first; return how many there were."""
    record = _read(folder)
    if record is None:
        return 0
    processes = [each for each in reversed(record["processes"]) if _is_ours(each["pid"])]
    for each in processes:
        _signal(each["pid"], signal.SIGTERM)
    give_up_s = time.monotonic() + STOP_SECONDS_MAX
    for each in processes:
        while _is_ours(each["pid"]):
            if time.monotonic() > give_up_s:
                _signal(each["pid"], signal.SIGKILL)
            time.sleep(POLL_S)
    (folder / NAME).unlink(missing_ok=True)
    return len(processes)


def status(folder: Path) -> dict[str, Any] | None:
    """The master's address and the running processes; None if there are none."""
    record = _read(folder)
    if record is None:
        return None
    living = [each for each in record["processes"] if _is_ours(each["pid"])]
    return {**record, "processes": living} if living else None


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _is_ours(pid: int) -> bool:
    """Whether a process still belongs to a cluster: its pid may have been reused."""
    with contextlib.suppress(OSError, ChildProcessError):
        # Reap it if it is our child.
        os.waitpid(pid, os.WNOHANG)
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"org.apache.spark.deploy" in command or b"spark-class" in command


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
