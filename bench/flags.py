"""The flags that the benchmarks share, and the file of a result."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS_PATH = Path(__file__).parent / "results"


class Parser(argparse.ArgumentParser):
    """Parses the names of what to measure, such as workloads, and the flags."""

    def __init__(
        self,
        program: str,
        description: str | None,
        kind: str,
        titles: Mapping[str, str],
        folder: str = "the system's temporary folder",
    ) -> None:
        width = max(map(len, titles)) + 2
        super().__init__(
            prog=program,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"{kind}s:\n" + "\n".join(f"  {n:<{width}}{t}" for n, t in titles.items()),
        )
        self._kind = kind
        self._names = list(titles)
        self._programs: list[argparse.Action] = []
        self.add_argument(f"{kind}s", nargs="*", metavar=kind, help="names; default: all")
        self.add_argument("--quick", action="store_true", help="smaller numbers; shorter")
        self.add_argument("--data-path", help=f"folder for the brokers' files ({folder})")
        self.add_argument("--json", metavar="FILE", help="file for the result (in bench/results)")

    def add_report(self) -> None:
        add = self.add_argument
        add(
            "--markdown",
            default="",
            metavar="FILE",
            help="update this page's tables; - prints them",
        )
        add("--plots", metavar="FOLDER", help="draw charts into this folder, as SVG")
        add("--strict", action="store_true", help="exit status 1 if a target is missed")

    def add_go(self) -> None:
        self.add_program("--go-nsqd", "Go's nsqd", os.environ.get("GO_NSQD", ""))

    def add_program(self, flag: str, help: str, default: str = "") -> None:
        self._programs.append(self.add_argument(flag, default=default, metavar="FILE", help=help))

    def parsed(self, argv: list[str] | None) -> argparse.Namespace:
        """The options; exits if a name is unknown, or a program cannot be run."""
        options = self.parse_args(argv)
        for name in getattr(options, f"{self._kind}s"):
            if name not in self._names:
                self.error(f"unknown {self._kind} {name!r}; use {', '.join(self._names)}")
        for action in self._programs:
            file = getattr(options, action.dest)
            if file and not shutil.which(file):
                self.error(f"{action.option_strings[0]}: {file} is not a program")
        return options


def write_record(options: argparse.Namespace, record: dict[str, Any], prefix: str = "") -> None:
    """Write the result to --json, or to a file named after the time."""
    name = f"{prefix}{time.strftime('%Y%m%d-%H%M%S')}.json"
    path = Path(options.json or RESULTS_PATH / name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
