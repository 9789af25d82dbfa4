"""The diagrams and tables of docs/connections.md: the states of an HTTP and of a TCP connection.

They are generated from `penstock.net.http_states` and from `tests.meta.tcp_states`.
`python -m tests.meta.connections` regenerates them after a change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from penstock.net.http_states import TABLE, Event, State
from tests.meta import tcp_states

PAGE = Path(__file__).parents[2] / "docs" / "connections.md"
FIRST = {
    "life": State.CONNECTING,
    "request": State.IDLE,
    "input": State.READING,
    "output": State.CLEAR,
    "file": State.READY,
}
_BLOCK = re.compile(r"<!-- (\w+) -->\n(.*?)\n<!-- end -->", re.S)


def _groups() -> list[tuple[str, list[State]]]:
    states = list(State)
    starts = [states.index(first) for first in FIRST.values()]
    ends = [*starts[1:], len(states)]
    return [(n, states[a:b]) for n, a, b in zip(FIRST, starts, ends, strict=True)]


# The states of each group of an HTTP connection; the first is the one it begins with.
GROUPS = _groups()


def diagram(first: str, arrows: Iterable[tuple[str, str, str]]) -> str:
    """A state diagram, as GitHub draws it; arrows between the same two states are one."""
    labels: dict[tuple[str, str], list[str]] = {}
    for state, label, after in arrows:
        found = labels.setdefault((state, after), [])
        if label not in found:
            found.append(label)
    lines = [
        f"    {state} --> {after}: {', '.join(found)}" for (state, after), found in labels.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, "```"])


def table(*rows: Iterable[str]) -> str:
    head, *others = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" * (head.count(" | ") + 1) + "|", *others])


def http_group(states: list[State]) -> str:
    arrows = [(s.name, e.name, after.name) for s in states for e, after in TABLE[s].items()]
    events = [event for event in Event if any(event in TABLE[state] for state in states)]
    return "\n\n".join(
        (
            diagram(states[0].name, arrows),
            table(("State", "Meaning"), *((f"`{s.name}`", s.value) for s in states)),
            table(("Event", "Meaning"), *((f"`{e.name}`", e.value) for e in events)),
        )
    )


def _label(row: tcp_states.Row) -> str:
    """The event without its conditions; all errors are one, and so are all timeouts."""
    if row.event in ("the channel is deleted", "end of stream in a body"):
        return row.event
    if row.after == "LINGERING":
        return "error"
    if row.event == tcp_states.UNREAD or row.event.startswith("no "):
        return "timeout"
    return row.event.partition(",")[0]


def tcp() -> str:
    states = tcp_states.STATES
    arrows = [
        (row.state, _label(row), row.after) for row in tcp_states.TABLE if row.after != row.state
    ]
    parts = [
        diagram(next(iter(states)), arrows),
        table(("State", "Meaning"), *((f"`{name}`", text) for name, text in states.items())),
    ]
    for state in states:
        rows = [row for row in tcp_states.TABLE if row.state == state]
        if rows:
            cells = ((row.event, f"`{row.reply}`" if row.reply else "", row.after) for row in rows)
            parts.append(f"**{state}**\n\n" + table(("Event", "Reply", "Next state"), *cells))
    return "\n\n".join(parts)


def drawings() -> dict[str, str]:
    return {**{name: http_group(states) for name, states in GROUPS}, "tcp": tcp()}


def shown() -> dict[str, str]:
    """The drawings as the page has them."""
    return {
        found[1]: found[2].strip("\n")
        for found in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))
    }


def redraw() -> None:
    drawn = drawings()

    def block(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n\n{drawn[found[1]]}\n\n<!-- end -->"

    PAGE.write_text(_BLOCK.sub(block, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    redraw()
