"""`nsqadmin`: reads the options and starts the daemon.

Imports are inside functions, so that `-version` loads nothing else: process managers of NSQ call it
before every start and allow 0.1 s.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in typing, whose import takes as long as all else in `-version`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.admin.options import AdminOptions
    from penstock.cli.flags import FlagTable


def flag_table() -> FlagTable[AdminOptions]:
    from penstock.admin.options import AdminOptions
    from penstock.cli.flags import FlagTable

    return FlagTable(
        "nsqadmin",
        AdminOptions,
        summary="Shows and manages a cluster in a browser.",
        environment_prefix="PENSTOCK_NSQADMIN_",
        ignored=(("verbose", "accepted for compatibility, no effect; see -log-level"),),
        ignores_arguments=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqadmin until a signal; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["-version"], ["--version"]):
        from penstock.version import matched_line

        print(matched_line("nsqadmin"))
        return 0

    from penstock.cli.early_signals import install_signals

    install_signals(hangup=False)  # it reloads nothing
    from penstock.admin.options import checked
    from penstock.cli.startup import start

    return start(flag_table(), arguments, _run, checked)


def _run(options: AdminOptions, read: Callable[[], AdminOptions]) -> int:
    from penstock.admin.daemon import run

    return run(options)
