"""`penstock pipeline`: run, check, create and watch pipelines.

    penstock pipeline run orders.toml --master spark://host:7077
    penstock pipeline run archive --param topics=orders --param path=/data/archive
    penstock pipeline check orders.toml
    penstock pipeline init orders.toml
    penstock pipeline status
    penstock pipeline files /data/archive

EXIT_STATUSES has the exit statuses.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.flags import FlagTable, UsageError, take_word
from penstock.cli.tool import log_level, repeated
from penstock.errors import (
    AlreadyRunningError,
    DataLossError,
    DataWouldBeLostError,
    NotProvableError,
    PenstockError,
    PipelineError,
)
from penstock.net import log
from penstock.pipeline.spec_file import read_pipeline, shipped_names
from penstock.settings.table import boolean, choice, string
from penstock.spark.session import check_pyspark
from penstock.version import penstock_line

if TYPE_CHECKING:
    from penstock.pipeline.runner import Run
    from penstock.pipeline.spec import Pipeline

PROGRAM = "penstock pipeline"
PROGRESS_INTERVAL_S = 10.0
COLUMNS = 80
SAME_STOP_S = 0.2
EXIT_STATUSES = (
    (0, "finished, or stopped on request"),
    (1, "failed, or the pipeline is invalid"),
    (2, "wrong usage of the command line"),
    (NotProvableError.status, "not provable: cannot tell whether every message was written"),
    (AlreadyRunningError.status, "already running in another process; nothing was changed"),
    (DataWouldBeLostError.status, "data would be lost: messages or rows are missing"),
)
SPARK_LEVELS = ("debug", "info", "warn", "error")


@dataclasses.dataclass(frozen=True, slots=True)
class FileOptions:
    """Flags that change a pipeline after its file is read."""

    param: tuple[str, ...] = repeated("Pipeline", "set a parameter: name=value", own=True)
    set: tuple[str, ...] = repeated(
        "Pipeline", "override a key of the file: table.key=value", own=True
    )
    nsqd_http_address: tuple[str, ...] = repeated(
        "Pipeline", "HTTP address of an nsqd, for the parameter nsqd", own=True
    )
    lookupd_http_address: tuple[str, ...] = repeated(
        "Pipeline", "HTTP address of an nsqlookupd, for the parameter lookupd", own=True
    )
    checkpoint: str = string("Pipeline", "", "folder of the checkpoint", own=True)
    folder: str = string(
        "Pipeline",
        "",
        "folder that relative paths start from",
        default_text="the file's folder",
        own=True,
    )
    master: str = string("Spark", "", "Spark master: local[4], spark://, yarn, k8s://", own=True)
    conf: tuple[str, ...] = repeated("Spark", "spark.name=value", own=True)
    spark_log_level: str = choice(
        "Log", "error", "lowest level of Spark's own log", SPARK_LEVELS, own=True
    )
    log_level: str = log_level()


@dataclasses.dataclass(frozen=True, slots=True)
class RunOptions(FileOptions):
    """Answers to the questions of an earlier run; each works once."""

    accept_loss: str = string(
        "Answers", "", "continue without the messages or rows of this name, and record it", own=True
    )
    read_again: str = string(
        "Answers", "", "read the rows of this name, missing in the table, again", own=True
    )
    begin_anew: str = string(
        "Answers", "", "write to a table whose contents cannot be verified", own=True
    )
    replay: str = string(
        "Replay",
        "",
        "read everything since this place once, such as -1d or earliest, into a new -output",
        own=True,
    )
    output: str = string("Replay", "", "folder of the replay's table; it must be new", own=True)
    take_over: str = string(
        "Answers", "", "identity of the reader to take the channel over from", own=True
    )


@dataclasses.dataclass(frozen=True, slots=True)
class CheckOptions(FileOptions):
    """All flags that change a pipeline, so that what is checked is what would run."""

    spark: bool = boolean("Pipeline", True, "also check SQL and functions with Spark", own=True)


@dataclasses.dataclass(frozen=True, slots=True)
class InitOptions:
    like: str = string("File", "", "shipped pipeline to start from", own=True)
    force: bool = boolean("File", False, "overwrite an existing file", own=True)
    log_level: str = log_level()


@dataclasses.dataclass(frozen=True, slots=True)
class StatusOptions:
    json: bool = boolean("Output", False, "print JSON", own=True)
    log_level: str = log_level()


@dataclasses.dataclass(frozen=True, slots=True)
class FilesOptions:
    json: bool = boolean("Output", False, "print JSON, with sizes and row counts", own=True)
    log_level: str = log_level()


def flag_tables() -> list[FlagTable[Any]]:
    return [
        FlagTable(
            f"{PROGRAM} run FILE|NAME",
            RunOptions,
            summary="Runs the pipeline of a .toml or .py file, or a shipped one: "
            + ", ".join(shipped_names())
            + ".",
            environment_prefix="PENSTOCK_PIPELINE_RUN_",
            statuses=EXIT_STATUSES,
        ),
        FlagTable(
            f"{PROGRAM} check FILE|NAME",
            CheckOptions,
            summary="Checks a pipeline without running it or contacting a broker.",
            environment_prefix="PENSTOCK_PIPELINE_CHECK_",
        ),
        FlagTable(
            f"{PROGRAM} init FILE",
            InitOptions,
            summary="Writes a commented example of a pipeline to a new file.",
            environment_prefix="PENSTOCK_PIPELINE_INIT_",
        ),
        FlagTable(
            f"{PROGRAM} status",
            StatusOptions,
            summary="Shows the pipelines running on this machine.",
            environment_prefix="PENSTOCK_PIPELINE_STATUS_",
        ),
        FlagTable(
            f"{PROGRAM} files PATH",
            FilesOptions,
            summary="Lists a table's data files, with each row once even while files are merged.",
            environment_prefix="PENSTOCK_PIPELINE_FILES_",
        ),
    ]


HELP = """\
Usage: penstock pipeline <command> [flags]

