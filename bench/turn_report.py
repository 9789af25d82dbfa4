"""The figures of ``bench.turn``: what is asked of each row, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Figures = Mapping[str, Mapping[str, float]]

BEGIN, END = "<!-- packets begin -->\n", "<!-- packets end -->\n"
NAMES = {
    "penstock": "Penstock",
    "old": "the build before",
    "redis": "Redis",
    "go": "Go nsqd",
    "floor": "floor",
}
METRICS = {
    "rate": ("messages a second", "{:,.0f}"),
    "cpu_us": ("server CPU, us a message", "{:.2f}"),
    "p50_us": ("p50, us", "{:,.0f}"),
    "p99_us": ("p99, us", "{:,.0f}"),
    "p99_pub_ms": ("p99 of PUB, ms", "{:,.2f}"),
    "p99_ping_ms": ("p99 of /ping, ms", "{:,.2f}"),
    "cpu_percent": ("CPU, % of a core", "{:.2f}"),
    "connection_kib": ("memory, KiB a connection", "{:.1f}"),
}


@dataclass(frozen=True)
class Asked:
    """``metric`` at most, or at least, ``limit``; with ``peer``, ``limit`` times the peer's."""

    metric: str
    limit: float
    peer: str = ""
    at_least: bool = False

    def met(self, figures: Figures) -> bool | None:
        """None if the peer was left out."""
        if self.peer and self.peer not in figures:
            return None
        limit = self.limit * (figures[self.peer][self.metric] if self.peer else 1)
        ours = figures["penstock"][self.metric]
        return ours >= limit if self.at_least else ours <= limit

    def verdict(self, figures: Figures) -> str:
        """What was asked, and whether it is met: with the ratio, if it is of a peer."""
        sign = "at least" if self.at_least else "at most"
        of = f" of {NAMES[self.peer]}'s" if self.peer else ""
        asked = f"{METRICS[self.metric][0]} {sign} {self.limit:g}{of}"
        met = self.met(figures)
        if met is None:
            return f"{asked}: not compared"
        ours = figures["penstock"][self.metric]
        ratio = f" ({ours / figures[self.peer][self.metric]:.2f})" if self.peer else ""
        return f"{asked}: {'met' if met else 'MISSED'}{ratio}"


@dataclass(frozen=True)
class Result:
    """A row's medians."""

    name: str
    title: str
    asked: tuple[Asked, ...]
    figures: Figures

    def table(self) -> list[list[str]]:
        """A header, and for each metric its name and each peer's figure."""
        shown = [["", *(NAMES[peer] for peer in self.figures)]]
        for metric in self.figures["penstock"]:
            name, form = METRICS[metric]
            cells = [form.format(figures[metric]) for figures in self.figures.values()]
            shown.append([name, *cells])
        return shown

    def text(self) -> str:
        table = self.table()
        lines = ["", f"{self.title}  [{self.name}]"]
        for name, *cells in table:
            lines.append(f"  {name:<28}" + "".join(f"{cell:>18}" for cell in cells))
        return "\n".join([*lines, *(f"  {each.verdict(self.figures)}" for each in self.asked)])


def markdown(machine: Mapping[str, str], results: Iterable[Result]) -> str:
    """All rows, as a section of docs/benchmarks.md."""
    lines = ["Measured on " + ", ".join(f"{name} {value}" for name, value in machine.items()) + "."]
    for result in results:
        header, *body = result.table()
        lines += ["", f"### {result.title}", "", "| " + " | ".join(header) + " |"]
        lines.append("|---" + "|---:" * (len(header) - 1) + "|")
        lines += ["| " + " | ".join(cells) + " |" for cells in body]
        verdicts = "; ".join(each.verdict(result.figures) for each in result.asked)
        lines += ["", f"Asked: {verdicts}."] if verdicts else []
    return "\n".join(lines) + "\n"
