"""Explains why a pipeline stopped, in words for people.

An error in a task or in the data source reaches the driver as nested text: Python's traceback in
the JVM's exception in Spark's report.  This module finds the last meaningful line and adds advice.
"""

from __future__ import annotations

import re

from penstock.errors import (
    DataLossError,
    DataWouldBeLostError,
    NodeError,
    PenstockError,
    PipelineError,
)
from penstock.spark.node_client import TRANSIENT

# "penstock.errors.DataLossError: topic orders was deleted" somewhere in a report.
OURS = re.compile(r"penstock\.errors\.(\w+): (.+?)(?:\\n|\n|$)")
PYTHON = re.compile(r"^(?:pyspark\.errors\S*: |E\s+)?(\w+(?:Error|Exception)): (.+)$", re.M)
# "[CAST_INVALID_INPUT] The value 'x' of the type ..." as Spark names its errors.
SPARK = re.compile(r"\[([A-Z][A-Z0-9_]+)(?:\.[A-Z0-9_]+)?\] ([^\n]+)")
TEXT_SIZE_MAX = 1000

# Transient faults, by the texts of Spark and Py4J.  docs/spark.md lists both kinds.
NODE, CRASH = "node", "crash"
PASSING = {
    CRASH: ("worker exited unexpectedly",),
    # The machine is too busy to start a process in time, or short of memory.
    "worker": (
        "Python worker failed to connect back",
        "waiting for the Python worker to connect back",
        "error=11, Resource temporarily unavailable",
        "error=12, Cannot allocate memory",
    ),
    "executor": ("ExecutorLostFailure", "Lost executor", "FetchFailed"),
    "session": (
        "Py4JNetworkError",
        "Answer from Java side is empty",
        "Error while sending or receiving",
        "trying to connect to the Java server",
        "SparkContext was shut down",
        "stopped SparkContext",
        "All masters are unresponsive",
        "RpcTimeoutException",
        "RpcEnvStoppedException",
    ),
    "machine": (
        "java.net.ConnectException",
        "java.net.NoRouteToHostException",
        "java.net.SocketTimeoutException",
        "Connection reset",
        "Connection refused",
        "SafeModeException",
        "RetriableException",
    ),
}
# Of a node: from the source's process only the text of an error arrives.
NODE_MARKS = (
    "does not answer",
    "no nsqd has answered",
    "no nsqd could be reached",
    "the batch waits for it",
    *(f" answers {status} " for status in sorted(TRANSIENT)),
)
CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"

ADVICE = {
    "DataLossError": "fail_on_data_loss = false in [source] continues without these messages",
}
KNOWN = (
    ("No space left on device", "a disk is full; free some space and restart, nothing is lost"),
    (
        "Provided checkpoint location not empty or does not contain a valid checkpoint",
        "the folder is not a checkpoint; use another with --checkpoint",
    ),
    (
        "does not match with the one in metadata",
        "the checkpoint belongs to another query; use another with --checkpoint",
    ),
    (
        "state store",
        "the state in the checkpoint does not match the query; use another with --checkpoint",
    ),
)


def fault_of(*errors: BaseException | None) -> PipelineError:
    """The error that ends a run: its class determines the exit status, its text is for people."""
    for error in errors:
        if isinstance(error, PipelineError):
            return error
    # Here the source's options are set by flags.
    text = explain_fault(*errors).replace("with the option takeOver=", "with --take-over=")
    if loses_data(*errors):
        return DataWouldBeLostError(text)
    fault = PipelineError(text)
    fault.passing = passing_of(*errors)
    return fault


def loses_data(*errors: BaseException | None) -> bool:
    """Whether messages were lost; from the source's process only the text of an error arrives."""
    if any(isinstance(error, DataLossError) for error in errors):
        return True
    named = OURS.findall("\n".join(str(error) for error in errors if error is not None))
    return bool(named) and named[-1][0] == DataLossError.__name__


def passing_of(*errors: BaseException | None) -> str:
    """The kind of a transient fault; empty if it needs a person."""
    present = [error for error in errors if error is not None]
    for error in present:
        if isinstance(error, PenstockError):
            return _node_s(type(error).__name__, str(error))
    report = "\n".join(f"{type(error).__name__}: {error}" for error in present)
    if named := OURS.findall(report):
        return _node_s(*named[-1])
    if any(mark in report for mark, _ in KNOWN):
        return ""
    found = (kind for kind, marks in PASSING.items() if any(mark in report for mark in marks))
    return next(found, "")


def _node_s(name: str, text: str) -> str:
    if name != NodeError.__name__ or CERTIFICATE in text:
        return ""
    return NODE if any(mark in text for mark in NODE_MARKS) else ""


def explain_fault(*errors: BaseException | None) -> str:
    """One or two sentences; of several errors the first of our own says most."""
    present = [error for error in errors if error is not None]
    for error in present:
        if isinstance(error, PenstockError):
            return str(error)
    report = "\n".join(str(error) for error in present)
    if found := OURS.findall(report):
        name, text = found[-1]
        advice = ADVICE.get(name, "")
        # It may be quoted inside the text of another error.
        text = _cut(text.rstrip("'\")"))
        return f"{text}.  {advice}" if advice else text
    for mark, advice in KNOWN:
        if mark in report:
            return f"{_line_with(report, mark)}: {advice}"
    for error in present:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            return _cut(f"{type(error).__name__}: {error}")
    if sparks := [text for name, text in SPARK.findall(report) if name != "STREAM_FAILED"]:
        return _cut(sparks[0])
    if python := PYTHON.findall(report):
        name, text = python[-1]
        return _cut(f"{name}: {text}")
    first = next((line for line in report.splitlines() if line.strip()), "")
    return _cut(first.strip()) or "Spark gave no reason"


def _line_with(report: str, mark: str) -> str:
    line = next(line for line in report.splitlines() if mark in line)
    return _cut(line.strip())


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= TEXT_SIZE_MAX else f"{text[:TEXT_SIZE_MAX]}..."
