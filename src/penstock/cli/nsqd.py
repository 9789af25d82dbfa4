"""`nsqd`: read the options and start the daemon.

Imports stand inside functions because managers of NSQ call `-version` before every start and
allow 0.1 s for it: nothing is loaded before it is needed.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in typing, whose import costs as much as the rest of `-version`
if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.flags import FlagTable
    from penstock.engine.options import Options


def flag_table() -> FlagTable[Options]:
    from penstock.cli.flags import FlagTable
    from penstock.engine.options import Options

    return FlagTable(
        "nsqd",
        Options,
        summary="Receives messages, keeps them, and delivers them to consumers.",
        environment_prefix="PENSTOCK_NSQD_",
        ignored=(
            ("verbose", "accepted as by NSQ, without effect; see -log-level"),
            ("worker-id", "accepted as by NSQ, without effect; see -node-id"),
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqd until it is told to stop; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["-version"], ["--version"]):
        return _print_version()
    return _start(arguments)


def _print_version() -> int:
    from penstock.version import version_line

    print(version_line("nsqd"))
    return 0


def _start(arguments: list[str]) -> int:
    import os

    from penstock.cli.flags import UsageError
    from penstock.engine.options import checked
    from penstock.errors import OptionError
    from penstock.server import log

    log.configure()
    table = flag_table()
    try:
        parsed = table.parse(arguments, os.environ)
    except UsageError as error:
        print(f'{error}\nSee "nsqd --help" for all flags.', file=sys.stderr)
        return 2
    except OptionError as error:
        log.LOGGER.fatal("%s", error)
        return 1
    if parsed.action == "version":
        return _print_version()
    if parsed.action == "help":
        print(table.help(), end="")
        return 0
    try:
        options = checked(parsed.options)
    except OptionError as error:
        log.LOGGER.fatal("failed to instantiate nsqd - %s", error)
        return 1
    log.configure(level=options.log_level, prefix=options.log_prefix, form=options.log_format)
    for warning in parsed.warnings:
        log.LOGGER.warning("%s", warning)

    from penstock.server.daemon import run

    return run(options)
