"""`nsqd`: read the options and start the daemon.

Imports stand inside functions because managers of NSQ call `-version` before every start and
allow 0.1 s for it: nothing is loaded before it is needed.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in typing, whose import costs as much as the rest of `-version`
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
        ignores_rest=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqd until it is told to stop; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["-version"], ["--version"]):
        from penstock.version import matched_line

        print(matched_line("nsqd"))
        return 0

    import gc

    from penstock.cli.early_signals import take_signals

    # All that loading makes stays: to look for garbage in it takes 15 ms of every start.
    gc.disable()
    take_signals()
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
