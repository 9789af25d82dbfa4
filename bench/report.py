"""The figures formatted for people: a table for the terminal, and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.workloads import Workload

Rounds = Mapping[str, list[dict[str, float]]]

# A metric's name and format; the part after @ (a parameter's value) is appended to the name.
METRICS = {
    "rate": ("messages a second", "{:,.0f}"),
    "cpu_us": ("server CPU, us a message", "{:.2f}"),
    "cpu_percent": ("CPU, % of a core", "{:.2f}"),
    "share": ("rate, to that in clear", "{:.2f}"),
    "growth": ("CPU a message, last to first", "{:.2f}"),
    "p50_ms": ("p50, ms", "{:,.2f}"),
    "p99_ms": ("p99, ms", "{:,.2f}"),
    "max_ms": ("max, ms", "{:,.2f}"),
    "missing": ("missing", "{:,.0f}"),
    "doubled": ("delivered twice", "{:,.0f}"),
    "early": ("early", "{:,.0f}"),
    "rss_mib": ("resident memory, MiB", "{:,.0f}"),
    "rss_after_mib": ("resident after restart, MiB", "{:,.0f}"),
    "rss_growth_mib": ("growth of memory, MiB", "{:,.1f}"),
    "restart_s": ("restart, s", "{:.2f}"),
    "start_s": ("start, longer by s", "{:.2f}"),
    "cpu_factor": ("CPU a message, many to one", "{:.2f}"),
    "seek_ms": ("slowest search by time, ms", "{:.1f}"),
    "gone_share": ("share of the messages removed meanwhile", "{:.2f}"),
    "kept_share": ("bytes kept, to those of the policy", "{:.2f}"),
    "each_size": ("memory, bytes a message", "{:.1f}"),
    "kick_rate": ("kicked a second", "{:,.0f}"),
    "kept": ("deliveries a second, to those without failures", "{:.2f}"),
    "create_s": ("creating them, s", "{:.1f}"),
    "open_files": ("open files", "{:,.0f}"),
    "journal_kib": ("journal, KiB", "{:,.0f}"),
    "journal_growth_kib": ("growth of the journal, KiB", "{:,.0f}"),
    "stored_mib": ("data path, MiB", "{:,.0f}"),
    "flood_s": ("until the last OK of the flood, s", "{:.1f}"),
    "channel_us": ("server CPU, us a channel", "{:,.0f}"),
    "channel_growth": ("CPU a channel, last to first", "{:.2f}"),
    "cold_mib": ("cold bytes read, MiB", "{:,.0f}"),
    "cold_s": ("cold reading lasted, s", "{:.1f}"),
    "cold_mib_s": ("cold reading, MiB/s", "{:,.0f}"),
}
PREFIXES = {"term_": "clean restart: ", "kill_": "kill -9: ", "alone_": "without the flood: "}


def medians(rounds: Rounds) -> dict[str, dict[str, float]]:
    """For each make, the median of each metric over the rounds."""
    return {
        make: {name: statistics.median(r[name] for r in results) for name in results[0]}
        for make, results in rounds.items()
        if results
    }


def label(metric: str) -> tuple[str, str]:
    """A metric's display name and format."""
    base, _, parameter = metric.partition("@")
    prefix = next((p for p in PREFIXES if base.startswith(p)), "")
    name, form = METRICS[base.removeprefix(prefix)]
    where = ""
    if parameter:
        where = f" at {int(parameter):,}" if parameter.isdecimal() else f", {parameter}"
    return PREFIXES.get(prefix, "") + name + where, form


def rows(found: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Header and one row for each metric: name, each make's figure, ours divided by Go's."""
    makes = list(found)
    compared = "penstock" in makes and "go" in makes
    table = [["", *makes, *(["ours / Go's"] if compared else [])]]
    for metric in next(iter(found.values())):
        name, form = label(metric)
        row = [name, *(form.format(found[make][metric]) for make in makes)]
        if compared:
            go = found["go"][metric]
            row.append(f"{found['penstock'][metric] / go:.2f}" if go > 0 else "")
        table.append(row)
    return table


def verdicts(
    workload: Workload, found: Mapping[str, Mapping[str, float]]
) -> list[tuple[str, bool | None]]:
    """Each target and whether it is met; None if Go's figure is missing."""
    if "penstock" not in found:
        return []
    judged = []
    for target in workload.targets:
        go = found["go"][target.metric] if "go" in found else None
        base, _ = label(target.metric)
        text = str(target).replace(target.metric, base, 1)
        judged.append((text, target.judge(found["penstock"][target.metric], go)))
    return judged


# The section of a run in docs/benchmarks.md.
RUN_BEGIN, RUN_END = "<!-- a run begins -->\n", "<!-- a run ends -->\n"

WORDS = {True: "met", False: "MISSED", None: "not compared"}


def text(workload: Workload, found: Mapping[str, Mapping[str, float]]) -> str:
    """One workload, formatted for a terminal."""
    table = rows(found)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["", f"{workload.title}  [{workload.name}]"]
    for row in table:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells))
    for target, met in verdicts(workload, found):
        lines.append(f"  {WORDS[met]:>6}: {target}")
    return "\n".join(lines)


def markdown(
    machine: Mapping[str, str],
    results: Iterable[tuple[Workload, Mapping[str, Mapping[str, float]]]],
) -> str:
    """All workloads as the section of a run in docs/benchmarks.md."""
    lines = ["Measured on " + ", ".join(f"{name} {value}" for name, value in machine.items()) + "."]
    for workload, found in results:
        header, *body = rows(found)
        lines += ["", f"### {workload.title}", "", "| " + " | ".join(header) + " |"]
        lines.append("|---" + "|---:" * (len(header) - 1) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in body]
        judged = [f"{target}: {WORDS[met]}" for target, met in verdicts(workload, found)]
        if judged:
            lines += ["", "Targets: " + "; ".join(judged) + "."]
    return "\n".join(lines) + "\n"


def placed(page: str, section: str, begin_mark: str = RUN_BEGIN, end_mark: str = RUN_END) -> str:
    """``page`` with ``section`` between its two marks, or only the section if it has none."""
    head, begin, after = page.partition(begin_mark)
    _, end, tail = after.partition(end_mark)
    return f"{head}{begin}\n{section}{end}{tail}" if begin and end else section


def write_page(name: str, section: str, *marks: str) -> None:
    """Place ``section`` in the page ``name``; ``-`` prints it."""
    if name == "-":
        print(section)
    elif name:
        page = Path(name)
        before = page.read_text() if page.exists() else ""
        page.write_text(placed(before, section, *marks))