Commands:
  run FILE|NAME    run the pipeline of a .toml or .py file, or a shipped one
  check FILE|NAME  check a pipeline without running it
  init FILE        write a commented example
  status           show running pipelines
  files PATH       list the data files of a table

Shipped:
{shipped}

See "penstock pipeline <command> --help" for its flags, docs/spark.md for the guide.
"""


def help_text() -> str:
    names = shipped_names()
    width = max(map(len, names))
    lines = [f"  {name:<{width}}  {read_pipeline(name).description}" for name in names]
    return HELP.format(shipped="\n".join(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    word = arguments[0] if arguments else ""
    if word in ("-h", "-help", "--help", "help", ""):
        print(help_text(), end="", file=sys.stdout if word else sys.stderr)
        return 0 if word else 2
    commands: dict[str, Callable[[Any, str], int]] = {
        "run": run,
        "check": check,
        "init": init,
        "status": status,
        "files": files,
    }
    if word not in commands:
        print(f'penstock pipeline: no command "{word}"\n{help_text()}', end="", file=sys.stderr)
        return 2
    table = flag_tables()[list(commands).index(word)]
    return _call(table, commands[word], arguments[1:], takes_file=word != "status")


def _call(
    table: FlagTable[Any],
    command: Callable[[Any, str], int],
    arguments: Sequence[str],
    *,
    takes_file: bool,
) -> int:
    program = " ".join(table.program.split()[:3])
    log.configure(prefix="[pipeline] ")
    try:
        file, arguments = take_word(table, arguments) if takes_file else ("", arguments)
        parsed = table.parse(arguments, os.environ)
        if parsed.action == "help":
            print(table.help(), end="")
            return 0
        if parsed.action == "version":
            print(penstock_line())
            return 0
        if takes_file and not file:
            what = "folder" if program.endswith(" files") else "file"
            raise UsageError(f"{program}: name a {what}")
        if parsed.warnings:
            log.LOGGER.warning("%s", "; ".join(parsed.warnings))
        log.configure(level=parsed.options.log_level, prefix="[pipeline] ")
        return command(parsed.options, file)
    except UsageError as error:
        print(f'{error}\nSee "{program} --help" for all flags.', file=sys.stderr)
        return 2
    except (PenstockError, OSError) as error:
        print(f"penstock pipeline: {error}", file=sys.stderr)
        return exit_status(error)


def exit_status(error: PenstockError | OSError) -> int:
    if isinstance(error, DataLossError):
        return DataWouldBeLostError.status
    # The status of a NodeError is an HTTP status.
    return error.status if isinstance(error, PipelineError) else 1


# run


def run(options: RunOptions, file: str) -> int:
    pipeline = _replayed(options, _read(options, file))
    check_pyspark()
    from penstock.pipeline.lock import ledgers_of
    from penstock.pipeline.losses import Answers
    from penstock.pipeline.runner import Run
    from penstock.pipeline.status import Status, StatusFile

    started = Status(
        pipeline.name,
        file=file,
        master=pipeline.master,
        checkpoint=pipeline.checkpoint_path,
        ledgers=ledgers_of(pipeline),
    )
    terminal = Terminal()
    answers = Answers(
        options.accept_loss, options.read_again, options.begin_anew, options.take_over
    )
    level = options.spark_log_level
    life = Run(pipeline, terminal, StatusFile(started), level, answers=answers)
    _stop_on_signals(life)
    try:
        life.run()
    finally:
        terminal.close()
        log.LOGGER.info("pipeline=%s: %s", pipeline.name, _joined("ended", life.report()))
    return 0


def _replayed(options: RunOptions, pipeline: Pipeline) -> Pipeline:
    if not options.replay:
        if options.output:
            raise UsageError("-output is for -replay")
        return pipeline
    from penstock.pipeline import replay

    try:
        place = replay.place_of(options.replay)
    except ValueError:
        text = f'invalid value "{options.replay}" for flag -replay: must be {replay.NOUN}'
        raise UsageError(text) from None
    own = dataclasses.replace(pipeline, checkpoint="") if options.checkpoint else pipeline
    return replay.replayed(own, place, options.output, options.checkpoint)


def _read(options: FileOptions, file: str) -> Pipeline:
    folder = Path(options.folder) if options.folder else None
    return read_pipeline(file, overrides_of(options), folder)


def overrides_of(options: FileOptions) -> list[str]:
    """Everything on the command line as ``table.key=value``."""
    for text in options.param:
        if not re.match(r"[^=\s]+=", text):
            raise UsageError(f'invalid value "{text}" for flag -param: must be name=value')
    texts = [f"parameters.{text}" for text in options.param]
    if options.nsqd_http_address and options.lookupd_http_address:
        raise UsageError("-nsqd-http-address and -lookupd-http-address cannot be used together")
    if options.nsqd_http_address:
        addresses = ",".join(options.nsqd_http_address)
        texts += [f"parameters.nsqd={addresses}", "?parameters.lookupd="]
    if options.lookupd_http_address:
        addresses = ",".join(options.lookupd_http_address)
        texts += [f"parameters.lookupd={addresses}", "?parameters.nsqd="]
    for text in options.conf:
        if not text.startswith("spark.") or "=" not in text:
            raise UsageError(f'invalid value "{text}" for flag -conf: must be spark.name=value')
        texts.append(text)
    if options.master:
        texts.append(f"master={options.master}")
    if options.checkpoint:
        remote = "://" in options.checkpoint or options.checkpoint.startswith("file:")
        path = options.checkpoint if remote else Path(options.checkpoint).absolute()
        texts.append(f"checkpoint={path}")
    return [*texts, *options.set]


def _stop_on_signals(life: Run) -> None:
    """The first signal stops after the current batch, the second at once."""
    again_s = float("inf")

    def received(number: int, frame: object) -> None:
        nonlocal again_s
        if life.stop.is_set():
            if time.monotonic() < again_s:
                return  # the same stop, sent by both the terminal and a parent process
            # The JVM exits when its standard input closes; nothing half-written is visible.
            _write_stderr(_joined("stopped immediately", life.report()))
            os._exit(128 + number)
        again_s = time.monotonic() + SAME_STOP_S
        _write_stderr(f"{life.stopping()}; press Ctrl-C again to stop immediately")
        life.stop.set()

    signal.signal(signal.SIGINT, received)
    signal.signal(signal.SIGTERM, received)


def _write_stderr(text: str) -> None:
    """From a signal handler, which may have interrupted a print."""
    os.write(2, f"{text}\n".encode())


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


class Terminal:
    """Standard output for requested output, standard error for everything else."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._line = ""
        self._logged = ""
        self._next_log_s = 0.0

    def show(self, text: str) -> None:
        self._clear()
        print(text, flush=True)

    def log(self, text: str) -> None:
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        """On a terminal, replace the line; elsewhere log a line now and then."""
        if self._live:
            columns = os.get_terminal_size(2).columns or COLUMNS  # some terminals report 0
            sys.stderr.write(f"\r{text[: columns - 1]}\x1b[K")
            sys.stderr.flush()
            self._line = text
        elif text != self._logged and time.monotonic() >= self._next_log_s:
            self._logged, self._next_log_s = text, time.monotonic() + PROGRESS_INTERVAL_S
            log.LOGGER.info("%s", text)

    def close(self) -> None:
        if self._line:
            print(file=sys.stderr)
            self._line = ""

    def _clear(self) -> None:
        if self._line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


