"""Commands with actions and words, as `penstock policy set retain=7d`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.cli.flags import HELP, FlagTable, take_words
from penstock.cli.tool import Signals, start_tool
from penstock.errors import OptionError

Options = TypeVar("Options")


def start_action(
    argv: Sequence[str] | None,
    program: str,
    usage: str,
    actions: str,
    flag_table: Callable[[str], FlagTable[Options]],
    run: Callable[[str, Sequence[str], Options, Signals], Coroutine[Any, Any, int]],
    checked: Callable[[str, Sequence[str], Options], Options],
) -> int:
    """Run the action that ``argv`` begins with; return the exit status.

    ``usage`` is the names of the actions with what may follow them, as "show|set [key ...]";
    ``actions`` describes them.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    action = arguments[0] if arguments else ""
    names, _, words_usage = usage.partition(" ")
    if not HELP.isdisjoint(arguments):
        print(flag_table(usage).help())
        print(actions, end="")
        return 0
    if action not in names.split("|"):
        print(f"Usage: {program} {names} [flags] {words_usage}\n", file=sys.stderr)
        print(f'{actions}\nSee "{program} --help" for all flags.', file=sys.stderr)
        return 2
    table = flag_table(action)
    try:
        words, flags = take_words(table, arguments[1:])
    except OptionError as error:
        print(f'{error}\nSee "{program} --help" for all flags.', file=sys.stderr)
        return 2
    return start_tool(table, flags, partial(run, action, words), partial(checked, action, words))
