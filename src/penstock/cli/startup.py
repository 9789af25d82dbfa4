"""Starts a daemon: options, log, limits."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock.cli.flags import FlagTable, UsageError
from penstock.errors import OptionError
from penstock.net import log
from penstock.version import matched_line

# Warn below this: 256 files of the data path, and some connections.
OPEN_FILES_MIN = 1024


def start(
    table: FlagTable[Any],
    arguments: Sequence[str],
    run: Callable[[Any, Callable[[], Any]], int],
    checked: Callable[[Any], Any] = lambda options: options,
) -> int:
    """Read the options, set up the log and run the daemon; return its exit code.

    ``checked`` validates their combination.  ``run`` gets them, and a function that reloads them
    from the same command line and the current environment and file.
    """
    program = table.program
    log.configure(prefix=f"[{program}] ")
    try:
        parsed = table.parse(arguments, os.environ)
    except UsageError as error:
        print(f'{error}\nSee "{program} --help" for all flags.', file=sys.stderr)
        return 2
    except OptionError as error:
        log.LOGGER.fatal("%s", error)
        return 1
    if parsed.action == "version":
        print(matched_line(program))
        return 0
    if parsed.action == "help":
        print(table.help(), end="")
        return 0
    try:
        options = checked(parsed.options)
    except OptionError as error:
        log.LOGGER.fatal("failed to instantiate %s - %s", program, error)
        return 1
    log.configure(level=options.log_level, prefix=options.log_prefix, form=options.log_format)
    for warning in parsed.warnings:
        log.LOGGER.warning("%s", warning)
    raise_open_files_limit()
    return run(options, lambda: checked(table.parse(arguments, os.environ).options))


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard limit.

    Go programs do so by default, so users of nsqd only set the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems refuse "unlimited"; then the soft limit stays.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES_MIN:
        log.LOGGER.warning("open files: the limit is %d; too low for many connections", limit)
