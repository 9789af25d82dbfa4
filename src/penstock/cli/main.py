"""`penstock <command>`: runs any of the programs.

A command is a module with ``main(arguments) -> int``, imported only when it is called.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in typing, without its import
if TYPE_CHECKING:
    from collections.abc import Sequence

# name: (module, one line of help)
COMMANDS = {
    "up": ("penstock.cli.up", "run nsqlookupd, nsqd and nsqadmin in one terminal"),
    "nsqd": ("penstock.cli.nsqd", "the broker: stores messages and delivers them to consumers"),
    "lookupd": ("penstock.cli.nsqlookupd", "discovery: which nsqd has which topic (nsqlookupd)"),
    "admin": ("penstock.cli.nsqadmin", "show and manage the cluster in a browser (nsqadmin)"),
    "tail": ("penstock.cli.nsq_tail", "print messages as they arrive (nsq_tail)"),
    "stat": ("penstock.cli.nsq_stat", "show live statistics of a channel (nsq_stat)"),
    "pub": ("penstock.cli.to_nsq", "publish records from standard input (to_nsq)"),
    "to-file": ("penstock.cli.nsq_to_file", "write messages to files (nsq_to_file)"),
    "to-http": ("penstock.cli.nsq_to_http", "send messages to HTTP servers (nsq_to_http)"),
    "relay": (
        "penstock.cli.nsq_to_nsq",
        "republish messages to another topic or nsqd (nsq_to_nsq)",
    ),
    "drain": ("penstock.cli.drain", "empty a node before it is removed"),
    "policy": ("penstock.cli.policy", "show and change policies of topics and channels"),
    "seek": ("penstock.cli.seek", "deliver messages of a channel again, or skip them"),
    "dead": ("penstock.cli.dead", "list, kick, move and discard messages that failed for good"),
    "pipeline": ("penstock.cli.pipeline", "run a data pipeline on Spark, from topics to tables"),
    "spark-cluster": (
        "penstock.cli.spark_cluster",
        "start or stop a Spark cluster on this machine",
    ),
    "spark-pack": ("penstock.cli.spark_pack", "package Penstock for Spark executors without it"),
    "demo": ("penstock.cli.demo", "publish sample messages, to try things out"),
    "import-nsqd": ("penstock.cli.import_nsqd", "import the data path of a Go nsqd"),
    "dump": ("penstock.cli.dump", "print the contents of the files of a data path"),
    "bench": ("penstock.cli.bench", "measure a running nsqd"),
}


def help_text() -> str:
    width = max(map(len, COMMANDS))
    lines = ["Usage: penstock <command> [flags]", "", "Commands:"]
    lines += [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    lines += [
        "",
        'See "penstock help <command>" for its flags, "penstock --version" for the version.',
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    word = arguments[0] if arguments else ""
    if word in ("-version", "--version"):
        from penstock.version import penstock_line

        print(penstock_line())
        return 0
    if word == "help" and len(arguments) > 1:
        return _run(arguments[1], ["--help"])
    if word in ("help", "-h", "-help", "--help"):
        print(help_text(), end="")
        return 0
    if not word:
        print(help_text(), end="", file=sys.stderr)
        return 2
    return _run(word, arguments[1:])


def _run(name: str, arguments: list[str]) -> int:
    if name not in COMMANDS:
        print(f'penstock: no command "{name}"{_suggestion(name)}', file=sys.stderr)
        print('See "penstock --help" for all commands.', file=sys.stderr)
        return 2

    from importlib import import_module

    if name == "pipeline" and arguments[:1] == ["run"]:
        # Its imports take a second, during which a supervisor may stop it.
        from penstock.cli.early_signals import install_signals

        install_signals(hangup=False)
    try:
        status = int(import_module(COMMANDS[name][0]).main(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        from penstock.cli.tool import output_lost

        return output_lost()


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
