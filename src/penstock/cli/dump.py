"""`penstock dump FILE...`: prints the files of a data path for people."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

EPILOG = """\
Prints segments and side files (*.log, *.side), journals, slot files (*.slot, *.fired) and their
counts (deferred.counts), staging files (*.staging) and their ledger, node.json, patterns.json and
nsqd.dat: one line per item, with its offset in the file.  Lines that start with "!!" mark damage.
It changes nothing, and can read the files of a running nsqd.

examples:
  penstock dump data/penstock/topics/orders~*/*.log
  penstock dump --brief data/penstock/topics/orders~*/*

Exit status: 0 no damage, 1 damage found or a file could not be read, 2 wrong usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = build_parser().parse_args(argv)
    try:
        status = dump_all(options.files, brief=options.brief)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe.  The interpreter's flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock dump",
        description="Print the contents of the files of a data path.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="file to print")
    parser.add_argument(
        "--brief", action="store_true", help="print batches only, not their messages"
    )
    return parser


def dump_all(paths: Sequence[str], *, brief: bool) -> int:
    """Print each file; one that cannot be read does not stop the others."""
    from penstock.errors import StorageError
    from penstock.storage.dump import dump_file
    from penstock.storage.files import Files

    files = Files(read_only=True)
    status = 0
    for path in paths:
        if len(paths) > 1:
            print(f"{path}:")
        try:
            damage = dump_file(files, path, sys.stdout, brief=brief)
        except BrokenPipeError:
            raise
        except OSError as error:
            print(f"penstock dump: {path}: {error.strerror or error}", file=sys.stderr)
            status = 1
        except StorageError as error:
            print(f"penstock dump: {error}", file=sys.stderr)
            status = 1
        else:
            if damage:
                print(f"penstock dump: {path}: {damage} damaged places", file=sys.stderr)
                status = 1
    files.close()
    return status
