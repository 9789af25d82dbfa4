"""`nsqlookupd`: reads the options and starts the daemon.

Imports are inside functions, so that `-version` loads nothing else: process managers of NSQ call it
before every start and allow 0.1 s.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in typing, whose import takes as long as all else in `-version`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.cli.flags import FlagTable
    from penstock.lookupd.options import LookupdOptions


def flag_table() -> FlagTable[LookupdOptions]:
    from penstock.cli.flags import FlagTable
    from penstock.lookupd.options import LookupdOptions

    return FlagTable(
        "nsqlookupd",
        LookupdOptions,
        summary="Discovery: which nsqd has which topic and channel, for consumers and other nsqds.",
        environment_prefix="PENSTOCK_NSQLOOKUPD_",
        ignored=(("verbose", "accepted for compatibility, no effect; see -log-level"),),
        ignores_arguments=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqlookupd until a signal; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["-version"], ["--version"]):
        from penstock.version import matched_line

        print(matched_line("nsqlookupd"))
        return 0

    from penstock.cli.early_signals import install_signals

    install_signals()
    from penstock.cli.startup import start
    from penstock.settings.daemon import checked_tls

    return start(flag_table(), arguments, _run, checked_tls)


def _run(options: LookupdOptions, read: Callable[[], LookupdOptions]) -> int:
    from penstock.lookupd.daemon import run

    return run(options, read)