# check, init, status, files


def check(options: CheckOptions, file: str) -> int:
    pipeline = _read(options, file)
    level = options.spark_log_level
    text = _judged(pipeline, level) if options.spark else _counted(pipeline)
    print(f"{file}: {pipeline.name} is valid: {text}")
    return 0


def _counted(pipeline: Pipeline) -> str:
    counts = (len(pipeline.sources), len(pipeline.transforms), len(pipeline.sinks))
    return "{} sources, {} transforms, {} sinks".format(*counts)


def _judged(pipeline: Pipeline, log_level: str) -> str:
    check_pyspark()
    from pyspark.errors import PySparkException

    from penstock.pipeline.faults import explain_fault
    from penstock.pipeline.runner import session_plan
    from penstock.pipeline.validation import validate
    from penstock.spark.session import open_session

    plan = dataclasses.replace(session_plan(pipeline, log_level), master="local[1]")
    spark = open_session(plan)
    try:
        return validate(spark, pipeline)
    except PySparkException as error:
        raise PipelineError(explain_fault(error)) from None
    finally:
        spark.stop()


def init(options: InitOptions, file: str) -> int:
    from penstock.pipeline.example import example
    from penstock.pipeline.spec_file import SHIPPED

    path = Path(file)
    if path.suffix != ".toml":
        path = path.with_name(f"{path.name}.toml")
    if path.exists() and not options.force:
        raise PipelineError(f"{path} exists; --force overwrites it")
    if options.like:
        if options.like not in shipped_names():
            raise PipelineError(f"--like must be one of {', '.join(shipped_names())}")
        text = (SHIPPED / f"{options.like}.toml").read_text(encoding="utf-8")
    else:
        text = example(path.stem, path.name)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path.absolute()}; edit it, then: penstock pipeline run {path}")
    return 0


def status(options: StatusOptions, file: str) -> int:
    from penstock.pipeline.details import details_of
    from penstock.pipeline.status import ask_brokers, read_all, table

    runs = read_all()
    for run in runs:
        run.waiting = ask_brokers(run)
    details = [details_of(run.ledgers) for run in runs]
    if options.json:
        shown = [
            {**dataclasses.asdict(run), "alive": run.alive, **more}
            for run, more in zip(runs, details, strict=True)
        ]
        print(json.dumps(shown))
    elif runs:
        print(table(runs, details))
    else:
        print("no pipelines are running")
    return 0


def files(options: FilesOptions, path: str) -> int:
    from penstock.pipeline.files import read_files

    local = path.removeprefix("file://").removeprefix("file:")
    folder = path if "://" in local else str(Path(local).absolute())
    found = read_files(folder)
    if options.json:
        shown = [
            {"path": f"{folder}/{file.path}", "size": file.size, "rows": file.rows}
            for file in found
        ]
        print(json.dumps(shown))
    else:
        print("".join(f"{folder}/{file.path}\n" for file in found), end="")
    return 0
