"""`nsqd`: reads the options and starts the daemon.

Imports are inside functions, so that `-version` loads nothing else: process managers of NSQ call it
before every start and allow 0.1 s.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in typing, whose import takes as long as all else in `-version`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.cli.flags import FlagTable
    from penstock.engine.options import Options


def flag_table() -> FlagTable[Options]:
    from penstock.cli.flags import FlagTable
    from penstock.engine.options import Options

    return FlagTable(
        "nsqd",
        Options,
        summary="The broker: stores messages and delivers them to consumers.",
        environment_prefix="PENSTOCK_NSQD_",
        ignored=(
            ("verbose", "accepted for compatibility, no effect; see -log-level"),
            ("worker-id", "accepted for compatibility, no effect; see -node-id"),
        ),
        ignores_arguments=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqd until a signal; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["-version"], ["--version"]):
        from penstock.version import matched_line

        print(matched_line("nsqd"))
        return 0

    import gc

    from penstock.cli.early_signals import install_signals

    # Imports create no garbage: collecting would add 15 ms to every start.
    gc.disable()
    install_signals()
    from penstock.cli.startup import start
    from penstock.engine.options import checked

    table = flag_table()

    def run(options: Options, read: Callable[[], Options]) -> int:
        if options.processes > 1:
            from penstock.cli.nodes import run_nodes

            gc.enable()
            return run_nodes(options, table.flags_of(arguments))
        from penstock.cli.node_folders import warn_left
        from penstock.nsqd.daemon import run as run_daemon

        gc.enable()
        warn_left(options.data_path)
        return run_daemon(options, read)

    try:
        return start(table, arguments, run, checked)
    finally:
        gc.enable()
